"""Prometheus metrics of engines, and of the whole server.

Engines have llama-server's metrics (llama.cpp tools/server/server-task.cpp, to_metrics) over all models, the same for
each model, and further ones.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from itertools import accumulate
from operator import sub
from typing import Any, Protocol, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from server.engine.cache.prefix_cache import BLOCK
from server.engine.stats import MAX_TOKENS, EngineStats, Histogram, combined, ended
from server.pool.state import ModelState, Status

_LLAMA_SERVER, _LLAMAPOOL, _WHOLE_SERVER = "llamacpp:", "llamapool_", "llamapool_server_"
MAX_TOKENS_NAMES = (_LLAMA_SERVER + MAX_TOKENS, _LLAMAPOOL + MAX_TOKENS)
_PUBLISHED = [(each.name, each.metadata) for each in fields(EngineStats) if each.metadata.get("metric")]
_KINDS = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
Totals = tuple[float, float, float, float]
"""Prompt tokens and their seconds, generated tokens and their seconds."""


class Counted(Protocol):
    """The part of a loaded model that the ledger reads."""

    @property
    def stats(self) -> EngineStats:
        """Totals since the load; readable even after the engine was closed."""


class Ledger:
    """Totals per model that never decrease, although a model's statistics restart with each load."""

    def __init__(self) -> None:
        self._engines: dict[str, Counted | None] = {}  # the loaded ones
        self._past: dict[str, EngineStats] = {}  # the sums of earlier loads

    def note(self, engines: Mapping[str, Counted | None]) -> None:
        """Count new engines, and keep the totals of unloaded ones. Call it with all models on each change of a model's
        status, and before `totals`.
        """
        for model, engine in (dict.fromkeys(self._engines) | dict(engines)).items():
            before = self._engines.get(model)
            if before is not None and before is not engine:
                self._past[model] = combined(self._past.get(model, EngineStats()), ended(before.stats))
            self._engines[model] = engine

    def totals(self) -> dict[str, EngineStats]:
        """Return the stats by model id, summed over all loads. Gauges are those of the current load."""
        past = {model: self._past.get(model, EngineStats()) for model in self._engines}
        return {
            model: past[model] if engine is None else combined(past[model], engine.stats)
            for model, engine in self._engines.items()
        }


WINDOW_S = 15.0
"""Minimum length of the averaging window, if a scrape is that old."""
_SAMPLE_INTERVAL_S = 1.0


