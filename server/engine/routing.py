"""Which instance a request goes to, and which of those that wait change over. Used on the event loop.

A request goes where its first token is expected to cost least. That is a guess about how long the requests
before it will run, so it is not final: an instance with an idle slot and nobody waiting takes requests over that have
not begun and for which another has no slot. One whose beginning is cached where it waits changes over when it has
waited as long as computing that anew would take: so it loses at most twice of what the better choice would have cost.

Cost is counted in prompt tokens, by pure functions. What it waits for: its own tokens without those that the instance
has seen, those of others that are before it, what the streams that run take from it, and, where every slot is taken,
the time until one is free. What it costs others: its own tokens once more. So of two instances that would be as quick,
the one is chosen that has less to compute: twins meet where the first of them went.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from server.engine.lora import Tuning
from server.engine.prefix import hashes
from server.engine.prefix.hashes import Chain
from server.engine.prefix.match import common_prefix
from server.engine.request import Failed, Request
from server.engine.schedule.admission import admits
from server.engine.sequence import Phase, Slot, Ticket
from server.engine.stats import EngineStats
from server.engine.step.loop import Instance
from server.engine.step.mailbox import Recall
from server.errors import ShuttingDown

BLOCK = 64  # tokens
MOST_BLOCKS = 1 << 16  # remembered: 4 million tokens
MOST_COMPARED = 4096  # tokens of a prompt, with those of each slot
STREAM_TOKENS = 64
"""What a running stream is taken to cost who joins it: some tens of steps that are longer by about a token's time."""
_UNSEEN_RATE = 1000.0  # prompt tokens per second, before any were seen


class Footprints:
    """Which instances have seen which beginnings, also those that wait to be computed or have left the cells."""

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self._seen: OrderedDict[int, int] = OrderedDict()  # a bit for each instance
        self._most = most

    def add(self, prompt: list[int], wanted: Tuning, instance: int, chain: Chain | None = None) -> None:
        """`prompt` goes to `instance`. Here and below, `chain` is the prompt's, so that it is hashed once.

        The end is forgotten before the beginning, without which it would be of no use.
        """
        for at in reversed(_links(prompt, wanted, chain or Chain())):
            self._seen[at] = self._seen.get(at, 0) | 1 << instance
            self._seen.move_to_end(at)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def known(self, prompt: list[int], wanted: Tuning, n_instances: int, chain: Chain | None = None) -> list[int]:
        """How many of the first tokens each instance has seen, in whole blocks."""
        known, bits, n = [0] * n_instances, (1 << n_instances) - 1, 0
        for at in _links(prompt, wanted, chain or Chain()):
            bits &= self._seen.get(at, 0)
            if not bits:
                break
            n += BLOCK
            for i in range(n_instances):
                if bits >> i & 1:
                    known[i] = n
        return known


def _links(prompt: list[int], wanted: Tuning, chain: Chain) -> list[int]:
    """The hash of the beginning up to the end of each whole block, and of what computes it."""
    n, each = len(prompt) // BLOCK, BLOCK // hashes.BLOCK
    return chain.upto(n * each, prompt, wanted)[each : n * each + 1 : each]


