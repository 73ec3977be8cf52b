"""Eviction priority of caches, and the predicted cost of moving a state out of cells and back, compared with
recomputing. Pure; times are arguments.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # import cycle with `sequence`
    from server.engine.sequence import Slot

NEGLIGIBLE_S = 0.005  # faster moves are always made
ASSUMED_RATE = 500e6  # bytes per second out of the cells before the first measurement: a slow machine
MAX_RATE = 16e9  # upper bound of the assumption
ASSUMED_BYTES = 128 << 10  # KV bytes per token before the first measurement: an 8 B model
MIN_SAMPLE_TOKENS = 256  # smaller states do not show bytes per token: a recurrent state has a constant part
FEW_PIECES = 16  # with more pieces the time does not show the byte rate


@dataclass(slots=True)
class MoveCost:
    """What was measured on this machine with this model. Unmeasured rates are 0; an unmeasured move is tried."""

    computed: float = 0.0  # prompt tokens per second
    saved: float = 0.0  # bytes per second out of the cells
    loaded: float = 0.0  # bytes per second into the cells
    bytes_per_token: float = 0.0  # of the last state with enough tokens
    assumed_rate: float = ASSUMED_RATE
    step_s: float = 0.0  # of a step that only decodes, moving average
    copy_s: float = 0.0  # of a copy between separate streams; 0 = unknown, or copies are free
    piece_s: float = 0.0
    """Seconds per contiguous piece of cells besides its bytes: the library copies each piece of each layer separately.
    """

    def observe_computed(self, n_tokens: int, seconds: float) -> None:
        """Record a prefill."""
        self.computed = _mean(self.computed, n_tokens, seconds)

    def observe_step(self, seconds: float) -> None:
        """Record the duration of a step that only decodes."""
        self.step_s += (seconds - self.step_s) / 8 if self.step_s else seconds

    def observe_state(self, n_tokens: int, n_bytes: int, seconds: float, n_pieces: int = 1) -> None:
        """Record saving a state whose cells lie in `n_pieces` pieces."""
        if n_tokens >= MIN_SAMPLE_TOKENS or not self.bytes_per_token:
            self.bytes_per_token = n_bytes / n_tokens
        if n_pieces < FEW_PIECES:
            self.saved = _mean(self.saved, n_bytes, seconds)
            return
        seen_s = max(seconds - n_bytes / (self.saved or self.assumed_rate), 0.0) / n_pieces
        self.piece_s += (seen_s - self.piece_s) / 2

    def observe_load(self, n_bytes: int, seconds: float, n_pieces: int = 1) -> None:
        """Record loading a state into at most `n_pieces` pieces."""
        if n_pieces < FEW_PIECES:
            self.loaded = _mean(self.loaded, n_bytes, seconds)

    def save_s(self, n_bytes: int, n_pieces: int = 1) -> float:
        """Return the predicted seconds to save a state; conservative before the first measurement."""
        return n_bytes / (self.saved or self.assumed_rate) + max(n_pieces - 1, 0) * self.piece_s

    def load_s(self, n_bytes: int, n_pieces: int = 1) -> float:
        """Return the predicted seconds to load a state."""
        rate = self.loaded or self.saved or self.assumed_rate
        return n_bytes / rate + max(n_pieces - 1, 0) * self.piece_s

    def round_trip_s(self, n_tokens: int, n_pieces: int = 1) -> float:
        """Return the predicted seconds to save and load `n_tokens`."""
        n_bytes = int(n_tokens * (self.bytes_per_token or ASSUMED_BYTES))
        return self.save_s(n_bytes, n_pieces) + self.load_s(n_bytes)

    def observe_copies(self, n: int, seconds: float) -> None:
        """Record how much longer a step with `n` copies took."""
        seen = max(seconds, 0.0) / n
        self.copy_s += (0.5 if seen < self.copy_s else 0.05) * (
            seen - self.copy_s
        )  # longer times are mostly due to other processes

    def state_is_quicker(self, n_held: int, target_s: float) -> bool:
        """Whether moving the state of `n_held` tokens is faster than copying the whole stream, and shorter than a
        step.
        """
        return self.round_trip_s(n_held) < min(self.copy_s, target_s)

    def copy_pays(self, n_tokens: int, n_held: int, target_s: float) -> bool:
        """Whether taking over a stream of `n_held` tokens is faster than computing `n_tokens`. Each refusal lowers the
        predicted cost slightly, so that a measurement disturbed by other processes does not hold forever.
        """
        compute_s = self.compute_s(n_tokens)
        take_s = self.round_trip_s(n_held) if self.state_is_quicker(n_held, target_s) else self.copy_s
        if not compute_s or take_s < compute_s:
            return True
        self.copy_s *= 0.99
        return False

    def refused(self) -> None:
        """Record that a move was predicted to take too long: the next prediction is bolder, so that one is measured
        eventually.
        """
        self.assumed_rate = min(2 * self.assumed_rate, MAX_RATE)

    def compute_s(self, n_tokens: int) -> float:
        """Return the predicted seconds to prefill `n_tokens`; 0 = unknown."""
        return n_tokens / self.computed if self.computed else 0.0

    def pays(self, n_tokens: int, n_lost: int, n_pieces: int = 1) -> bool:
        """Whether saving `n_tokens` and loading them once is faster than recomputing `n_lost`."""
        compute_s = self.compute_s(n_lost)
        if not (compute_s and self.bytes_per_token):
            return True
        return self.round_trip_s(n_tokens, n_pieces) < max(compute_s, NEGLIGIBLE_S)


def _mean(rate: float, units: float, seconds: float) -> float:
    """Return a moving average of a rate."""
    seen = units / seconds if units > 0 and seconds > 0 else rate
    return rate + (seen - rate) / 4 if rate else seen


def eviction_priority(n_tokens: int, idle_s: float) -> float:
    """Return the value of keeping a cache of `n_tokens`: its length over the time since its last use.

    The number of uses does not count: in `benchmarks.simulation`, counting uses keeps finished conversations and
    gives fewer hits.
    """
    return n_tokens / (1.0 + max(idle_s, 0.0))


def first_to_evict(
    idle: "Iterable[Slot]",
    spare: "Slot | None" = None,
    price: "Callable[[Slot], tuple[float, int]]" = lambda slot: (0.0, 0),
) -> "Slot":
    """Return an empty slot, otherwise the one with the lowest eviction priority; `spare` only as a last resort.

    `price` returns the cost of using a slot besides its contents, in the unit of `eviction_priority`, and its rank
    among equals.
    """
    slots = list(idle)
    now = max(slot.last_used for slot in slots)

    def key(slot: "Slot") -> tuple[bool, float, int, float, int]:
        extra, rank = price(slot)
        return slot is spare, slot.eviction_priority(now) + extra, rank, slot.last_used, slot.id

    return min(slots, key=key)
