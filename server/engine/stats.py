"""Counters and histograms of one model's engine: plain numbers that `server.metrics` reads from another thread."""

from bisect import bisect_left
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import Any, ClassVar

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


def _gauge(nothing: Any = 0) -> Any:
    """Return a field that holds a current value; `nothing` is its value for an engine that has ended."""
    return field(default=nothing, metadata={"gauge": True})


@dataclass(slots=True)
class EngineStats:
    """Totals since the model was loaded, as llama-server's ``server_metrics`` (tools/server/server-context.cpp)."""

    prompt_tokens: int = 0  # computed, not cached
    prompt_tokens_cached: int = 0
    prompt_seconds: float = 0.0
    predicted_tokens: int = 0
    predicted_seconds: float = 0.0
    n_decode: int = 0
    n_busy_slots: int = 0  # summed over decodes
    n_tokens_max: int = 0
    n_processing: int = _gauge()  # choices that hold a slot
    n_deferred: int = _gauge()  # choices that wait for a slot
    n_drafts: int = 0  # drafts that were verified
    n_draft_tokens: int = 0
    n_draft_accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)  # number of drafts whose token at this position was accepted
    n_restarts: int = 0  # restarts of the model's worker process
    n_preempted: int = 0  # requests that were preempted
    cache_ram_bytes: int = _gauge()  # RAM tier: offloaded states, preempted requests, checkpoints
    cache_ram_states: int = _gauge()
    n_ram_hits: int = 0  # loads from the RAM tier
    n_slot_evictions: int = 0  # prefixes that slots lost, saved or not, and that no other slot or entry has
    n_ram_evictions: int = 0
    n_disk_evictions: int = 0
    n_cache_refused: int = 0  # states dropped because saving them would have stalled other requests
    cache_disk_bytes: int = _gauge()
    cache_disk_states: int = _gauge()
    n_disk_hits: int = 0
    n_disk_dropped: int = 0  # damaged files
    n_checkpoints: int = 0  # checkpoints created
    n_checkpoint_hits: int = 0  # prompts resumed from a checkpoint
    n_media_encoded: int = 0  # images and audio chunks encoded
    n_media_hits: int = 0  # embeddings found in a cache
    media_cache_bytes: int = _gauge()  # bytes of embeddings, in RAM and on disk
    kv_cells: int = _gauge()  # total
    kv_cells_running: int = _gauge()  # held by running requests
    kv_cells_cached: int = _gauge()  # held by idle caches
    adapters_running: frozenset[str] = _gauge(frozenset())  # names of LoRA adapters of running requests
    adapters_waiting: frozenset[str] = _gauge(frozenset())
    time_to_first_token: Histogram = field(default_factory=Histogram)
    inter_token: Histogram = field(default_factory=Histogram)
    queue_time: Histogram = field(default_factory=Histogram)
    request_duration: Histogram = field(default_factory=Histogram)

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

    def add_draft(self, n_drafted: int, n_right: int) -> None:
        """Count a draft of `n_drafted` tokens of which the first `n_right` were accepted."""
        self.n_drafts += 1
        self.n_draft_tokens += n_drafted
        self.n_draft_accepted += n_right
        self.accepted_at += [0] * (n_drafted - len(self.accepted_at))
        for position in range(n_right):
            self.accepted_at[position] += 1


def combined(one: EngineStats, other: EngineStats) -> EngineStats:
    """Return the sum of two stats as a new value; for the peak the larger one."""
    return EngineStats(
        **{f.name: _sum(f.name, getattr(one, f.name), getattr(other, f.name)) for f in fields(EngineStats)}
    )


def ended(stats: EngineStats) -> EngineStats:
    """Return the totals of an engine that no longer runs: gauges are 0."""
    nothing: dict[str, Any] = {f.name: f.default for f in fields(stats) if f.metadata}
    return replace(stats, **nothing)


def _sum(name: str, one: Any, other: Any) -> Any:
    if isinstance(one, Histogram):
        counts = [a + b for a, b in zip(one.counts, other.counts, strict=True)]
        return Histogram(counts, one.sum + other.sum)
    if isinstance(one, list):
        return [a + b for a, b in zip_longest(one, other, fillvalue=0)]
    if isinstance(one, frozenset):
        return one | other
    return max(one, other) if name == "n_tokens_max" else one + other
