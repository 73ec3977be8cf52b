"""Prometheus metrics of engines, and of the whole server.

Those of engines are llama-server's (llama.cpp tools/server/server-task.cpp, to_metrics), the same per model, and more.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from server.engine.cache.prefix_cache import BLOCK
from server.engine.stats import EngineStats, combined, ended
from server.pool.state import ModelState, Status

_THEIRS, _OURS, _ALL = "llamacpp:", "llamapool_", "llamapool_server_"
MAX_TOKENS = "n_tokens_max"
MAX_TOKENS_NAMES = (_THEIRS + MAX_TOKENS, _OURS + MAX_TOKENS)
Kind = type[CounterMetricFamily] | type[GaugeMetricFamily]
_Table = tuple[tuple[str, str, str], ...]
"""Name of a metric, its description, and the attribute of `EngineStats` that it shows."""

_COUNTERS: _Table = (
    ("prompt_tokens_total", "Number of prompt tokens processed, excluding cached tokens", "prompt_tokens"),
    ("prompt_tokens_cached_total", "Number of prompt tokens reused from the cache", "prompt_tokens_cached"),
    ("prompt_seconds_total", "Total time spent processing prompts", "prompt_seconds"),
    ("tokens_predicted_total", "Number of generation tokens processed", "predicted_tokens"),
    (
        "n_decode_total",
        "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding",
        "n_decode",
    ),
    ("spec_decode_num_draft_tokens_total", "Speculative: Total draft tokens generated", "n_draft_tokens"),
    (
        "spec_decode_num_accepted_tokens_total",
        "Speculative: Total draft tokens accepted by the target model",
        "n_draft_accepted",
    ),
    ("spec_decode_num_drafts_total", "Speculative: Total speculative decoding verification steps", "n_drafts"),
)
_GAUGES: _Table = (
    (MAX_TOKENS, "Largest observed sequence length (prompt + generation)", "n_tokens_max"),
    ("requests_processing", "Number of requests processing", "n_processing"),
    ("requests_deferred", "Number of requests deferred", "n_deferred"),
)
_OWN_COUNTERS: _Table = (
    ("model_restarts_total", "Restarts of the process of a model with `isolation: process`", "n_restarts"),
    ("preempted_requests_total", "Preemptions of running requests, which resume later", "n_preempted"),
    ("parked_requests_total", "Deprecated name of preempted_requests_total", "n_preempted"),
    ("cache_ram_hits_total", "Prompts whose KV state was loaded from RAM (`cache_ram`)", "n_ram_hits"),
    (
        "cache_refused_total",
        "KV states that were not cached because saving would have delayed other requests",
        "n_cache_refused",
    ),
    ("cache_disk_hits_total", "KV states that were read from disk (`cache_disk`)", "n_disk_hits"),
    (
        "cache_slot_evictions_total",
        "Cached prefixes that idle slots lost to other prompts, also those that were saved",
        "n_slot_evictions",
    ),
    ("cache_ram_evictions_total", "KV states that left RAM for others, to disk if there is one", "n_ram_evictions"),
    ("cache_disk_evictions_total", "KV states that were deleted from disk for others", "n_disk_evictions"),
    ("cache_disk_dropped_total", "Damaged files on disk that were deleted", "n_disk_dropped"),
    ("checkpoints_total", "Checkpoints of models whose KV cache cannot be truncated", "n_checkpoints"),
    ("checkpoint_hits_total", "Prompts that continued from a checkpoint", "n_checkpoint_hits"),
    ("media_encoded_total", "Images and audio segments that were encoded", "n_media_encoded"),
    ("media_cache_hits_total", "Images and audio segments whose embeddings were cached", "n_media_hits"),
)
_OWN_GAUGES: _Table = (
    ("cache_ram_bytes", "KV states, preempted requests and checkpoints in RAM (`cache_ram`)", "cache_ram_bytes"),
    ("cache_ram_states", "KV states in RAM", "cache_ram_states"),
    ("cache_disk_bytes", "KV states on disk (`cache_disk`)", "cache_disk_bytes"),
    ("media_cache_bytes", "Embeddings of images and audio, in RAM and on disk", "media_cache_bytes"),
    ("cache_disk_states", "KV states on disk", "cache_disk_states"),
)
_HISTOGRAMS: _Table = (
    ("time_to_first_token_seconds", "From a request's arrival at the engine to its first token", "time_to_first_token"),
    ("inter_token_latency_seconds", "Between two tokens of a choice", "inter_token"),
    ("queue_time_seconds", "From a request's arrival at the engine to its slot", "queue_time"),
    ("request_duration_seconds", "From a request's arrival at the engine to its end", "request_duration"),
)


class Counted(Protocol):
    """A loaded model, as far as the ledger reads it."""

    @property
    def stats(self) -> EngineStats:
        """Totals since the load; readable after the engine was closed, too."""


class Ledger:
    """Totals per model that never decrease, although a model's statistics restart with each load."""

    def __init__(self) -> None:
        self._engines: dict[str, Counted | None] = {}  # those that count now
        self._past: dict[str, EngineStats] = {}  # the sums of earlier loads

    def note(self, engines: Mapping[str, Counted | None]) -> None:
        """Begin to count new engines, and add up and release those that are gone. Call it with all models: on each
        change of a model's status, and before `totals`.
        """
        for model, engine in (dict.fromkeys(self._engines) | dict(engines)).items():
            before = self._engines.get(model)
            if before is not None and before is not engine:
                self._past[model] = combined(self._past.get(model, EngineStats()), ended(before.stats))
            self._engines[model] = engine

    def totals(self) -> dict[str, EngineStats]:
        """Return the stats by model id over all loads; gauges are those of the current load."""
        past = {model: self._past.get(model, EngineStats()) for model in self._engines}
        return {
            model: past[model] if engine is None else combined(past[model], engine.stats)
            for model, engine in self._engines.items()
        }


