"""Counters and histograms of one model's engine: plain numbers that `server.metrics` reads from another thread."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import zip_longest
from typing import Any, ClassVar

MAX_TOKENS = "n_tokens_max"
"""The only peak value. Unlike other gauges it remains after the engine has ended."""
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(slots=True)
class Histogram:
    """Counts per upper bound in seconds (the last count is +Inf), and the sum in seconds."""

    bounds: ClassVar[tuple[float, ...]] = SECONDS
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    sum: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


def _value(kind: str, metric: str = "", text: str = "", *, theirs: bool = False, make: Callable[[], Any] = int) -> Any:
    """Return a field that is published as `metric` with the help `text`; "" = not published.

    `theirs`: llama-server has this metric. `make` returns its first value, for a gauge also that of an engine that has
    ended.
    """
    about = {"kind": kind, "metric": metric, "text": text, "theirs": theirs}
    return field(default_factory=make, metadata=about)


_count = partial(_value, "counter")
_theirs = partial(_value, "counter", theirs=True)
_gauge = partial(_value, "gauge")
_histogram = partial(_value, "histogram", make=Histogram)


@dataclass(slots=True)
class EngineStats:
    """Totals since the model was loaded, as in llama-server's ``server_metrics`` (tools/server/server-context.cpp).

    `server.metrics.collector` publishes them under the metric names given here.
    """

    prompt_tokens: int = _theirs("prompt_tokens_total", "Number of prompt tokens processed, excluding cached tokens")
    prompt_tokens_cached: int = _theirs("prompt_tokens_cached_total", "Number of prompt tokens reused from the cache")
    prompt_seconds: float = _theirs("prompt_seconds_total", "Total time spent processing prompts")
    predicted_tokens: int = _theirs("tokens_predicted_total", "Number of generation tokens processed")
    n_decode: int = _theirs(
        "n_decode_total", "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding"
    )
    n_busy_slots: int = 0  # summed over decodes
    n_draft_tokens: int = _theirs("spec_decode_num_draft_tokens_total", "Speculative: Total draft tokens generated")
    n_draft_accepted: int = _theirs(
        "spec_decode_num_accepted_tokens_total", "Speculative: Total draft tokens accepted by the target model"
    )
    n_drafts: int = _theirs(
        "spec_decode_num_drafts_total", "Speculative: Total speculative decoding verification steps"
    )
    accepted_at: list[int] = field(default_factory=list)  # number of drafts whose token at this position was accepted
    n_tokens_max: int = _gauge(MAX_TOKENS, "Largest observed sequence length (prompt + generation)", theirs=True)
    n_processing: int = _gauge("requests_processing", "Number of requests processing", theirs=True)  # choices
    n_deferred: int = _gauge("requests_deferred", "Number of requests deferred", theirs=True)
    n_restarts: int = _count("model_restarts_total", "Restarts of the process of a model with `isolation: process`")
    n_preempted: int = _count("preempted_requests_total", "Preemptions of running requests, which resume later")
    n_ram_hits: int = _count("cache_ram_hits_total", "Prompts whose KV state was loaded from RAM (`cache_ram`)")
    n_cache_refused: int = _count(
        "cache_refused_total",
        "KV states that were not cached because saving would have delayed other requests",
    )
    n_disk_hits: int = _count("cache_disk_hits_total", "KV states that were read from disk (`cache_disk`)")
    n_slot_evictions: int = _count(  # of prefixes that no other slot or entry has
        "cache_slot_evictions_total",
        "Cached prefixes that idle slots lost to other prompts, also those that were saved",
    )
    n_ram_evictions: int = _count(
        "cache_ram_evictions_total", "KV states that left RAM for others, to disk if there is one"
    )
    n_disk_evictions: int = _count("cache_disk_evictions_total", "KV states that were deleted from disk for others")
    n_disk_dropped: int = _count("cache_disk_dropped_total", "Damaged files on disk that were deleted")
    n_checkpoints: int = _count("checkpoints_total", "Checkpoints of models whose KV cache cannot be truncated")
    n_checkpoint_hits: int = _count("checkpoint_hits_total", "Prompts that continued from a checkpoint")
    n_media_encoded: int = _count("media_encoded_total", "Images and audio segments that were encoded")
    n_media_hits: int = _count("media_cache_hits_total", "Images and audio segments whose embeddings were cached")
    cache_ram_bytes: int = _gauge(
        "cache_ram_bytes", "KV states, preempted requests and checkpoints in RAM (`cache_ram`)"
    )
    cache_ram_states: int = _gauge("cache_ram_states", "KV states in RAM")
    cache_disk_bytes: int = _gauge("cache_disk_bytes", "KV states on disk (`cache_disk`)")
    media_cache_bytes: int = _gauge("media_cache_bytes", "Embeddings of images and audio, in RAM and on disk")
    cache_disk_states: int = _gauge("cache_disk_states", "KV states on disk")
    kv_cells: int = _gauge()  # total
    kv_cells_running: int = _gauge()  # held by running requests
    kv_cells_cached: int = _gauge()  # held by idle caches
    adapters_running: frozenset[str] = _gauge(make=frozenset)  # names of LoRA adapters of running requests
    adapters_waiting: frozenset[str] = _gauge(make=frozenset)
    time_to_first_token: Histogram = _histogram(
        "time_to_first_token_seconds", "From a request's arrival at the engine to its first token"
    )
    inter_token: Histogram = _histogram("inter_token_latency_seconds", "Between two tokens of a choice")
    queue_time: Histogram = _histogram(
        "queue_time_seconds", "From a request's arrival at the engine to its slot, or its end without one"
    )
    request_duration: Histogram = _histogram(
        "request_duration_seconds", "From a request's arrival at the engine to its end"
    )

    def add_decode(self, n_busy: int, longest: int, n_prompt: int, seconds: float) -> None:
        """Count a decode as llama-server does (tools/server/server-context.cpp, metrics_post_decode).

        `n_busy` slots had a request; `longest` is the token count of the longest sequence. A decode with prefill
        tokens counts as prefill time.
        """
        self.n_decode += 1
        self.n_busy_slots += n_busy
        self.n_tokens_max = max(self.n_tokens_max, longest)
        if n_prompt:
            self.prompt_tokens += n_prompt
            self.prompt_seconds += seconds

    def add_draft(self, n_drafted: int, n_accepted: int) -> None:
        """Count a draft of `n_drafted` tokens of which the first `n_accepted` were accepted."""
        self.n_drafts += 1
        self.n_draft_tokens += n_drafted
        self.n_draft_accepted += n_accepted
        self.accepted_at += [0] * (n_drafted - len(self.accepted_at))
        for position in range(n_accepted):
            self.accepted_at[position] += 1


def combined(one: EngineStats, other: EngineStats) -> EngineStats:
    """Return the sum of two stats as a new value; for the peak the larger one."""
    return EngineStats(
        **{f.name: _sum(f.name, getattr(one, f.name), getattr(other, f.name)) for f in fields(EngineStats)}
    )


def ended(stats: EngineStats) -> EngineStats:
    """Return the totals of an engine that no longer runs: gauges are 0."""
    new = EngineStats()
    gauges = [f.name for f in fields(stats) if f.metadata.get("kind") == "gauge" and f.name != MAX_TOKENS]
    return replace(stats, **{name: getattr(new, name) for name in gauges})


def _sum(name: str, one: Any, other: Any) -> Any:
    if isinstance(one, Histogram):
        counts = [a + b for a, b in zip(one.counts, other.counts, strict=True)]
        return Histogram(counts, one.sum + other.sum)
    if isinstance(one, list):
        return [a + b for a, b in zip_longest(one, other, fillvalue=0)]
    if isinstance(one, frozenset):
        return one | other
    return max(one, other) if name == MAX_TOKENS else one + other