class Windows:
    """Recent throughput of each model, the same for every scraper. Used on the event loop.

    llama-server's gauges (llama.cpp tools/server/server-common.h, server_metrics::bucket) average since the last scrape
    of any client.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: dict[str, deque[tuple[float, Totals]]] = {}

    def rates(self, model: str, stats: EngineStats) -> tuple[float, float]:
        """Return prompt and generated tokens per second of computation, since the latest scrape that is at least
        `WINDOW_S` old; 0 if nothing ran.

        A choice's first token is sampled in the prompt's last step, so it takes no time of its own and is not counted.
        """
        gaps, at = stats.inter_token, self._clock()
        now = stats.prompt_tokens, stats.prompt_seconds, sum(gaps.counts), gaps.sum
        samples = self._samples.setdefault(model, deque([(-math.inf, (0, 0, 0, 0))]))
        while len(samples) > 1 and at - samples[1][0] >= WINDOW_S:
            samples.popleft()
        n_prompt, prompt_s, n_predicted, predicted_s = map(sub, now, samples[0][1])
        if at - samples[-1][0] >= _SAMPLE_INTERVAL_S:
            samples.append((at, now))
        return _rate(n_prompt, prompt_s), _rate(n_predicted, predicted_s)


def _rate(n: float, seconds: float) -> float:
    return n / seconds if seconds > 0 else 0.0


class EngineCollector(Collector):
    """llama-server's metrics over all models, without labels, and all metrics of each model under ``llamapool_``.

    `labelled` False: the metrics of one model, without labels.
    """

    def __init__(
        self, totals: Callable[[], Mapping[str, EngineStats]], windows: Windows, *, labelled: bool = True
    ) -> None:
        self._totals = totals
        self._windows = windows
        self._labelled = labelled

    def collect(self) -> Iterable[Metric]:
        """Return one consistent reading of every model."""
        models = self._totals()
        summed = {"": reduce(combined, models.values(), EngineStats())} if self._labelled else models
        yield from _Families(_LLAMA_SERVER, summed, []).llama_server_metrics(self._windows)
        by_model = _Families(_LLAMAPOOL, models, ["model"] if self._labelled else [])
        if self._labelled:
            yield from by_model.llama_server_metrics(self._windows)
        yield from by_model.further_metrics()


@dataclass(frozen=True, slots=True)
class _Families:
    """Metric families under `prefix` with one sample per model of `models`. Without labels there is only one sample."""

    prefix: str
    models: Mapping[str, EngineStats]
    labels: list[str]

    def llama_server_metrics(self, windows: Windows) -> Iterator[Metric]:
        yield from self._published("counter", theirs=True)
        yield self._family(
            CounterMetricFamily,
            "tokens_predicted_seconds_total",
            "Total time spent generating tokens",
            # updated with each token, not at a request's end
            {model: stats.inter_token.sum for model, stats in self.models.items()},
        )
        yield from self._accepted_by_position()
        yield from self._published("gauge", theirs=True)
        yield self._family(
            GaugeMetricFamily,
            "n_busy_slots_per_decode",
            "Average number of busy slots per llama_decode() call",
            {model: stats.n_busy_slots / max(stats.n_decode, 1) for model, stats in self.models.items()},
        )
        rates = {model: windows.rates(model, stats) for model, stats in self.models.items()}
        for index, kind in enumerate(("prompt", "predicted")):
            text = f"Average {'generation' if index else 'prompt'} throughput in tokens/s"
            values = {model: each[index] for model, each in rates.items()}
            yield self._family(GaugeMetricFamily, f"{kind}_tokens_seconds", text, values)

    def further_metrics(self) -> Iterator[Metric]:
        yield from self._published("counter", theirs=False)
        yield from self._published("gauge", "histogram", theirs=False)

    def _accepted_by_position(self) -> Iterator[Metric]:
        """Yield nothing before the first draft, as in llama-server."""
        if not any(stats.accepted_at for stats in self.models.values()):
            return
        name, text = "spec_decode_num_accepted_tokens_per_pos_total", "Accepted tokens per draft position"
        family = CounterMetricFamily(self.prefix + name, text, labels=[*self.labels, "position"])
        for model, stats in self.models.items():
            for position, n in enumerate(stats.accepted_at):
                family.add_metric([*self._values(model), str(position)], n)
        yield family

    def _published(self, *kinds: str, theirs: bool) -> Iterator[Metric]:
        """Yield the fields of `EngineStats` of these kinds, either those of llama-server or Llamapool's own."""
        for attribute, about in _PUBLISHED:
            if about["theirs"] is theirs and about["kind"] in kinds:
                values = {model: getattr(stats, attribute) for model, stats in self.models.items()}
                yield self._family(_KINDS[about["kind"]], about["metric"], about["text"], values)

    def _family(self, kind: type[Any], name: str, text: str, values: Mapping[str, float | Histogram]) -> Metric:
        family: Any = kind(self.prefix + name, text, labels=self.labels)
        for model, value in values.items():
            if isinstance(value, Histogram):
                buckets = zip((*map(str, value.bounds), "+Inf"), map(float, accumulate(value.counts)), strict=True)
                family.add_metric(self._values(model), list(buckets), value.sum)
            else:
                family.add_metric(self._values(model), value)
        return cast(Metric, family)

    def _values(self, model: str) -> list[str]:
        return [model] if self.labels else []


