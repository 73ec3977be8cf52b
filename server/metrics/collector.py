"""llama-server's metrics (llama.cpp tools/server/server-task.cpp, to_metrics), the same per model, and more."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from server.engine.stats import EngineStats, Histogram, combined
from server.metrics.windows import Windows

_THEIRS, _OURS = "llamacpp:", "llamapool_"
MAX_TOKENS = "n_tokens_max"
MAX_TOKENS_NAMES = (_THEIRS + MAX_TOKENS, _OURS + MAX_TOKENS)
Totals = Callable[[], Mapping[str, EngineStats]]
_Read = Callable[[EngineStats], float]

_COUNTERS: tuple[tuple[str, str, _Read], ...] = (
    (
        "prompt_tokens_total",
        "Number of prompt tokens processed, excluding cached tokens",
        lambda s: s.prompt_tokens,
    ),
    (
        "prompt_tokens_cached_total",
        "Number of prompt tokens reused from the cache",
        lambda s: s.prompt_tokens_cached,
    ),
    ("prompt_seconds_total", "Total time spent processing prompts", lambda s: s.prompt_seconds),
    (
        "tokens_predicted_total",
        "Number of generation tokens processed",
        lambda s: s.predicted_tokens,
    ),
    (
        "tokens_predicted_seconds_total",
        "Total time spent generating tokens",
        lambda s: s.inter_token.sum,  # the gaps between tokens, counted with each token and not at a request's end
    ),
    (
        "n_decode_total",
        "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding",
        lambda s: s.n_decode,
    ),
    (
        "spec_decode_num_draft_tokens_total",
        "Speculative: Total draft tokens generated",
        lambda s: s.n_draft_tokens,
    ),
    (
        "spec_decode_num_accepted_tokens_total",
        "Speculative: Total draft tokens accepted by the target model",
        lambda s: s.n_draft_accepted,
    ),
    (
        "spec_decode_num_drafts_total",
        "Speculative: Total speculative decoding verification steps",
        lambda s: s.n_drafts,
    ),
)
_GAUGES: tuple[tuple[str, str, _Read], ...] = (
    (
        MAX_TOKENS,
        "Largest observed sequence length (prompt + generation)",
        lambda s: s.n_tokens_max,
    ),
    ("requests_processing", "Number of requests processing", lambda s: s.n_processing),
    ("requests_deferred", "Number of requests deferred", lambda s: s.n_deferred),
    (
        "n_busy_slots_per_decode",
        "Average number of busy slots per llama_decode() call",
        lambda s: s.n_busy_slots / max(s.n_decode, 1),
    ),
)
_RATES = (
    ("prompt_tokens_seconds", "Average prompt throughput in tokens/s"),
    ("predicted_tokens_seconds", "Average generation throughput in tokens/s"),
)
_BY_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
_OWN_COUNTERS: tuple[tuple[str, str, _Read], ...] = (
    (
        "model_restarts_total",
        "Number of times that a model's own process (isolation) ended and was started again",
        lambda s: s.n_restarts,
    ),
    (
        "preempted_requests_total",
        "Number of times a running request was preempted, to be resumed later",
        lambda s: s.n_preempted,
    ),
    ("parked_requests_total", "Deprecated name of preempted_requests_total", lambda s: s.n_preempted),
    (
        "cache_ram_hits_total",
        "Number of prompts whose cached KV state was loaded from RAM (cache_ram) instead of being computed",
        lambda s: s.n_ram_hits,
    ),
    (
        "cache_refused_total",
        "Number of KV states that were not cached because saving them would have blocked others for more than a step",
        lambda s: s.n_cache_refused,
    ),
    (
        "cache_disk_hits_total",
        "Number of KV states that were read from disk (cache_disk)",
        lambda s: s.n_disk_hits,
    ),
    (
        "cache_disk_dropped_total",
        "Number of files on disk that were deleted because their contents had changed",
        lambda s: s.n_disk_dropped,
    ),
    (
        "checkpoints_total",
        "Number of checkpoints of slots whose memory cannot be truncated",
        lambda s: s.n_checkpoints,
    ),
    (
        "checkpoint_hits_total",
        "Number of prompts that continued from a checkpoint",
        lambda s: s.n_checkpoint_hits,
    ),
    ("media_encoded_total", "Number of images and audio segments that were encoded", lambda s: s.n_media_encoded),
    ("media_cache_hits_total", "Number of media whose embeddings were cached", lambda s: s.n_media_hits),
)
_OWN_GAUGES: tuple[tuple[str, str, _Read], ...] = (
    (
        "cache_ram_bytes",
        "Bytes of KV states, preempted requests and checkpoints in RAM (cache_ram)",
        lambda s: s.cache_ram_bytes,
    ),
    ("cache_ram_states", "Number of KV states in RAM", lambda s: s.cache_ram_states),
    ("cache_disk_bytes", "Bytes of KV states on disk (cache_disk)", lambda s: s.cache_disk_bytes),
    ("media_cache_bytes", "Bytes of embeddings of media, in RAM and on disk", lambda s: s.media_cache_bytes),
    ("cache_disk_states", "Number of KV states on disk", lambda s: s.cache_disk_states),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[EngineStats], Histogram]], ...] = (
    (
        "time_to_first_token_seconds",
        "From a request's arrival to its first token",
        lambda s: s.time_to_first_token,
    ),
    ("inter_token_latency_seconds", "Between two tokens of a choice", lambda s: s.inter_token),
    ("queue_time_seconds", "From a request's arrival to its slot", lambda s: s.queue_time),
    ("request_duration_seconds", "From a request's arrival to its end", lambda s: s.request_duration),
)


class EngineCollector(Collector):
    """llama-server's metrics of all models together, without labels; the same for each, and more, under ``llamapool_``.

    Not `labelled`, for one model alone: its own as llama-server's, and the rest without a label.
    """

    def __init__(self, totals: Totals, windows: Windows, *, labelled: bool = True) -> None:
        self._totals = totals
        self._windows = windows
        self._labelled = labelled

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry would otherwise collect once to find the names."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One consistent reading of every model."""
        models = self._totals()
        if self._labelled:
            together = {"": reduce(combined, models.values(), EngineStats())}
            yield from _Families(_THEIRS, together, []).llama_servers(self._windows)
            ours = _Families(_OURS, models, ["model"])
            yield from ours.llama_servers(self._windows)
        else:
            yield from _Families(_THEIRS, models, []).llama_servers(self._windows)
            ours = _Families(_OURS, models, [])
        yield from ours.own()