WINDOW_S = 15.0
"""Minimum length of the averaging window, if there was a scrape that long ago."""
_APART_S = 1.0


@dataclass(frozen=True, slots=True)
class _Sample:
    """Totals of tokens, and of the seconds that they took."""

    at: float = -math.inf
    prompt: float = 0.0
    prompt_s: float = 0.0
    predicted: float = 0.0
    predicted_s: float = 0.0


class Windows:
    """Recent throughput of each model, which is the same for every scraper. Used on the event loop.

    llama-server's gauges (llama.cpp tools/server/server-common.h, server_metrics::bucket) average since the last scrape
    by anyone.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: dict[str, deque[_Sample]] = {}

    def rates(self, model: str, stats: EngineStats) -> tuple[float, float]:
        """Return prompt and generated tokens per second of computation, since the latest scrape that is at least
        `WINDOW_S` old; 0 if nothing ran.

        A choice's first token comes from the prompt's last step, so it takes no time of its own and isn't counted.
        """
        gaps, at = stats.inter_token, self._clock()
        now = _Sample(at, stats.prompt_tokens, stats.prompt_seconds, sum(gaps.counts), gaps.sum)
        samples = self._samples.setdefault(model, deque((_Sample(),)))
        while len(samples) > 1 and at - samples[1].at >= WINDOW_S:
            samples.popleft()
        before = samples[0]
        if at - samples[-1].at >= _APART_S:
            samples.append(now)
        return (
            _rate(now.prompt - before.prompt, now.prompt_s - before.prompt_s),
            _rate(now.predicted - before.predicted, now.predicted_s - before.predicted_s),
        )


def _rate(n: float, seconds: float) -> float:
    return n / seconds if seconds > 0 else 0.0


class EngineCollector(Collector):
    """llama-server's metrics of all models together, without labels; the same for each, and more, under ``llamapool_``.

    Not `labelled`, for one model alone: its own as llama-server's, and the rest without a label.
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
        ours = _Families(_OURS, models, ["model"] if self._labelled else [])
        if self._labelled:
            together = {"": reduce(combined, models.values(), EngineStats())}
            yield from _Families(_THEIRS, together, []).llama_servers(self._windows)
            yield from ours.llama_servers(self._windows)
        else:
            yield from _Families(_THEIRS, models, []).llama_servers(self._windows)
        yield from ours.own()


