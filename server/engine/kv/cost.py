"""What a cache is worth, and what it costs to bring a state out of the cells and back, against computing it again.

And so whose cells go when others need them: an idle slot's of least value. Pure; times are passed in.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a sequence knows what is fetched for it, by what that costs
    from server.engine.sequence import Slot

UNNOTICED_S = 0.005  # saving and loading in less time is always done
GUESSED_RATE = 500e6  # bytes per second out of the cells before any were seen: a slow machine's
MOST_RATE = 16e9  # no machine's
GUESSED_BYTES = 128 << 10  # of a token's keys and values before any were seen: a model's of 8 B parameters
TELLING_TOKENS = 256  # of a state that says what more of them take: part of a recurrent model's is always there
FEW_PIECES = 16  # of a state whose time says what its bytes take


@dataclass(slots=True)
class MoveCost:
    """What was seen on this machine with this model. Where nothing was seen yet, it is tried. Rates that were not seen
    are 0."""

    computed: float = 0.0  # prompt tokens per second
    saved: float = 0.0  # bytes per second out of the cells
    loaded: float = 0.0  # bytes per second into the cells
    bytes_per_token: float = 0.0  # of the last state that was not short
    guessed_rate: float = GUESSED_RATE
    step_s: float = 0.0  # of a step in which all generate, lately
    copy_s: float = 0.0  # of a separate stream into another, whatever it holds; 0 = unknown, or nothing is copied
    piece_s: float = 0.0
    """Seconds for each contiguous piece of cells beside its bytes: the library copies each of every layer by itself."""

    def observe_computed(self, n_tokens: int, seconds: float) -> None:
        """A prompt's part was computed."""
        self.computed = _mean(self.computed, n_tokens, seconds)

    def observe_step(self, seconds: float) -> None:
        """A step in which all generate took so long."""
        self.step_s += (seconds - self.step_s) / 8 if self.step_s else seconds

    def observe_state(self, n_tokens: int, n_bytes: int, seconds: float, n_pieces: int = 1) -> None:
        """A state was saved, whose cells lay in so many pieces."""
        if n_tokens >= TELLING_TOKENS or not self.bytes_per_token:
            self.bytes_per_token = n_bytes / n_tokens
        if n_pieces < FEW_PIECES:
            self.saved = _mean(self.saved, n_bytes, seconds)
            return
        seen_s = max(seconds - n_bytes / (self.saved or self.guessed_rate), 0.0) / n_pieces
        self.piece_s += (seen_s - self.piece_s) / 2

    def observe_load(self, n_bytes: int, seconds: float, n_pieces: int = 1) -> None:
        """A state was loaded into so many pieces at most."""
        if n_pieces < FEW_PIECES:
            self.loaded = _mean(self.loaded, n_bytes, seconds)

    def save_s(self, n_bytes: int, n_pieces: int = 1) -> float:
        """Seconds that taking a state out of cells that lie in pieces may take; a careful guess where nothing was
        seen."""
        return n_bytes / (self.saved or self.guessed_rate) + max(n_pieces - 1, 0) * self.piece_s

    def load_s(self, n_bytes: int, n_pieces: int = 1) -> float:
        """As `save_s`, back in, which is mostly quicker."""
        rate = self.loaded or self.saved or self.guessed_rate
        return n_bytes / rate + max(n_pieces - 1, 0) * self.piece_s

    def round_trip_s(self, n_tokens: int, n_pieces: int = 1) -> float:
        """As both, of so many tokens."""
        n_bytes = int(n_tokens * (self.bytes_per_token or GUESSED_BYTES))
        return self.save_s(n_bytes, n_pieces) + self.load_s(n_bytes)

    def observe_copies(self, n: int, seconds: float) -> None:
        """A step with `n` copies took so much longer than it would have without them."""
        seen = max(seconds, 0.0) / n
        self.copy_s += (0.5 if seen < self.copy_s else 0.05) * (seen - self.copy_s)  # longer is mostly other processes

    def state_is_quicker(self, n_held: int, target_s: float) -> bool:
        """Whether the state of a stream that holds so many tokens is moved in less time than all of it is copied, and
        within a step of so long."""
        return self.round_trip_s(n_held) < min(self.copy_s, target_s)

    def copy_pays(self, n_tokens: int, n_held: int, target_s: float) -> bool:
        """Whether taking over a stream that holds `n_held` takes less time than computing `n_tokens`, by a copy or by
        its state, which may take a step of so long. A refusal makes the next copy a little bolder: what was measured
        beside other processes must not hold for ever."""
        compute_s = self.compute_s(n_tokens)
        take_s = self.round_trip_s(n_held) if self.state_is_quicker(n_held, target_s) else self.copy_s
        if not compute_s or take_s < compute_s:
            return True
        self.copy_s *= 0.99
        return False

    def refused(self) -> None:
        """A move was guessed to take too long: the next guess is bolder, so that one is seen in the end."""
        self.guessed_rate = min(2 * self.guessed_rate, MOST_RATE)

    def compute_s(self, n_tokens: int) -> float:
        """Seconds that computing so many tokens may take; 0 = unknown."""
        return n_tokens / self.computed if self.computed else 0.0

    def pays(self, n_tokens: int, n_lost: int, n_pieces: int = 1) -> bool:
        """Whether saving `n_tokens`, and loading them once, takes less time than computing the `n_lost` again."""
        compute_s = self.compute_s(n_lost)
        if not (compute_s and self.bytes_per_token):
            return True
        return self.round_trip_s(n_tokens, n_pieces) < max(compute_s, UNNOTICED_S)


def _mean(rate: float, units: float, seconds: float) -> float:
    """A rate in which what is seen now weighs more than what was."""
    seen = units / seconds if units > 0 and seconds > 0 else rate
    return rate + (seen - rate) / 4 if rate else seen


def value(n_tokens: int, idle_s: float) -> float:
    """What keeping a cache of `n_tokens` is worth: what it saves, by how lately it was of use.

    How often it was is not asked: what is of use often was of use lately. In `benchmarks.simulation`, worth that grows
    with uses keeps what has ended, for fewer hits.
    """
    return n_tokens / (1.0 + max(idle_s, 0.0))


def least_valuable(
    idle: "Iterable[Slot]",
    spare: "Slot | None" = None,
    price: "Callable[[Slot], tuple[float, int]]" = lambda slot: (0.0, 0),
) -> "Slot":
    """An empty slot, else the one of least value; `spare` only if there is no other.

    `price` is what using a slot costs beside its content, in the unit of `value`, and its rank among equals.
    """
    slots = list(idle)
    now = max(slot.last_used for slot in slots)

    def key(slot: "Slot") -> tuple[bool, float, int, float, int]:
        extra, rank = price(slot)
        return slot is spare, slot.value(now) + extra, rank, slot.last_used, slot.id

    return min(slots, key=key)
