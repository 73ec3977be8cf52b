"""Metrics of the whole server: the states and cells of its models, and unlabelled series for routers.

A router such as llm-d's endpoint picker reads the first series of a family, so these families have exactly one.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.engine.prefix_cache import BLOCK
from server.engine.stats import EngineStats, combined
from server.pool.state import ModelState, Status

_OURS, _ALL = "llamapool_", "llamapool_server_"


class ServerCollector(Collector):
    """Collects from `states`. Use on the event loop."""

    def __init__(self, states: Callable[[], Sequence[ModelState]]) -> None:
        self._states = states

    def collect(self) -> Iterable[Metric]:
        """One reading of the pool."""
        states = self._states()
        yield from _of_models(states)
        yield from _of_all(states)


def _of_models(states: Sequence[ModelState]) -> Iterator[Metric]:
    def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(_OURS + name, text, labels=["model", *labels])

    status = gauge("model_status", "1 for the state that a model is in, 0 for the others", "status")
    memory = gauge("model_memory_bytes", "Bytes that a model takes, by device", "device")
    loaded_at = gauge("model_loaded_seconds", "Unix time of a model's load")
    slots = gauge("slots", "Slots of a loaded model, of all its instances")
    waiting = gauge("model_waiting_requests", "Requests that wait for a model to be loaded")
    leases = gauge("model_leases", "Requests that hold a model in memory")
    cells = gauge("kv_cells", "KV cells (tokens) of a loaded model")
    used = gauge("kv_cells_used", "KV cells that running requests hold (running) or caches hold (cached)", "by")
    ratio = gauge("kv_cache_usage_ratio", "Part of a model's KV cells that running requests hold, 0 to 1")
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
    """One series each."""
    loaded = [state.loaded for state in states if state.loaded is not None]
    stats = [one.stats for one in loaded]
    total = reduce(combined, stats, EngineStats())
    waiting = total.n_deferred + sum(state.n_waiting for state in states)
    yield GaugeMetricFamily(
        _ALL + "requests_waiting", "Requests that wait for a slot or for a model's load, of all models", waiting
    )
    yield GaugeMetricFamily(_ALL + "requests_running", "Requests that hold a slot, of all models", total.n_processing)
    fullest = max((one.kv_cells_running / one.kv_cells for one in stats if one.kv_cells), default=0.0)
    yield GaugeMetricFamily(
        _ALL + "kv_cache_usage_ratio",
        "Part of the KV cells that running requests hold, 0 to 1: the fullest model's",
        fullest,
    )
    info = GaugeMetricFamily(
        _ALL + "cache_config_info",
        "Tokens of a block as the prefix search and KV events count them, and such blocks of all loaded models",
        labels=["block_size", "num_gpu_blocks"],
    )
    info.add_metric([str(BLOCK), str(total.kv_cells // BLOCK)], 1)
    yield info
    n_adapters = sum(len(one.generator.adapters) for one in loaded if one.generator is not None)
    lora = GaugeMetricFamily(
        _ALL + "lora_requests_info",
        "LoRA adapters of running and of waiting requests; the value is the unix time of this reading",
        labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )
    if n_adapters:
        names = (",".join(sorted(one)) for one in (total.adapters_running, total.adapters_waiting))
        lora.add_metric([str(n_adapters), *names], time.time())
    yield lora
