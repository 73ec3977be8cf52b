"""Whether a state is moved between cells, RAM and disk: predicted costs, and the time that a step may spend on moves.
Pure; times are arguments.

A move stops every sequence of the instance, and the library moves a state in one piece. So a state is moved only if
that is faster than recomputing it. Nor may it stall others for longer than a step. Otherwise it waits until no other
sequence runs, or is recomputed.
"""

import math
from dataclasses import dataclass, field

from server.engine.params import ALONE_S
from server.engine.sequence import Phase, Slot

NEGLIGIBLE_S = 0.005  # faster moves are always made
ASSUMED_RATE = 500e6  # bytes per second before the first measurement: a slow machine
ASSUMED_BYTES = 128 << 10  # KV bytes per token before the first measurement: an 8 B model
MIN_SAMPLE_TOKENS = 256  # smaller states do not show bytes per token: a recurrent state has a constant part
SHARE = 0.1
"""Share of a step that may be spent on moving states, besides the last one. In `benchmarks.simulation`, 0.1 halves the
longest inter-token gap compared with 1.0, at equal throughput and time to first token.
"""


@dataclass(eq=False, slots=True)
class MoveBudget:
    """What was measured on this machine with this model (0 = not measured yet), and what this step has spent."""

    slots: list[Slot] = field(default_factory=list)
    target_s: float = math.inf  # of a step while sequences decode
    copy_s: float = 0.0  # of a copy between separate streams, measured at load; 0 = unknown, or copies are free
    computed: float = 0.0  # prompt tokens per second
    bandwidth: float = 0.0  # bytes per second between cells and RAM
    bytes_per_token: float = 0.0  # of the last state with enough tokens
    step_s: float = 0.0  # of a step that only decodes, moving average
    spent_s: float = 0.0  # of this step, on copies and moved states
    n_copies: int = 0  # sequence copies that the next batch carries out

    @property
    def is_spent(self) -> bool:
        """Whether this step has spent its share while others wait; the rest waits for the next step."""
        return 0 < self.spent_s > self._others_step_s() * SHARE

    @property
    def prompt_step_s(self) -> float:
        """Seconds that a step may take while no sequence decodes."""
        return max(self.target_s, ALONE_S)

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

    def refuses(self, n_bytes: int) -> bool:
        """Return whether moving `n_bytes` would stall others for more than a step. The first move is made in any case,
        to measure it.
        """
        return bool(self.bandwidth) and self.stalls_others(self.move_s(n_bytes))

    def observe_computed(self, n_tokens: int, seconds: float) -> None:
        """Record a prefill."""
        self.computed = _mean(self.computed, n_tokens, seconds)

    def observe_step(self, seconds: float) -> None:
        """Record the duration of a step that only decodes."""
        self.step_s += (seconds - self.step_s) / 8 if self.step_s else seconds

    def observe_move(self, n_tokens: int, n_bytes: int, seconds: float) -> None:
        """Record that a state was saved or loaded."""
        if n_tokens >= MIN_SAMPLE_TOKENS or not self.bytes_per_token:
            self.bytes_per_token = n_bytes / n_tokens
        self.bandwidth = _mean(self.bandwidth, n_bytes, seconds)

    def move_s(self, n_bytes: int) -> float:
        """Return the predicted seconds to save or load a state; conservative before the first measurement."""
        return n_bytes / (self.bandwidth or ASSUMED_RATE)

    def round_trip_s(self, n_tokens: int) -> float:
        """Return the predicted seconds to save and load `n_tokens`."""
        return 2 * self.move_s(int(n_tokens * (self.bytes_per_token or ASSUMED_BYTES)))

    def state_is_quicker(self, n_held: int) -> bool:
        """Return whether moving the state of `n_held` tokens is faster than copying the whole stream, and shorter than
        a step.
        """
        return self.round_trip_s(n_held) < min(self.copy_s, self.target_s)

    def copy_pays(self, n_tokens: int, n_held: int) -> bool:
        """Return whether taking over a stream of `n_held` tokens is faster than computing `n_tokens`."""
        compute_s = self.compute_s(n_tokens)
        take_s = self.round_trip_s(n_held) if self.state_is_quicker(n_held) else self.copy_s
        return not compute_s or take_s < compute_s

    def compute_s(self, n_tokens: int) -> float:
        """Return the predicted seconds to prefill `n_tokens`; 0 = unknown."""
        return n_tokens / self.computed if self.computed else 0.0

    def pays(self, n_tokens: int, n_lost: int) -> bool:
        """Return whether saving `n_tokens` and loading them once is faster than recomputing `n_lost`."""
        compute_s = self.compute_s(n_lost)
        if not (compute_s and self.bytes_per_token):
            return True
        return self.round_trip_s(n_tokens) < max(compute_s, NEGLIGIBLE_S)


def _mean(rate: float, units: float, seconds: float) -> float:
    """Return a moving average of a rate."""
    seen = units / seconds if units > 0 and seconds > 0 else rate
    return rate + (seen - rate) / 4 if rate else seen
