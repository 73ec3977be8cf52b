"""How many tokens a step should carry, found while running.

A step's time grows with its tokens and with how deep in its prompt they are, so the next size follows from what the
last step took. But it does not grow evenly: kernels work in tiles, and a batch below a machine's knee costs nearly as
much as one above it, or more (ggml's attention takes 63 tokens one by one and 64 as a tile: deep in a prompt, 61 took
longer than 128). A smaller size that saves too little is given up, and not tried again for a while.
"""

from dataclasses import dataclass

TILE = 32  # sizes are multiples of it
ATTENTION_TILE = 64  # fewer tokens are attended to one by one (ggml-cpu/common.h, GGML_FA_TILE_Q)
REST = 8  # a prompt's last tokens, so small a part of a step, come along: a step of their own costs more
AIM = 0.88  # of the target: the next step lies deeper, and may hold several prompts
WORTHWHILE = 0.35  # of the time that a smaller step would save if it cost as much for each token
CUT = 0.75  # a smaller size is smaller by so much at least: what it saves must stand out from depth and chance
SUDDEN = 1.25  # of the target: what takes longer than that, and the step before it did not, is not believed yet
PATIENCE = 16  # steps of its size over the target until the knee is looked for again


@dataclass(slots=True)
class StepSize:
    """Decides the tokens of one step in all, prompt and generated.

    ``target_s`` is the step time to stay under; 0 = no matter how long, then every step may be as large as it can.
    """

    target_s: float
    smallest: int
    largest: int
    size: int = 0
    _knee: int = 0  # no size below it
    _n_over: int = 0  # steps of that size that took longer than they should
    _again: bool = False  # the last step did
    _before: tuple[int, float] = (0, 0.0)  # size and seconds of the step that others are compared with
    _doubted: bool = False  # the size in use has saved too little once

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
        """Learn from a step that was nearly as large as it could be, and choose the next size."""
        if self.target_s <= 0 or n_tokens * 8 < self.size * 7 or seconds <= 0:
            return
        size, before_s = self._before
        if self.size < size and before_s - seconds < WORTHWHILE * before_s * (1 - self.size / size):
            if self._doubted:  # twice: once may be a neighbour's doing
                self._before, self._doubted = (0, 0.0), False
                self.size = self._knee = size
                return
            self._doubted = True
        else:
            self._before, self._doubted = (self.size, seconds), False
        wanted = int(self.size * self.target_s * AIM / seconds)
        if seconds <= self.target_s:
            self._again = False
            if wanted > self.size:
                self.size = min(max(_whole(wanted), self.size), self.size * 2, self.largest)
            return
        if self.size <= self._knee:
            self._n_over += 1
            if self._n_over > PATIENCE:
                self._knee = self._n_over = 0
        again, self._again = self._again, True
        if again or seconds < SUDDEN * self.target_s:  # else it may be a neighbour's doing
            smaller = _whole(min(wanted, int(self.size * CUT)))
            self.size = max(smaller, min(self._knee, self.size), self.smallest)


def piece(n_left: int, size: int, *, exact: bool = False) -> int:
    """How many of the tokens that are left of a prompt a step of that size takes; the last two steps share what is left
    where the last one would be too small to be worth it. ``exact``: in place of a step that is a little larger, too.
    """
    half = (n_left + 1) // 2
    if n_left <= size or (n_left <= size + size // REST and not (exact and half >= ATTENTION_TILE)):
        return n_left
    return half if n_left < size * 3 // 2 and half >= ATTENTION_TILE else size


def _whole(size: int) -> int:
    return size - size % TILE if size > TILE else size