@dataclass(frozen=True, slots=True)
class _Families:
    """Metric families under `prefix` with one sample per model of `models`. Without labels there is only one sample."""

    prefix: str
    models: Mapping[str, EngineStats]
    labels: list[str]

    def llama_servers(self, windows: Windows) -> Iterator[Metric]:
        for name, text, read in _COUNTERS:
            yield self._family(CounterMetricFamily, name, text, {m: read(s) for m, s in self.models.items()})
        yield from self._accepted_by_position()
        for name, text, read in _GAUGES:
            yield self._family(GaugeMetricFamily, name, text, {m: read(s) for m, s in self.models.items()})
        rates = {model: windows.rates(model, stats) for model, stats in self.models.items()}
        for index, (name, text) in enumerate(_RATES):
            yield self._family(GaugeMetricFamily, name, text, {m: r[index] for m, r in rates.items()})

    def own(self) -> Iterator[Metric]:
        for name, text, read in _OWN_COUNTERS:
            yield self._family(CounterMetricFamily, name, text, {m: read(s) for m, s in self.models.items()})
        for name, text, read in _OWN_GAUGES:
            yield self._family(GaugeMetricFamily, name, text, {m: read(s) for m, s in self.models.items()})
        for name, text, histogram_of in _HISTOGRAMS:
            family = HistogramMetricFamily(self.prefix + name, text, labels=self.labels)
            for model, stats in self.models.items():
                histogram = histogram_of(stats)
                family.add_metric(self._values(model), buckets(histogram), histogram.sum)
            yield family

    def _accepted_by_position(self) -> Iterator[Metric]:
        """Nothing before the first draft, as in llama-server."""
        if not any(stats.accepted_at for stats in self.models.values()):
            return
        text = "Accepted tokens per draft position"
        family = CounterMetricFamily(self.prefix + _BY_POSITION, text, labels=[*self.labels, "position"])
        for model, stats in self.models.items():
            for position, n in enumerate(stats.accepted_at):
                family.add_metric([*self._values(model), str(position)], n)
        yield family

    def _family(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        text: str,
        values: Mapping[str, float],
    ) -> Metric:
        family = kind(self.prefix + name, text, labels=self.labels)
        for model, value in values.items():
            family.add_metric(self._values(model), value)
        return family

    def _values(self, model: str) -> list[str]:
        return [model] if self.labels else []


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, as the text format wants them."""
    cumulative = 0
    result = []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        cumulative += count
        result.append((bound, float(cumulative)))
    return result