def cached(prompt: list[int], wanted: Tuning, slots: Iterable[Slot], chain: Chain) -> int:
    """About how many of the first tokens are in the cells of some slot. What is hashed is not compared, and of what
    follows no more than `MOST_COMPARED` tokens: long prompts must not hold the event loop up."""
    best = 0
    chain.upto(len(prompt) // hashes.BLOCK, prompt, wanted)
    for slot in slots:
        running = slot.sequence
        n = min(chain.shared(slot.chain if running is None else running.chain), len(slot.tokens))
        n += common_prefix(prompt[n : n + MOST_COMPARED], slot.tokens[n : n + MOST_COMPARED])
        if n > best:
            best = max(best, slot.reusable(n, wanted))
    return best


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a request would find: ``n_own`` tokens to compute, and ``wait`` tokens until its first one comes."""

    n_own: int
    wait: float

    @property
    def cost(self) -> float:
        """To itself and to others."""
        return self.wait + self.n_own


def n_to_compute(request: Request, wanted: Tuning, known: int, slots: list[Slot], chain: Chain) -> int:
    """Tokens that an instance would have to compute that has seen `known` of the prompt."""
    if not request.cache_prompt:
        return len(request.prompt)
    return max(len(request.prompt) - max(known, cached(request.prompt, wanted, slots, chain)), 1)


def outlook(
    request: Request,
    wanted: Tuning,
    known: int,
    slots: list[Slot],
    open_: Iterable[Ticket],
    turn: float,
    chain: Chain | None = None,
) -> Outlook:
    """Of one instance that has seen `known` tokens of the prompt; `open_` wait or run there.

    A slot is held for as long as `turn` prompt tokens take. The step thread may change the slots meanwhile: then it is
    the outlook of a moment ago.
    """
    n_own = n_to_compute(request, wanted, known, slots, chain or Chain())
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


log = logging.getLogger(__name__)

MOST_LOOKED_AT = 8
"""Of the requests that wait for an instance, so that a long queue does not hold the event loop up."""
AGAIN_S = 0.05
"""Until an instance is asked again that had nothing to give, and until a request changes over once more."""
LEAST_S, LONGEST_S = 0.01, 5.0  # between two looks


class Router:
    """Sends tickets to the instances of one model. Every ticket is with one of them."""

    def __init__(
        self,
        instances: Sequence[Instance],
        n_slots_each: int,
        max_queue: int,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
    ) -> None:
        self.n_moved = 0  # tickets that changed over
        self._instances = instances
        self._n_slots = n_slots_each
        self._max_queue = max_queue
        self._loop = loop
        self._clock = clock
        self._footprints = Footprints()
        self._asked: dict[int, Recall] = {}  # by donor; an instance is the target of one at most
        self._in_vain: dict[int, float] = {}  # until when a donor is not asked again
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def admits(self, request: Request, instance: Instance) -> bool:
        """Whether the queue of `instance` has a place for `request`."""
        if instance.n_load < self._n_slots + self._max_queue:
            return True
        return admits(request, instance.mailbox.open.values(), self._n_slots, self._max_queue)

    def choose(self, request: Request, wanted: Tuning, chain: Chain) -> tuple[Instance, int]:
        """The instance that is expected to answer soonest, of those that have a place in the queue if any has.

        And how many of the prompt's tokens it is expected to compute.
        """
        if len(self._instances) == 1:
            return self._instances[0], len(request.prompt)
        serving = [i for i, one in enumerate(self._instances) if not one.failure]
        candidates = [i for i in serving if self.admits(request, self._instances[i])] or serving
        if request.id_slot >= 0:
            candidates = [request.id_slot // self._n_slots]
        known = self._footprints.known(request.prompt, wanted, len(self._instances), chain)
        turn = turn_tokens([one.stats for one in self._instances])
        found = {i: self._outlook(i, request, wanted, known[i], turn, chain) for i in candidates}
        best = min(found, key=lambda i: (found[i].cost, i))
        return self._instances[best], found[best].n_own

    def _outlook(self, i: int, request: Request, wanted: Tuning, known: int, turn: float, chain: Chain) -> Outlook:
        instance = self._instances[i]
        open_ = instance.mailbox.open.values()
        return outlook(request, wanted, known, instance.scheduler.slots, open_, turn, chain)

    def send(self, ticket: Ticket, instance: Instance) -> None:
        """Queue `ticket` there. `balance` is to be called afterwards."""
        if len(self._instances) > 1:
            at = self._instances.index(instance)
            self._footprints.add(ticket.request.prompt, ticket.tuning, at, ticket.chain)
        instance.mailbox.submit(ticket)

    def stop(self) -> None:
        """The step threads end: what is given back from now on fails."""
        self._stopped = True
        self._forget_timer()

    # ---- changing over

    def balance(self) -> None:
        """Ask for requests on behalf of idle slots; to be called when there may be new ones of either."""
        if len(self._instances) == 1 or self._stopped:
            return
        self._forget_timer()
        takers = {recall.target for recall in self._asked.values()}
        idle = [i for i, one in enumerate(self._instances) if one.n_load < self._n_slots and not one.failure]
        targets = [i for i in idle if i not in takers]
        if not targets:
            return
        waiting = [self._waiting(instance) for instance in self._instances]
        if not any(waiting):
            return
        pauses = [self._ask(target, waiting) for target in targets]
        if (pause_s := min((pause for pause in pauses if pause is not None), default=None)) is not None:
            self._timer = self._loop.call_later(min(pause_s, LONGEST_S), self.balance)

    def recalled(self, recall: Recall) -> None:
        """An instance has answered: its tickets go where they were wanted. `balance` is to be called afterwards."""
        del self._asked[recall.donor]
        if not recall.given:
            self._in_vain[recall.donor] = self._loop.time() + AGAIN_S
        for ticket in recall.given:
            if ticket.cancelled:
                continue
            if self._stopped:
                ticket.sink([Failed(ShuttingDown("model"))])
                continue
            log.debug("a request changes over from instance %d to %d", recall.donor, recall.target)
            self.n_moved += 1
            ticket.moved_at = self._clock()
            ticket.n_expected = self._n_to_compute(ticket)[recall.target]
            self.send(ticket, self._instances[recall.target])

    @staticmethod
    def _waiting(instance: Instance) -> list[Ticket]:
        """Requests of which nothing runs; those that the step thread has not seen yet are among them."""
        begun = {id(s.ticket) for slot in instance.scheduler.slots if (s := slot.sequence) is not None}
        return [t for t in instance.mailbox.open.values() if id(t) not in begun and not t.cancelled]

    def _ask(self, target: int, waiting: list[list[Ticket]]) -> float | None:
        """Ask the instance with the longest queue, or say in how many seconds to look again (or None)."""
        if waiting[target]:
            return AGAIN_S  # they have just come, or there are no cells for them
        queues = {i: movable for i in range(len(waiting)) if (movable := self._movable(i, target, waiting[i]))}
        now = self._loop.time()
        donor = max((i for i in queues if self._in_vain.get(i, 0.0) <= now), key=lambda i: len(queues[i]), default=-1)
        if donor < 0:
            return AGAIN_S if queues else None
        late_s = [(ticket, self._late_s(ticket, donor, target)) for ticket in _foremost(queues[donor])]
        tickets = [ticket for ticket, late in late_s if late >= 0]
        if not tickets:
            pause_s = max(-max(late for _, late in late_s), LEAST_S)
            self._in_vain[donor] = now + min(pause_s, AGAIN_S)  # what each would lose takes time to find out
            return pause_s
        recall = Recall(donor, target, tickets, self._n_slots - self._instances[target].n_load)
        self._asked[donor] = recall
        self._instances[donor].mailbox.recall(recall)
        return None

    def _movable(self, donor: int, target: int, waiting: list[Ticket]) -> list[Ticket]:
        """Of those that wait for `donor` who may go to `target`.

        While it has an idle slot they are about to begin, or too few cells are free: then `target` must have all.
        """
        if donor == target or donor in self._asked:
            return []
        full = self._instances[donor].n_load > self._n_slots
        if not full and not (self._instances[donor].runner.info.unified and not self._instances[target].n_load):
            return []
        return [ticket for ticket in waiting if ticket.request.id_slot < 0]

    def _late_s(self, ticket: Ticket, donor: int, target: int) -> float:
        """Seconds by which it has waited longer than computing what it would lose takes; negative: it has not."""
        n_own, now = self._n_to_compute(ticket), self._clock()
        patience_s = (n_own[target] - n_own[donor]) / prompt_rate([one.stats for one in self._instances])
        settled_s = ticket.moved_at + AGAIN_S
        if self._instances[donor].n_load <= self._n_slots:
            settled_s = max(settled_s, ticket.submitted_at + AGAIN_S)
        return min(now - ticket.submitted_at - patience_s, now - settled_s)

    def _n_to_compute(self, ticket: Ticket) -> list[int]:
        """Prompt tokens that each instance would have to compute."""
        request, wanted = ticket.request, ticket.tuning
        known = self._footprints.known(request.prompt, wanted, len(self._instances), ticket.chain)
        return [
            n_to_compute(request, wanted, n, one.scheduler.slots, ticket.chain)
            for n, one in zip(known, self._instances, strict=True)
        ]

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _foremost(tickets: list[Ticket]) -> list[Ticket]:
    """The most urgent, and the first of each client before the others."""
    counters: dict[tuple[int, str], count[int]] = {}
    ranked = []
    for at, ticket in enumerate(tickets):
        nth = next(counters.setdefault((ticket.request.priority, ticket.request.client), count()))
        ranked.append((ticket.request.priority, nth, at))
    return [tickets[at] for *_, at in sorted(ranked)[:MOST_LOOKED_AT]]
