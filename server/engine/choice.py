"""Which instance of a model a request goes to: where its first token costs least, itself and others. Pure.

Everything is counted in prompt tokens. What it waits for: its own tokens without those that the instance has seen,
those of others that are before it, what the streams that run take from it, and, where every slot is taken, the time
until one is free. What it costs others: its own tokens once more. So of two instances that would be as quick, the one
is chosen that has less to compute: twins meet where the first of them went.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from server.engine.adapters import Tuning
from server.engine.prefix import longest_match
from server.engine.request import Request
from server.engine.sequence import Phase, Slot, Ticket
from server.engine.stats import EngineStats

BLOCK = 64  # tokens
MOST_BLOCKS = 1 << 16  # remembered: 4 million tokens
STREAM_TOKENS = 64
"""What a running stream is taken to cost who joins it: some tens of steps that are longer by about a token's time."""
_UNSEEN_RATE = 1000.0  # prompt tokens per second, before any were seen


class Footprints:
    """Which instances have seen which beginnings, also those that wait to be computed or have left the cells."""

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self._seen: OrderedDict[int, int] = OrderedDict()  # a bit for each instance
        self._most = most

    def add(self, prompt: list[int], wanted: Tuning, instance: int) -> None:
        """`prompt` goes to `instance`."""
        for at in _chain(prompt, wanted):
            self._seen[at] = self._seen.get(at, 0) | 1 << instance
            self._seen.move_to_end(at)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def known(self, prompt: list[int], wanted: Tuning, n_instances: int) -> list[int]:
        """How many of the first tokens each instance has seen, in whole blocks."""
        known, bits, n = [0] * n_instances, (1 << n_instances) - 1, 0
        for at in _chain(prompt, wanted):
            bits &= self._seen.get(at, 0)
            if not bits:
                break
            n += BLOCK
            for i in range(n_instances):
                if bits >> i & 1:
                    known[i] = n
        return known


def _chain(prompt: list[int], wanted: Tuning) -> Iterator[int]:
    """The hash of the beginning up to the end of each whole block, and of what computes it."""
    at = hash(wanted.at(0))
    for start in range(0, len(prompt) - BLOCK + 1, BLOCK):
        at = hash((at, *prompt[start : start + BLOCK]))
        yield at


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a request would find: ``n_own`` tokens to compute, and ``wait`` tokens until its first one comes."""

    n_own: int
    wait: float

    @property
    def cost(self) -> float:
        """To itself and to others."""
        return self.wait + self.n_own


def n_to_compute(request: Request, wanted: Tuning, known: int, slots: list[Slot]) -> int:
    """Tokens that an instance would have to compute that has seen `known` of the prompt."""
    if not request.cache_prompt:
        return len(request.prompt)
    return max(len(request.prompt) - max(known, longest_match(request.prompt, slots, wanted)[1]), 1)


def outlook(
    request: Request, wanted: Tuning, known: int, slots: list[Slot], open_: Iterable[Ticket], turn: float
) -> Outlook:
    """Of one instance that has seen `known` tokens of the prompt; `open_` wait or run there.

    A slot is held for as long as `turn` prompt tokens take. The step thread may change the slots meanwhile: then it is
    the outlook of a moment ago.
    """
    n_own = n_to_compute(request, wanted, known, slots)
    running = [s for slot in slots if (s := slot.sequence) is not None]
    placed = {id(s.ticket) for s in running}
    n_load, n_before = 0, sum(max(len(s.target) - s.n_computed, 0) for s in running if s.phase is Phase.PREFILL)
    for ticket in open_:
        n_load += ticket.request.n
        n_before += 0 if id(ticket) in placed else ticket.n_expected
    turns = max(n_load + request.n - len(slots), 0) / len(slots)
    return Outlook(n_own, n_own + n_before + n_load * STREAM_TOKENS + turns * turn)


def turn_tokens(stats: Collection[EngineStats]) -> float:
    """Prompt tokens that could be computed while a request has its slot, at the mean of all instances."""
    n_ended = sum(sum(one.request_duration.counts) for one in stats)
    held_s = sum(one.request_duration.sum - one.queue_time.sum for one in stats) / n_ended if n_ended else 1.0
    return max(held_s, 0.0) * prompt_rate(stats)


def prompt_rate(stats: Collection[EngineStats]) -> float:
    """Prompt tokens per second, the mean of all instances: one alone may have seen a few short prompts only."""
    seconds = sum(one.prompt_seconds for one in stats)
    return sum(one.prompt_tokens for one in stats) / seconds if seconds else _UNSEEN_RATE
