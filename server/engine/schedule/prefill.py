"""Which prompt gets the tokens of a step that no generating slot needs, and how many a step should carry. Pure.

A step's tokens go to one prompt before the next, since many short runs cost more than a long one. The order is that of
one number, in tokens, the least first: what is left to compute, so that a short prompt does not stand behind a long
one; what its client was served more than others; and less, the longer it has its slot: so none starves.

The step's size is found while running. A step's time grows with its tokens and with how deep in its prompt they are, so
the next size follows from what the last two took. But it does not grow evenly: on a processor, ggml attends in tiles of
64 tokens, where one that is not full takes as long as a full one, and less than a tile token by token
(ggml-cpu/common.h, GGML_FA_TILE_Q; 1,900 tokens deep 48 took longer than 64, and 96 nearly as long as 128); and the
library evaluates `n_ubatch` tokens at once. So sizes are multiples of these. A smaller size that saves too little is
given up, and not tried again for a while.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from server.engine.sequence import Sequence

WAIT_WEIGHT = 0.25
"""Of the tokens that could be computed while a prompt waits: a long one is passed by shorter ones that come within four
times of what computing it takes. In `benchmarks.simulation`, 0.1 has longer first tokens at p99, 1.0 at p50."""
PRIORITY_S = 600.0
"""A step of `priority` counts as so much waiting."""
UNSEEN_RATE = 1000.0  # prompt tokens per second, before any were computed

TILE = 64
REST = 8  # what is beyond a multiple, so small a part of a step, comes along: another step costs more
AIM = 0.9  # of the target: the next step lies deeper, and may hold several prompts
WORTHWHILE = 0.2  # of the time that a smaller step would save if it cost as much for each token
CUT = 0.75  # a smaller size is smaller by so much at least: what it saves must stand out from depth and chance
PATIENCE = 16  # steps of its size over the target until the knee is looked for again


def in_order(
    prompts: Iterable[Sequence], rate: float, served: Callable[[str], float], inherited: Mapping[Sequence, int]
) -> list[Sequence]:
    """`prompts`, the first to be computed first, at so many tokens per second (0 = not known); of clients that were
    `served` so many.

    ``inherited``: priorities other than their own, of prompts that others wait for.
    """
    order = list(prompts)
    if len(order) < 2:
        return order
    counts = [served(s.request.client) for s in order]
    least, rate = min(counts), rate or UNSEEN_RATE
    keys = []
    for i, (s, n_served) in enumerate(zip(order, counts, strict=True)):
        waits_since = s.placed_at + PRIORITY_S * inherited.get(s, s.request.priority)
        aged = len(s.target) - s.n_computed + n_served - least + WAIT_WEIGHT * rate * waits_since
        keys.append((aged, s.came, i))
    return [order[i] for *_, i in sorted(keys)]


@dataclass(slots=True)
class StepSize:
    """Decides the tokens of one step in all, prompt and generated.

    ``target_s`` is the step time to stay under; infinity: then every step may be as large as it can.
    """

    target_s: float
    smallest: int
    largest: int
    n_ubatch: int
    size: int = 0
    _token_s: float = 0.0  # what the last step took for each of its tokens
    _n_steps: int = 0  # of this size
    _larger: tuple[int, float] = (0, 0.0)  # the size before, if this one was to be smaller, and seconds of its steps
    _knee: int = 0  # no size below it
    _n_over: int = 0  # steps of that size that took longer than they should

    def __post_init__(self) -> None:
        """Begin in the middle; the first steps move it."""
        self.largest = max(self.largest, self.smallest)
        if self.target_s == inf:
            self.size = self.largest
        self.size = self.size or min(max(2 * TILE, self.smallest), self.largest)

    def after(self, spent_s: float) -> int:
        """The size of a step of which so many seconds are gone already."""
        if self.target_s == inf or not spent_s:
            return self.size
        left = int(self.size * max(1 - spent_s / self.target_s, 0.0))
        return max(_whole(left, self.n_ubatch), self.smallest)

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Learn from a step that was nearly as large as it could be, and choose the next size.

        Of two steps the quicker one counts: the other may be a neighbour's doing.
        """
        if self.target_s == inf or n_tokens * 8 < self.size * 7 or seconds <= 0:
            return
        seen_s = seconds / n_tokens
        token_s, self._token_s = min(seen_s, self._token_s or seen_s), seen_s
        took_s, wanted = self.size * token_s, int(self.target_s * AIM / token_s)
        self._n_steps += 1
        larger, larger_s = self._larger
        if larger and self._n_steps == 2 and larger_s - took_s < WORTHWHILE * larger_s * (1 - self.size / larger):
            self._knee, self._n_over = larger, 0
            self._change(larger)
        elif wanted >= self.size:
            self._change(max(min(_whole(wanted, self.n_ubatch), self.size * 2, self.largest), self.size))
        elif self.size <= self._knee and self._n_over < PATIENCE:
            self._n_over += 1
        else:
            knee = self._knee if self.size > self._knee else 0
            self._knee, self._n_over = knee, 0
            smaller = _whole(min(wanted, int(self.size * CUT)), self.n_ubatch)
            self._change(max(smaller, knee, self.smallest), (self.size, took_s))

    def _change(self, size: int, larger: tuple[int, float] = (0, 0.0)) -> None:
        if size != self.size:
            self.size, self._larger, self._n_steps = size, larger, 0


def portion(n_left: int, size: int, n_ubatch: int, *, exact: bool = False) -> int:
    """How many of the tokens that are left of a prompt a step of that size takes: where the size is whole tiles, so are
    they left. What is odd is computed where the prompt begins, where attention costs least.

    Two tokens beyond `n_ubatch` would be an evaluation of their own. ``exact``: in place of a step that is a little
    larger, too.
    """
    more = 0 if exact else size // REST
    if n_left <= size + more:
        return n_left
    odd = n_left % TILE
    if size % TILE or not odd:
        return size
    return size + odd if odd <= more and size + odd <= n_ubatch else size - TILE + odd


def _whole(size: int, n_ubatch: int) -> int:
    return size - size % (n_ubatch if size >= n_ubatch else TILE if size >= TILE else 1)
