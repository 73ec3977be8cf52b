"""The order of prefills, and the token budget of a step. Pure.

Prefill tokens go to one prompt after the other, because many short runs cost more than one long run. The order key
is a number of tokens, smallest first: tokens left to compute, so that short prompts do not wait for long ones; plus
what the client was served more than others; minus an aging term, so that no prompt starves.

The budget adapts to measured step times. A step's time grows with its tokens and their depth in the prompt. It does
not grow evenly: on a CPU, ggml computes attention in tiles of 64 tokens; a partial tile takes as long as a full one
(ggml-cpu/common.h, GGML_FA_TILE_Q), and the library evaluates `n_ubatch` tokens at once. So budgets are multiples of
these sizes. A smaller budget that saves too little time is given up for a while.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from server.engine.sequence import Sequence

WAIT_WEIGHT = 0.25
"""Aging: share of the tokens that could be computed while a prompt waits. Shorter prompts can delay a long one to at
most four times its own prefill time. In `benchmarks.simulation`, 0.1 gives longer first tokens at p99, 1.0 at p50.
"""
PRIORITY_S = 600.0
"""Seconds of waiting that one priority level counts as."""
UNSEEN_RATE = 1000.0  # assumed prefill tokens per second before the first measurement

TILE = 64
REST = 8  # a remainder of 1/8 of a step is added to it, because another step costs more
AIM = 0.9  # of the target: the next step is deeper in the prompt and may contain several prompts
WORTHWHILE = 0.2  # least share of the proportional saving that a smaller step must achieve
CUT = 0.75  # factor of a reduction: the saving must exceed noise
PATIENCE = 16  # slow steps before a smaller size is tried again


def in_order(
    prompts: Iterable[Sequence], rate: float, served: Callable[[str], float], inherited: Mapping[Sequence, int]
) -> list[Sequence]:
    """Return `prompts` in prefill order.

    `rate`: prefill tokens per second (0 = unknown). `served`: tokens served per client. `inherited`: priorities that
    prompts inherit from more urgent requests waiting for their prefix.
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
        keys.append((aged, s.arrival, i))
    return [order[i] for *_, i in sorted(keys)]


@dataclass(slots=True)
class StepSize:
    """Adapts the number of tokens per step, prefill and decode together.

    ``target_s`` is the step time to stay under; infinity means as large as possible.
    """

    target_s: float
    smallest: int
    largest: int
    n_ubatch: int
    size: int = 0
    _token_s: float = 0.0  # seconds per token of the last step
    _n_steps: int = 0  # steps of this size
    _larger: tuple[int, float] = (0, 0.0)  # the previous, larger size and its step time
    _knee: int = 0  # smallest useful size
    _n_over: int = 0  # slow steps of that size

    def __post_init__(self) -> None:
        """Start in the middle; the first steps adapt it."""
        self.largest = max(self.largest, self.smallest)
        if self.target_s == inf:
            self.size = self.largest
        self.size = self.size or min(max(2 * TILE, self.smallest), self.largest)

    def after(self, spent_s: float) -> int:
        """Return the budget of a step that has already used `spent_s` seconds."""
        if self.target_s == inf or not spent_s:
            return self.size
        left = int(self.size * max(1 - spent_s / self.target_s, 0.0))
        return max(_whole(left, self.n_ubatch), self.smallest)

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Learn from a nearly full step and choose the next budget.

        Of two steps the faster one counts; the slower one may have been disturbed by other processes.
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
    """Return how many of a prompt's `n_left` tokens a step of `size` takes.

    If the size is whole tiles, the remainder stays whole tiles too: odd tokens are computed at the start of a
    prompt, where attention is cheapest. `exact` forbids exceeding the size slightly. A few tokens above `n_ubatch`
    would need another evaluation.
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
