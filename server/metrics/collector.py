"""llama-server's metrics per model (llama.cpp tools/server/server-task.cpp, to_metrics), and histograms beside them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from server.engine.stats import EngineStats, Histogram

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
        lambda s: s.predicted_seconds,
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
)
_GAUGES: tuple[tuple[str, str, _Read], ...] = (
    # llama-server calls it a counter; the text format has no counter without "_total"
    (
        "llamacpp:n_tokens_max",
        "Largest observed sequence length (prompt + generation)",
        lambda s: s.n_tokens_max,
    ),
    ("llamacpp:requests_processing", "Number of requests processing", lambda s: s.n_processing),
    ("llamacpp:requests_deferred", "Number of requests deferred", lambda s: s.n_deferred),
    (
        "llamacpp:n_busy_slots_per_decode",
        "Average number of busy slots per llama_decode() call",
        lambda s: s.n_busy_slots / max(s.n_decode, 1),
    ),
)
_SPECULATIVE = (  # part of llama-server's set; 0 until there is speculative decoding
    ("llamacpp:spec_decode_num_draft_tokens_total", "Speculative: Total draft tokens generated"),
    (
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "Speculative: Total draft tokens accepted by the target model",
    ),
    ("llamacpp:spec_decode_num_drafts_total", "Speculative: Total speculative decoding verification steps"),
)
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


@dataclass(slots=True)
class _Window:
    """The totals at the last scrape, for llama-server's averages between two scrapes."""

    tokens: float = 0
    seconds: float = 0.0

    def rate(self, tokens: float, seconds: float) -> float:
        """Tokens per second since the last call; 0 when nothing ran."""
        n, elapsed = tokens - self.tokens, seconds - self.seconds
        self.tokens, self.seconds = tokens, seconds
        return n / elapsed if elapsed > 0 else 0.0


@dataclass(slots=True)
class _Windows:
    prompt: _Window = field(default_factory=_Window)
    predicted: _Window = field(default_factory=_Window)


class EngineCollector(Collector):
    """Every model's totals as metric families, with the label ``model``."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._windows: dict[str, _Windows] = {}

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry would otherwise collect once to find the names."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One consistent reading of every model."""
        models = self._totals()
        for name, text, read in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["model"])
            for model, stats in models.items():
                counter.add_metric([model], read(stats))
            yield counter
        for name, text in _SPECULATIVE:
            counter = CounterMetricFamily(name, text, labels=["model"])
            for model in models:
                counter.add_metric([model], 0)
            yield counter
        for name, text, read in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["model"])
            for model, stats in models.items():
                gauge.add_metric([model], read(stats))
            yield gauge
        yield from self._rates(models)
        for name, text, histogram_of in _HISTOGRAMS:
            family = HistogramMetricFamily(name, text, labels=["model"])
            for model, stats in models.items():
                histogram = histogram_of(stats)
                family.add_metric([model], buckets(histogram), histogram.sum)
            yield family

    def _rates(self, models: Mapping[str, EngineStats]) -> Iterable[Metric]:
        prompt = GaugeMetricFamily(
            "llamacpp:prompt_tokens_seconds", "Average prompt throughput in tokens/s", labels=["model"]
        )
        predicted = GaugeMetricFamily(
            "llamacpp:predicted_tokens_seconds", "Average generation throughput in tokens/s", labels=["model"]
        )
        for model, stats in models.items():
            windows = self._windows.setdefault(model, _Windows())
            prompt.add_metric([model], windows.prompt.rate(stats.prompt_tokens, stats.prompt_seconds))
            predicted.add_metric([model], windows.predicted.rate(stats.predicted_tokens, stats.predicted_seconds))
        return prompt, predicted


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, as the text format wants them."""
    cumulative = 0
    result = []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        cumulative += count
        result.append((bound, float(cumulative)))
    return result
