"""llama-server's metrics per model (llama.cpp tools/server/server-task.cpp, to_metrics), and histograms beside them."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from server.engine.stats import EngineStats, Histogram
from server.metrics.windows import Windows

MAX_TOKENS = "llamacpp:n_tokens_max"
Totals = Callable[[], Mapping[str, EngineStats]]
_Read = Callable[[EngineStats], float]

_COUNTERS: tuple[tuple[str, str, _Read], ...] = (
    (
        "llamacpp:prompt_tokens_total",
        "Number of prompt tokens processed, excluding cached tokens",
        lambda s: s.prompt_tokens,
    ),
    (
        "llamacpp:prompt_tokens_cached_total",
        "Number of prompt tokens reused from the cache",
        lambda s: s.prompt_tokens_cached,
    ),
    ("llamacpp:prompt_seconds_total", "Total time spent processing prompts", lambda s: s.prompt_seconds),
    (
        "llamacpp:tokens_predicted_total",
        "Number of generation tokens processed",
        lambda s: s.predicted_tokens,
    ),
    (
        "llamacpp:tokens_predicted_seconds_total",
        "Total time spent generating tokens",
        lambda s: s.inter_token.sum,  # the gaps between tokens, counted with each token and not at a request's end
    ),
    (
        "llamacpp:n_decode_total",
        "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding",
        lambda s: s.n_decode,
    ),
    (
        "llamapool_parked_requests_total",
        "Number of times a running request was moved out of the KV cache to be resumed later",
        lambda s: s.n_parked,
    ),
    (
        "llamapool_cache_ram_hits_total",
        "Number of times a prompt's state came back from RAM (cache_ram) instead of being computed",
        lambda s: s.n_ram_hits,
    ),
    (
        "llamapool_cache_refused_total",
        "Number of prompt states that were not kept because saving them would have held up others for more than a step",
        lambda s: s.n_cache_refused,
    ),
    (
        "llamapool_cache_disk_hits_total",
        "Number of prompt states that were read from disk (cache_disk)",
        lambda s: s.n_disk_hits,
    ),
    (
        "llamapool_cache_disk_dropped_total",
        "Number of files on disk that were dropped because they were not what was written",
        lambda s: s.n_disk_dropped,
    ),
    (
        "llamapool_checkpoints_total",
        "Number of checkpoints made in slots whose memory can't be cut",
        lambda s: s.n_checkpoints,
    ),
    (
        "llamapool_checkpoint_hits_total",
        "Number of times a prompt went on from a checkpoint",
        lambda s: s.n_checkpoint_hits,
    ),
)
_GAUGES: tuple[tuple[str, str, _Read], ...] = (
    (
        MAX_TOKENS,
        "Largest observed sequence length (prompt + generation)",
        lambda s: s.n_tokens_max,
    ),
    ("llamapool_cache_ram_bytes", "Bytes of prompt states in RAM (cache_ram)", lambda s: s.cache_ram_bytes),
    ("llamapool_cache_ram_states", "Number of prompt states in RAM", lambda s: s.cache_ram_states),
    ("llamapool_cache_disk_bytes", "Bytes of prompt states on disk (cache_disk)", lambda s: s.cache_disk_bytes),
    ("llamapool_cache_disk_states", "Number of prompt states on disk", lambda s: s.cache_disk_states),
    ("llamacpp:requests_processing", "Number of requests processing", lambda s: s.n_processing),
    ("llamacpp:requests_deferred", "Number of requests deferred", lambda s: s.n_deferred),
    (
        "llamacpp:n_busy_slots_per_decode",
        "Average number of busy slots per llama_decode() call",
        lambda s: s.n_busy_slots / max(s.n_decode, 1),
    ),
)
_RATES = (
    ("llamacpp:prompt_tokens_seconds", "Average prompt throughput in tokens/s"),
    ("llamacpp:predicted_tokens_seconds", "Average generation throughput in tokens/s"),
)
_SPECULATIVE: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    (
        "llamacpp:spec_decode_num_draft_tokens_total",
        "Speculative: Total draft tokens generated",
        lambda s: s.n_draft_tokens,
    ),
    (
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "Speculative: Total draft tokens accepted by the target model",
        lambda s: s.n_draft_accepted,
    ),
    (
        "llamacpp:spec_decode_num_drafts_total",
        "Speculative: Total speculative decoding verification steps",
        lambda s: s.n_drafts,
    ),
)
_BY_POSITION = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
_HISTOGRAMS: tuple[tuple[str, str, Callable[[EngineStats], Histogram]], ...] = (
    (
        "llamapool_time_to_first_token_seconds",
        "From a request's arrival to its first token",
        lambda s: s.time_to_first_token,
    ),
    ("llamapool_inter_token_latency_seconds", "Between two tokens of a choice", lambda s: s.inter_token),
    ("llamapool_queue_time_seconds", "From a request's arrival to its slot", lambda s: s.queue_time),
    ("llamapool_request_duration_seconds", "From a request's arrival to its end", lambda s: s.request_duration),
)


class EngineCollector(Collector):
    """Every model's totals as metric families, with the label ``model`` unless there is only one to show.

    Each scrape ends the windows that the throughput gauges are averages of, whoever scrapes, as in llama-server.
    """

    def __init__(self, totals: Totals, windows: Windows, *, labelled: bool = True) -> None:
        self._totals = totals
        self._windows = windows
        self._labels = ["model"] if labelled else []

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry would otherwise collect once to find the names."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One consistent reading of every model."""
        models = self._totals()
        for name, text, read in (*_COUNTERS, *_SPECULATIVE):
            yield self._family(CounterMetricFamily, name, text, {m: read(s) for m, s in models.items()})
        yield from self._accepted_by_position(models)
        for name, text, read in _GAUGES:
            yield self._family(GaugeMetricFamily, name, text, {m: read(s) for m, s in models.items()})
        rates = {model: self._windows.rates(model, stats) for model, stats in models.items()}
        for index, (name, text) in enumerate(_RATES):
            yield self._family(GaugeMetricFamily, name, text, {m: r[index] for m, r in rates.items()})
        for name, text, histogram_of in _HISTOGRAMS:
            family = HistogramMetricFamily(name, text, labels=self._labels)
            for model, stats in models.items():
                histogram = histogram_of(stats)
                family.add_metric(self._values(model), buckets(histogram), histogram.sum)
            yield family

    def _accepted_by_position(self, models: Mapping[str, EngineStats]) -> Iterator[Metric]:
        """Nothing before the first draft, as in llama-server."""
        if not any(stats.accepted_at for stats in models.values()):
            return
        text = "Accepted tokens per draft position"
        family = CounterMetricFamily(_BY_POSITION, text, labels=[*self._labels, "position"])
        for model, stats in models.items():
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
        family = kind(name, text, labels=self._labels)
        for model, value in values.items():
            family.add_metric(self._values(model), value)
        return family

    def _values(self, model: str) -> list[str]:
        return [model] if self._labels else []


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, as the text format wants them."""
    cumulative = 0
    result = []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        cumulative += count
        result.append((bound, float(cumulative)))
    return result
