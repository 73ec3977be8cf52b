"""What a step of so many tokens costs, learned from the steps that were done. Pure: times are passed in.

A decode of one token reads every weight, and of a few more tokens reads them no more often: what the further tokens
cost depends on the machine, the model and the kernels, and has to be seen.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

SHORTER, LONGER = 0.5, 0.05  # weight of a new measurement: what makes a step longer is mostly other processes
UNKNOWN_SHARE = 0.5  # of a token's even share of the step: what one more is taken to cost before that was ever seen
_EXACT = 32  # sizes up to here are kept apart, larger ones by eighths of their power of two
_PART = 16  # tokens of a prompt from which on they tell what one more costs


def _size(n_tokens: int) -> int:
    if n_tokens <= _EXACT:
        return n_tokens
    grain = 1 << max(n_tokens.bit_length() - 4, 0)
    return n_tokens // grain * grain


def _learned(seen: float, seconds: float) -> float:
    return seen + (SHORTER if seconds < seen else LONGER) * (seconds - seen) if seen else seconds


@dataclass(slots=True)
class StepCost:
    """Seconds of a step by the number of its tokens; between two known sizes on the line that joins them."""

    _prompt_token_s: float = 0.0
    _seconds: dict[int, float] = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=list)

    def observe(self, n_tokens: int, seconds: float) -> None:
        """A step of `n_tokens`, each with its logits, took `seconds`."""
        size = _size(n_tokens)
        seen = self._seconds.get(size)
        if seen is None:
            insort(self._sizes, size)
            self._seconds[size] = seconds
        else:
            self._seconds[size] = _learned(seen, seconds)

    def observe_prompt(self, n_tokens: int, seconds: float) -> None:
        """A prompt's part of `n_tokens` took `seconds`: as long as nothing better is known, a further token costs that
        much."""
        if n_tokens >= _PART:
            token_s = seconds / n_tokens
            self._prompt_token_s = _learned(self._prompt_token_s, token_s)

    def of(self, n_tokens: int) -> float:
        """Seconds that a step of `n_tokens` takes; 0.0 before any was seen."""
        size, sizes = _size(n_tokens), self._sizes
        if size in self._seconds or not sizes:
            return self._seconds.get(size, 0.0)
        at = bisect_left(sizes, size)
        if at == 0:
            return self._seconds[sizes[0]] * (1 + size / sizes[0]) / 2  # at least half is taken to be the weights
        low = sizes[at - 1]
        slope = self._slope(low, sizes[at]) if at < len(sizes) else self._last_slope()
        return self._seconds[low] + slope * (n_tokens - low)

    def _slope(self, low: int, high: int) -> float:
        return max((self._seconds[high] - self._seconds[low]) / (high - low), 0.0)

    def _last_slope(self) -> float:
        """Behind the largest size: as from the smallest to it, or a guess."""
        low, high = self._sizes[0], self._sizes[-1]
        if high > low:
            return self._slope(low, high)
        even = UNKNOWN_SHARE * self._seconds[high] / high
        return min(self._prompt_token_s or even, even)