@dataclass(frozen=True, slots=True)
class _Families:
    """Metric families under `prefix` with one sample per model of `models`. Without labels there is only one sample."""

    prefix: str
    models: Mapping[str, EngineStats]
    labels: list[str]

    def llama_servers(self, windows: Windows) -> Iterator[Metric]:
        yield from self._table(CounterMetricFamily, _COUNTERS)
        yield self._family(
            CounterMetricFamily,
            "tokens_predicted_seconds_total",
            "Total time spent generating tokens",
            # counted with each token and not at a request's end
            {model: stats.inter_token.sum for model, stats in self.models.items()},
        )
        yield from self._accepted_by_position()
        yield from self._table(GaugeMetricFamily, _GAUGES)
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

    def own(self) -> Iterator[Metric]:
        yield from self._table(CounterMetricFamily, _OWN_COUNTERS)
        yield from self._table(GaugeMetricFamily, _OWN_GAUGES)
        for name, text, attribute in _HISTOGRAMS:
            family = HistogramMetricFamily(self.prefix + name, text, labels=self.labels)
            for model, stats in self.models.items():
                histogram, n, buckets = getattr(stats, attribute), 0, []
                for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
                    n += count
                    buckets.append((bound, float(n)))
                family.add_metric(self._values(model), buckets, histogram.sum)
            yield family

    def _accepted_by_position(self) -> Iterator[Metric]:
        """Nothing before the first draft, as in llama-server."""
        if not any(stats.accepted_at for stats in self.models.values()):
            return
        name, text = "spec_decode_num_accepted_tokens_per_pos_total", "Accepted tokens per draft position"
        family = CounterMetricFamily(self.prefix + name, text, labels=[*self.labels, "position"])
        for model, stats in self.models.items():
            for position, n in enumerate(stats.accepted_at):
                family.add_metric([*self._values(model), str(position)], n)
        yield family

    def _table(self, kind: Kind, table: _Table) -> Iterator[Metric]:
        for name, text, attribute in table:
            yield self._family(kind, name, text, {m: getattr(stats, attribute) for m, stats in self.models.items()})

    def _family(self, kind: Kind, name: str, text: str, values: Mapping[str, float]) -> Metric:
        family = kind(self.prefix + name, text, labels=self.labels)
        for model, value in values.items():
            family.add_metric(self._values(model), value)
        return family

    def _values(self, model: str) -> list[str]:
        return [model] if self.labels else []


class ServerCollector(Collector):
    """The states and cells of the models of `states`, and series of the whole server. Used on the event loop.

    A router such as llm-d's endpoint picker reads the first series of a family, so those families have exactly one.
    """

    def __init__(self, states: Callable[[], Sequence[ModelState]]) -> None:
        self._states = states

    def collect(self) -> Iterable[Metric]:
        """Return one reading of the pool."""
        states = self._states()
        yield from _of_models(states)
        yield from _of_all(states)


def _of_models(states: Sequence[ModelState]) -> Iterator[Metric]:
    def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(_OURS + name, text, labels=["model", *labels])

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
        for one in Status:
            status.add_metric([model, one.value], float(state.status is one))
        waiting.add_metric([model], state.n_waiting)
        leases.add_metric([model], state.n_leases)
        if state.loaded is None:
            continue
        stats = state.loaded.stats
        loaded_at.add_metric([model], state.loaded.loaded_at)
        slots.add_metric([model], state.loaded.n_slots)
        for device, taken in state.facts.footprint.items() if state.facts is not None else ():
            memory.add_metric([model, str(device)], taken.total)
        if stats.kv_cells:
            cells.add_metric([model], stats.kv_cells)
            used.add_metric([model, "running"], stats.kv_cells_running)
            used.add_metric([model, "cached"], stats.kv_cells_cached)
            ratio.add_metric([model], stats.kv_cells_running / stats.kv_cells)
    yield from (status, memory, loaded_at, slots, waiting, leases, cells, used, ratio)


def _of_all(states: Sequence[ModelState]) -> Iterator[Metric]:
    """Yield the totals of all models."""
    loaded = [state.loaded for state in states if state.loaded is not None]
    stats = [one.stats for one in loaded]
    total = reduce(combined, stats, EngineStats())
    waiting = total.n_deferred + sum(state.n_waiting for state in states)
    yield GaugeMetricFamily(_ALL + "requests_waiting", "Requests that wait for a slot or for a load", waiting)
    yield GaugeMetricFamily(_ALL + "requests_running", "Requests with a slot", total.n_processing)
    fullest = max((one.kv_cells_running / one.kv_cells for one in stats if one.kv_cells), default=0.0)
    yield GaugeMetricFamily(
        _ALL + "kv_cache_usage_ratio",
        "Share of the KV cells that running requests hold, 0 to 1, of the fullest model",
        fullest,
    )
    info = GaugeMetricFamily(
        _ALL + "cache_config_info",
        "1; `block_size` in tokens, and the blocks of all loaded models",
        labels=["block_size", "num_gpu_blocks"],
    )
    info.add_metric([str(BLOCK), str(total.kv_cells // BLOCK)], 1)
    yield info
    n_adapters = sum(len(one.generator.adapters) for one in loaded if one.generator is not None)
    lora = GaugeMetricFamily(
        _ALL + "lora_requests_info",
        "Comma-separated LoRA adapters of running and of waiting requests; the value is the unix time of the reading",
        labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )
    if n_adapters:
        names = (",".join(sorted(one)) for one in (total.adapters_running, total.adapters_waiting))
        lora.add_metric([str(n_adapters), *names], time.time())
    yield lora
