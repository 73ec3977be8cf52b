"""Counters and histograms of one model's engine: plain numbers, read by `server.metrics` from another thread."""

from bisect import bisect_left
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import Any, ClassVar

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(slots=True)
class Histogram:
    """Counts per upper bound in seconds (the last count is +Inf), and the sum."""

    bounds: ClassVar[tuple[float, ...]] = SECONDS
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    sum: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


def _gauge(nothing: Any = 0) -> Any:
    """A field that says what is now; `nothing` of an engine that has ended."""
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
    n_processing: int = _gauge()  # requests that hold a slot
    n_deferred: int = _gauge()  # requests that wait for one
    n_drafts: int = 0  # times that tokens were guessed
    n_draft_tokens: int = 0
    n_draft_accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)  # drafts of which so many tokens and one more were right
    n_restarts: int = 0  # times that the model's own process was started again
    n_parked: int = 0  # requests that were moved out of the KV cache and resumed later
    cache_ram_bytes: int = _gauge()  # of prompt states that have no slot, of parked requests, and of checkpoints
    cache_ram_states: int = _gauge()
    n_ram_hits: int = 0  # times that one of them was loaded instead of computed
    n_cache_refused: int = 0  # times that one was lost because saving it would have held others up
    cache_disk_bytes: int = _gauge()
    cache_disk_states: int = _gauge()
    n_disk_hits: int = 0
    n_disk_dropped: int = 0  # files that were not what was written
    n_checkpoints: int = 0  # made, inside of slots whose memory can't be cut
    n_checkpoint_hits: int = 0  # times that a prompt went on from one
    n_media_encoded: int = 0  # images and pieces of audio
    n_media_hits: int = 0  # times that embeddings were there already
    media_cache_bytes: int = _gauge()  # of embeddings, in RAM and on disk
    kv_cells: int = _gauge()  # all there are
    kv_cells_running: int = _gauge()  # that requests with a slot hold
    kv_cells_cached: int = _gauge()  # that hold what may be reused
    adapters_running: frozenset[str] = _gauge(frozenset())  # names of LoRA adapters that requests with a slot use
    adapters_waiting: frozenset[str] = _gauge(frozenset())
    time_to_first_token: Histogram = field(default_factory=Histogram)
    inter_token: Histogram = field(default_factory=Histogram)
    queue_time: Histogram = field(default_factory=Histogram)
    request_duration: Histogram = field(default_factory=Histogram)

    def add_decode(self, n_busy: int, longest: int, n_prompt: int, seconds: float) -> None:
        """Count a decode as llama-server does (tools/server/server-context.cpp, metrics_post_decode).

        `n_busy` slots had a request, the longest sequence has `longest` tokens now; with prompt tokens in the decode
        its time is the prompts'.
        """
        self.n_decode += 1
        self.n_busy_slots += n_busy
        self.n_tokens_max = max(self.n_tokens_max, longest)
        if n_prompt:
            self.prompt_tokens += n_prompt
            self.prompt_seconds += seconds

    def add_draft(self, n_guessed: int, n_right: int) -> None:
        """Count a draft of `n_guessed` tokens of which the first `n_right` were sampled, too."""
        self.n_drafts += 1
        self.n_draft_tokens += n_guessed
        self.n_draft_accepted += n_right
        self.accepted_at += [0] * (n_guessed - len(self.accepted_at))
        for position in range(n_right):
            self.accepted_at[position] += 1


def combined(one: EngineStats, other: EngineStats) -> EngineStats:
    """The sum of two: a new value; of the peak the larger."""
    return EngineStats(
        **{f.name: _sum(f.name, getattr(one, f.name), getattr(other, f.name)) for f in fields(EngineStats)}
    )


def ended(stats: EngineStats) -> EngineStats:
    """What remains of an engine's totals when it no longer runs: its gauges are 0."""
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
