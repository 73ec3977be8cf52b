"""How many tokens a step should carry, found while running.

A step's time grows with its tokens, but not evenly: kernels work in tiles, and a batch below a machine's knee costs
nearly as much as one above it (native-api.md: chunks of 64 beside three streams took twice as long in all as chunks
of 128). So sizes are powers of two, each remembers the throughput that was seen, and the choice is the largest size
whose step stays under the target, but never one that throws away more than a third of the best throughput.
"""

from dataclasses import dataclass, field

SMALLEST_WORTHWHILE = 0.67  # of the best throughput seen
FORGET = 0.3  # weight of a new measurement


@dataclass(slots=True)
class StepSize:
    """Decides the tokens of one step in all, prompt and generated.

    ``target_s`` is the step time to stay under; 0 = no matter how long, then every step may be as large as it can.
    """

    target_s: float
    smallest: int
    largest: int
    size: int = 0
    _rate: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin in the middle; the first steps move it."""
        self.largest = max(self.largest, self.smallest)
        if self.target_s <= 0:
            self.size = self.largest
        self.size = self.size or min(max(128, self.smallest), self.largest)

    def after(self, spent_s: float) -> int:
        """The size of a step of which so many seconds are gone already."""
        if self.target_s <= 0 or not spent_s:
            return self.size
        return max(int(self.size * (1 - spent_s / self.target_s)), self.smallest)

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Learn from a step that carried at least half of the chosen size, and move the size by at most one power."""
        if self.target_s <= 0 or n_tokens * 2 <= self.size or seconds <= 0:
            return
        seen = self._rate.get(self.size)
        rate = n_tokens / seconds
        self._rate[self.size] = rate if seen is None else seen + FORGET * (rate - seen)
        larger = self._rate.get(self.size * 2)
        if larger is not None and self._rate[self.size] < SMALLEST_WORTHWHILE * larger:
            self.size *= 2  # below the knee
        elif seconds > self.target_s:
            self._shrink()
        elif seconds * 2 < self.target_s and self.size < self.largest:
            self.size = min(self.size * 2, self.largest)

    def _shrink(self) -> None:
        """One power down, unless that is known to lie below the knee."""
        smaller = max(self.size // 2, self.smallest)
        known = self._rate.get(smaller)
        if known is None or known >= SMALLEST_WORTHWHILE * self._rate[self.size]:
            self.size = smaller
        else:  # believe it a little less each time, so that it is tried again some day
            self._rate[smaller] = known + 0.02 * (self._rate[self.size] - known)
