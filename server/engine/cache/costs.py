"""Predicted costs of moving a state between cells and RAM compared with recomputing it. Pure; times are arguments."""

from dataclasses import dataclass

NEGLIGIBLE_S = 0.005  # faster moves are always made
ASSUMED_RATE = 500e6  # bytes per second before the first measurement: a slow machine
ASSUMED_BYTES = 128 << 10  # KV bytes per token before the first measurement: an 8 B model
MIN_SAMPLE_TOKENS = 256  # smaller states do not show bytes per token: a recurrent state has a constant part


@dataclass(slots=True)
class MoveCost:
    """What was measured on this machine with this model; 0 = not measured yet."""

    computed: float = 0.0  # prompt tokens per second
    bandwidth: float = 0.0  # bytes per second between cells and RAM
    bytes_per_token: float = 0.0  # of the last state with enough tokens
    step_s: float = 0.0  # of a step that only decodes, moving average
    copy_s: float = 0.0  # of a copy between separate streams, measured at load; 0 = unknown, or copies are free

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

    def state_is_quicker(self, n_held: int, target_s: float) -> bool:
        """Return whether moving the state of `n_held` tokens is faster than copying the whole stream, and shorter than
        a step.
        """
        return self.round_trip_s(n_held) < min(self.copy_s, target_s)

    def copy_pays(self, n_tokens: int, n_held: int, target_s: float) -> bool:
        """Return whether taking over a stream of `n_held` tokens is faster than computing `n_tokens`."""
        compute_s = self.compute_s(n_tokens)
        take_s = self.round_trip_s(n_held) if self.state_is_quicker(n_held, target_s) else self.copy_s
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
