"""llama-server's metrics (llama.cpp tools/server/server-task.cpp, to_metrics), the same per model, and more."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from server.engine.stats import EngineStats, combined
from server.metrics.windows import Windows

_THEIRS, _OURS = "llamacpp:", "llamapool_"
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
    ("model_restarts_total", "Number of times that a model's process (isolation) was restarted", "n_restarts"),
    ("preempted_requests_total", "Number of times a running request was preempted, to be resumed later", "n_preempted"),
    ("parked_requests_total", "Deprecated name of preempted_requests_total", "n_preempted"),
    ("cache_ram_hits_total", "Number of prompts whose KV state was loaded from RAM (cache_ram)", "n_ram_hits"),
    (
        "cache_refused_total",
        "Number of KV states that were not cached because saving them would have blocked others for more than a step",
        "n_cache_refused",
    ),
    ("cache_disk_hits_total", "Number of KV states that were read from disk (cache_disk)", "n_disk_hits"),
    ("cache_disk_dropped_total", "Number of files on disk that were deleted because they changed", "n_disk_dropped"),
    ("checkpoints_total", "Number of checkpoints of slots whose memory cannot be truncated", "n_checkpoints"),
    ("checkpoint_hits_total", "Number of prompts that continued from a checkpoint", "n_checkpoint_hits"),
    ("media_encoded_total", "Number of images and audio segments that were encoded", "n_media_encoded"),
    ("media_cache_hits_total", "Number of media whose embeddings were cached", "n_media_hits"),
)
_OWN_GAUGES: _Table = (
    ("cache_ram_bytes", "Bytes of KV states, preempted requests and checkpoints in RAM (cache_ram)", "cache_ram_bytes"),
    ("cache_ram_states", "Number of KV states in RAM", "cache_ram_states"),
    ("cache_disk_bytes", "Bytes of KV states on disk (cache_disk)", "cache_disk_bytes"),
    ("media_cache_bytes", "Bytes of embeddings of media, in RAM and on disk", "media_cache_bytes"),
    ("cache_disk_states", "Number of KV states on disk", "cache_disk_states"),
)
_HISTOGRAMS: _Table = (
    ("time_to_first_token_seconds", "From a request's arrival to its first token", "time_to_first_token"),
    ("inter_token_latency_seconds", "Between two tokens of a choice", "inter_token"),
    ("queue_time_seconds", "From a request's arrival to its slot", "queue_time"),
    ("request_duration_seconds", "From a request's arrival to its end", "request_duration"),
)


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
        """One consistent reading of every model."""
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
