"""What an instance does, told by its step thread to who looks: values that nobody changes any more.

While nobody looks nothing is collected but the last requests that ended, one record each. While somebody does, a view
is made after a step, at most every `PERIOD_S`, and before the thread waits. Times are those of the engine's clock.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import StrEnum

from server.engine.generate.text import TextStream
from server.engine.prefix.hashes import BLOCK, PrefixHashes
from server.engine.request import Adapters
from server.engine.schedule.scheduler import Scheduler, TokenRun
from server.engine.sequence import Sequence, Slot, Ticket

PERIOD_S = 0.2
MOST_WAITING = 50  # of those that wait, told one by one
MOST_STEPS = 1000  # that are kept for who looks
MOST_ENDED = 200


class Outcome(StrEnum):
    """How a choice ended."""

    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ChoiceView:
    """One choice of a request. Times that have not come are 0."""

    request: str
    log_id: str  # of the HTTP request; "" = it has none
    index: int
    priority: int
    n_prompt: int
    n_cached: int
    n_predicted: int
    max_tokens: int
    source: str  # of what was cached (`engine.prefix.origin`); "" = it has no slot yet
    source_slot: int  # -1 = no slot's
    anew: str  # why the rest was computed
    submitted_at: float
    placed_at: float
    prompt_done_at: float


@dataclass(frozen=True, slots=True)
class EndedChoice:
    """A choice that has ended; ``slot`` -1: it never had one."""

    choice: ChoiceView
    ended_at: float
    outcome: Outcome
    slot: int


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot: what its cells hold, and who holds it."""

    id: int
    n_tokens: int
    phase: str  # "idle", or the sequence's
    adapters: Adapters
    last_used: float
    choice: ChoiceView | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One decode: so many tokens of generating slots, of their guesses, and of prompts."""

    number: int
    at: float
    seconds: float
    n_decode: int
    n_guessed: int
    n_prompt: int


@dataclass(frozen=True, slots=True)
class InstanceView:
    """An instance at one moment. ``steps``: the last ones, also those that an earlier view has told.

    ``shared``: pairs of slots and how many tokens both begin with, in whole blocks: as many pairs as it takes to lead
    from each slot to all that share anything with it, by those that share the most. What two others share is the least
    on the way between them, so that this is the whole tree of beginnings.
    """

    at: float
    slots: tuple[SlotView, ...]
    shared: tuple[tuple[int, int, int], ...]
    waiting: tuple[ChoiceView, ...]
    n_waiting: int
    steps: tuple[StepRecord, ...]


class Publisher:
    """Of one instance. `watched` is set by who looks; everything else is the step thread's, but for reading `view` and
    `ended`."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float],
        first_slot: int,
        not_taken: Callable[[], Seq[Ticket]] = tuple,
    ) -> None:
        self.watched = False
        self.view: InstanceView | None = None
        self.ended: deque[EndedChoice] = deque(maxlen=MOST_ENDED)
        self._scheduler = scheduler
        self._clock = clock
        self._first_slot = first_slot
        self._not_taken = not_taken  # requests that wait for this instance before others
        self._steps: deque[StepRecord] = deque(maxlen=MOST_STEPS)
        self._n_steps = 0
        self._told_at = -PERIOD_S

    def step(self, entries: Seq[TokenRun], n_prompt: int, seconds: float) -> None:
        """`entries` were decoded."""
        self._n_steps += 1
        n_guessed = sum([len(entry.guesses) for entry in entries])
        n_decode = sum([len(entry.tokens) for entry in entries]) - n_prompt - n_guessed
        self._steps.append(StepRecord(self._n_steps, self._clock(), seconds, n_decode, n_guessed, n_prompt))

    def end(self, sequence: Sequence, now: float, outcome: Outcome) -> None:
        """A choice is about to give back what it holds."""
        slot = -1 if sequence.slot is None else self._first_slot + sequence.slot.id
        self.ended.append(EndedChoice(self._choice(sequence), now, outcome, slot))

    def publish(self, *, idle: bool = False) -> None:
        """Make a view, if one is due; the thread is about to wait when it is `idle`, and then it always is."""
        now = self._clock()
        if not idle and now - self._told_at < PERIOD_S:
            return
        self._told_at = now
        slots = self._scheduler.slots
        all_hashes = list(map(_hashes, slots))
        waiting = [*self._scheduler.waiting, *map(_to_come, self._not_taken())]
        self.view = InstanceView(
            at=now,
            slots=tuple(map(self._slot, slots)),
            shared=tuple((self._first_slot + a, self._first_slot + b, n) for a, b, n in shared_beginnings(all_hashes)),
            waiting=tuple(self._choice(sequence) for sequence in waiting[:MOST_WAITING]),
            n_waiting=len(waiting),
            steps=tuple(self._steps),
        )

    def _slot(self, slot: Slot) -> SlotView:
        sequence = slot.sequence
        return SlotView(
            id=self._first_slot + slot.id,
            n_tokens=len(slot.tokens),
            phase="idle" if sequence is None else sequence.phase.value,
            adapters=slot.tuning.adapters,
            last_used=slot.last_used,
            choice=None if sequence is None else self._choice(sequence),
        )

    def _choice(self, sequence: Sequence) -> ChoiceView:
        request, origin = sequence.request, sequence.origin
        return ChoiceView(
            request=request.id,
            log_id=request.log_id,
            index=sequence.index,
            priority=request.priority,
            n_prompt=len(request.prompt),
            n_cached=max(sequence.n_cached, 0),
            n_predicted=len(sequence.output),
            max_tokens=request.max_tokens,
            source="" if origin is None else origin.source.value,
            source_slot=-1 if origin is None or origin.slot < 0 else self._first_slot + origin.slot,
            anew="" if origin is None else origin.anew.value,
            submitted_at=sequence.ticket.submitted_at,
            placed_at=sequence.placed_at,
            prompt_done_at=sequence.prompt_done_at,
        )


def _to_come(ticket: Ticket) -> Sequence:
    """The first choice of a request that no instance has taken."""
    return Sequence(ticket, 0, TextStream(), ticket.request.prompt)


def shared_beginnings(all_hashes: Seq[PrefixHashes]) -> list[tuple[int, int, int]]:
    """A spanning forest of most shared tokens (Prim's algorithm), in as many comparisons as there are pairs."""
    found = []
    best = dict.fromkeys(range(len(all_hashes)), (0, -1))  # of those that are not in the tree: most shared, with whom
    while best:
        at = max(best, key=lambda i: best[i][0])
        n, other = best.pop(at)
        if n:
            found.append((other, at, n))
        for i, (most, _) in best.items():
            if (common := all_hashes[at].shared(all_hashes[i])) > most:
                best[i] = (common, at)
    return found


def _hashes(slot: Slot) -> PrefixHashes:
    """The hashes of what is in a slot's cells; computed as far as nobody has asked for them yet."""
    sequence = slot.sequence
    if sequence is not None and sequence.shifted:  # its cells are nobody's beginning
        return PrefixHashes()
    if sequence is None:
        slot.hashes.upto(len(slot.tokens) // BLOCK, slot.tokens, slot.tuning)
        return slot.hashes
    sequence.hashes.upto(min(len(slot.tokens), len(sequence.target)) // BLOCK, sequence.target, sequence.tuning)
    return sequence.hashes