class ServerCollector(Collector):
    """Status and KV cells of each model, and series of the whole server. Used on the event loop.

    A router such as llm-d's endpoint picker reads the first series of a family, so those families have exactly one.
    """

    def __init__(self, states: Callable[[], Sequence[ModelState]]) -> None:
        self._states = states

    def collect(self) -> Iterable[Metric]:
        """Return one reading of the pool."""
        states = self._states()
        yield from _model_metrics(states)
        yield from _server_metrics(states)


def _model_metrics(states: Sequence[ModelState]) -> Iterator[Metric]:
    def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(_LLAMAPOOL + name, text, labels=["model", *labels])

    status = gauge("model_status", "1 for the state that a model is in (`status`), 0 for the others", "status")
    memory = gauge("model_memory_bytes", "Memory of a model, by `device`", "device")
    loaded_at = gauge("model_loaded_seconds", "Unix time of a model's load")
    slots = gauge("slots", "Slots of all instances of a model")
    waiting = gauge("model_waiting_requests", "Requests that wait for the load")
    leases = gauge("model_leases", "Requests that hold the model in memory")
    cells = gauge("kv_cells", "KV cells; one cell holds one token")
    used = gauge("kv_cells_used", "KV cells that running requests or cached prefixes hold (`by`)", "by")
    ratio = gauge("kv_cache_usage_ratio", "Share of the KV cells that running requests hold, 0 to 1")
    for state in states:
        model = state.spec.id
        for each in Status:
            status.add_metric([model, each.value], float(state.status is each))
        waiting.add_metric([model], state.n_waiting)
        leases.add_metric([model], state.n_leases)
        if state.loaded is None:
            continue
        stats = state.loaded.stats
        loaded_at.add_metric([model], state.loaded.loaded_at)
        slots.add_metric([model], state.loaded.n_slots)
        for device, used_bytes in state.facts.footprint.items() if state.facts is not None else ():
            memory.add_metric([model, str(device)], used_bytes.total)
        if stats.kv_cells:
            cells.add_metric([model], stats.kv_cells)
            used.add_metric([model, "running"], stats.kv_cells_running)
            used.add_metric([model, "cached"], stats.kv_cells_cached)
            ratio.add_metric([model], stats.kv_cells_running / stats.kv_cells)
    yield from (status, memory, loaded_at, slots, waiting, leases, cells, used, ratio)


def _server_metrics(states: Sequence[ModelState]) -> Iterator[Metric]:
    loaded = [state.loaded for state in states if state.loaded is not None]
    stats = [model.stats for model in loaded]
    total = reduce(combined, stats, EngineStats())
    waiting = total.n_deferred + sum(state.n_waiting for state in states)
    yield GaugeMetricFamily(_WHOLE_SERVER + "requests_waiting", "Requests that wait for a slot or for a load", waiting)
    yield GaugeMetricFamily(_WHOLE_SERVER + "requests_running", "Requests with a slot", total.n_processing)
    fullest = max((each.kv_cells_running / each.kv_cells for each in stats if each.kv_cells), default=0.0)
    yield GaugeMetricFamily(
        _WHOLE_SERVER + "kv_cache_usage_ratio",
        "Share of the KV cells that running requests hold, 0 to 1, of the fullest model",
        fullest,
    )
    info = GaugeMetricFamily(
        _WHOLE_SERVER + "cache_config_info",
        "1; `block_size` in tokens, and the blocks of all loaded models",
        labels=["block_size", "num_gpu_blocks"],
    )
    info.add_metric([str(BLOCK), str(total.kv_cells // BLOCK)], 1)
    yield info
    n_adapters = sum(len(model.generator.adapters) for model in loaded if model.generator is not None)
    lora = GaugeMetricFamily(
        _WHOLE_SERVER + "lora_requests_info",
        "Comma-separated LoRA adapters of running and of waiting requests; the value is the unix time of the reading",
        labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )
    if n_adapters:
        names = (",".join(sorted(each)) for each in (total.adapters_running, total.adapters_waiting))
        lora.add_metric([str(n_adapters), *names], time.time())
    yield lora
