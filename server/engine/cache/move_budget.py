"""Whether a state is moved between cells, RAM and disk: predicted costs, and the time that a step may spend on moves.
Pure; times are arguments.

A move stops every sequence of the instance, and the library moves a state in one piece. So two rules decide:

- A state is loaded if one move is faster than recomputing its tokens (`pays`), and saved if `MOVES_PER_USE` moves are
  (`admits`).
- A move that is predicted to stall others for longer than a step (`stalls_others`) is not made.

Otherwise the tokens are recomputed in chunks, one in each step.
"""

import math
from dataclasses import dataclass, field

from server.engine.params import PREFILL_ONLY_S
from server.engine.sequence import Phase, Slot

NEGLIGIBLE_S = 0.002  # faster moves are always made
ASSUMED_RATE = 2e9  # bytes per second before the first measurement: a state is written to fresh memory at 1 to 2 GB/s
ASSUMED_BYTES = 128 << 10  # KV bytes per token before the first measurement: an 8 B model
MIN_SAMPLE_TOKENS = 128
"""Smaller states do not measure bytes per token, because a recurrent state has a constant part, nor the bandwidth
unless that part is large. Smaller prefills count less, because a part of their time is constant, too.
"""
MOVES_PER_USE = 3.0
"""Moves for each expected use of a saved state: its save, its load, and the save of a state that is never used."""
RETRY_AFTER, FIRST_AFTER = 2048, 16
"""After so many states that were not saved, a move is predicted to take half as long, after twice as many a third. The
second number counts before the first measurement. Otherwise, after a single disturbed move, or if all states are large,
no move would ever be tried and measured again.
"""
SHARE = 0.1
"""Share of a step after which no further move starts; a single move may exceed it. Without this limit, the moves of
several requests follow each other within one step.
"""


@dataclass(eq=False, slots=True)
class MoveBudget:
    """Measurements of this machine with this model (0 = not measured yet), and the time that this step has spent."""

    slots: list[Slot] = field(default_factory=list)
    target_s: float = math.inf  # target duration of a step while sequences decode
    copy_s: float = 0.0  # seconds of a copy between separate streams, measured at load; 0 = unknown or free
    prefill_rate: float = 0.0  # prompt tokens per second, without the time of decode tokens in the same step
    bandwidth: float = 0.0  # bytes per second between cells and RAM
    bytes_per_token: float = 0.0  # of the last state with enough tokens
    step_s: float = 0.0  # seconds of a step that only decodes, moving average
    n_unsaved: int = 0  # states since the last move that were not saved
    spent_s: float = 0.0  # seconds that this step has spent on copies and moves
    n_copies: int = 0  # sequence copies that the next batch executes

    @property
    def is_spent(self) -> bool:
        """Whether this step has spent its share while others wait; further moves wait for the next step."""
        return self.spent_s > self._others_step_s() * SHARE

    @property
    def prompt_step_s(self) -> float:
        """Seconds that a step may take while no sequence decodes."""
        return max(self.target_s, PREFILL_ONLY_S)

    def _others_step_s(self) -> float:
        """Return how long a step may take for the slot holders; infinity without any."""
        phases = {slot.sequence.phase for slot in self.slots if slot.sequence is not None}
        if Phase.DECODE in phases:
            return self.target_s
        return self.prompt_step_s if phases else math.inf

    def stalls_others(self, seconds: float) -> bool:
        """Return whether an operation of `seconds`, with what this step has spent, would stall the slot holders for
        more than a step.
        """
        return self.spent_s + seconds > self._others_step_s()

    def move_stalls(self, n_bytes: int, then_s: float = 0.0) -> bool:
        """Return whether moving `n_bytes`, and `then_s` after it, would stall others for more than a step."""
        return self.stalls_others(self.move_s(n_bytes) + then_s)

    def admits(self, n_bytes: int, n_lost: int) -> bool:
        """Return whether to save a state of `n_bytes`, without which `n_lost` tokens would be recomputed."""
        admits = self.pays(n_bytes, n_lost, MOVES_PER_USE)
        self.n_unsaved += not admits
        return admits

    def pays(self, n_bytes: int, n_tokens: int, n_moves: float = 1.0) -> bool:
        """Return whether moving a state of `n_bytes` `n_moves` times is faster than recomputing `n_tokens` once. True
        before both were measured.
        """
        compute_s = self.compute_s(n_tokens)
        return not (self.bandwidth and compute_s) or n_moves * self.move_s(n_bytes) < max(compute_s, NEGLIGIBLE_S)

    def observe_computed(self, n_tokens: int, seconds: float, *, decodes: bool = False) -> None:
        """Record a step that prefilled `n_tokens`. One that also `decodes` would have taken `step_s` without them; the
        less of its time is left for prefill, the less it counts.
        """
        left_s = seconds - self.step_s if decodes else seconds
        weight = min(n_tokens / MIN_SAMPLE_TOKENS, 1.0) * left_s / seconds if seconds > 0 else 0.0
        self.prefill_rate = _mean(self.prefill_rate, n_tokens, left_s, weight)

    def observe_step(self, seconds: float) -> None:
        """Record the duration of a step that only decodes."""
        self.step_s += (seconds - self.step_s) / 8 if self.step_s else seconds

    def observe_move(self, n_tokens: int, n_bytes: int, seconds: float) -> None:
        """Record that a state was saved or loaded."""
        self.n_unsaved = 0
        if n_tokens >= MIN_SAMPLE_TOKENS or not self.bytes_per_token:
            self.bytes_per_token = n_bytes / n_tokens
        if n_tokens >= MIN_SAMPLE_TOKENS or self.move_s(n_bytes) > NEGLIGIBLE_S:
            self.bandwidth = _mean(self.bandwidth, n_bytes, seconds, 1.0)

    def move_s(self, n_bytes: int) -> float:
        """Return the predicted seconds to save or load a state."""
        after = RETRY_AFTER if self.bandwidth else FIRST_AFTER
        return n_bytes / (self.bandwidth or ASSUMED_RATE) / (1 + self.n_unsaved / after)

    def round_trip_s(self, n_tokens: int) -> float:
        """Return the predicted seconds to save and load `n_tokens`."""
        return 2 * self.move_s(int(n_tokens * (self.bytes_per_token or ASSUMED_BYTES)))

    def transfer_s(self, n_held: int) -> float:
        """Return the predicted seconds to transfer a separate stream of `n_held` tokens to another slot, by a copy or
        by moves of its state.
        """
        return min(self.copy_s, self.round_trip_s(n_held))

    def compute_s(self, n_tokens: int) -> float:
        """Return the predicted seconds to prefill `n_tokens`; 0 = unknown."""
        return n_tokens / self.prefill_rate if self.prefill_rate else 0.0


def _mean(rate: float, units: float, seconds: float, weight: float) -> float:
    """Return a moving average of a rate, to which a whole observation (`weight` 1) contributes a quarter."""
    seen = units / seconds if units > 0 and seconds > 0 else rate
    return rate + (seen - rate) * weight / 4 if rate else seen
