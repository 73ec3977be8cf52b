"""What an instance does, told by its step thread to who looks: values that nobody changes any more.

While nobody looks nothing is collected but the last requests that ended, one record each. While somebody does, a view
is made after a step, at most every `PERIOD_S`, and before the thread waits. Times are those of the engine's clock.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import StrEnum

from server.engine.prefix.hashes import BLOCK, Chain
from server.engine.request import Adapters
from server.engine.schedule.scheduler import Entry, Scheduler
from server.engine.sequence import Sequence, Slot

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
    index: int
    priority: int
    n_prompt: int
    n_cached: int
    n_predicted: int
    max_tokens: int
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
    """A slot: what its cells hold, and who holds it. ``shared``: the other slot whose beginning has most in common with
    its own, and how many tokens, in whole blocks; (-1, 0) = none."""

    id: int
    n_tokens: int
    phase: str  # "idle", or the sequence's
    adapters: Adapters
    shared: tuple[int, int]
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
    """An instance at one moment. ``steps``: the last ones, also those that an earlier view has told."""

    at: float
    slots: tuple[SlotView, ...]
    waiting: tuple[ChoiceView, ...]
    n_waiting: int
    steps: tuple[StepRecord, ...]


class Publisher:
    """Of one instance. `watched` is set by who looks; everything else is the step thread's, but for reading `view` and
    `ended`."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], first_slot: int) -> None:
        self.watched = False
        self.view: InstanceView | None = None
        self.ended: deque[EndedChoice] = deque(maxlen=MOST_ENDED)
        self._scheduler = scheduler
        self._clock = clock
        self._first_slot = first_slot
        self._steps: deque[StepRecord] = deque(maxlen=MOST_STEPS)
        self._n_steps = 0
        self._told_at = -PERIOD_S

    def step(self, entries: Seq[Entry], n_prompt: int, seconds: float) -> None:
        """`entries` were decoded."""
        self._n_steps += 1
        n_guessed = sum([len(entry.guesses) for entry in entries])
        n_decode = sum([len(entry.tokens) for entry in entries]) - n_prompt - n_guessed
        self._steps.append(StepRecord(self._n_steps, self._clock(), seconds, n_decode, n_guessed, n_prompt))

    def end(self, sequence: Sequence, now: float, outcome: Outcome) -> None:
        """A choice is about to give back what it holds."""
        slot = -1 if sequence.slot is None else self._first_slot + sequence.slot.id
        self.ended.append(EndedChoice(_choice(sequence), now, outcome, slot))

    def publish(self, *, idle: bool = False) -> None:
        """Make a view, if one is due; the thread is about to wait when it is `idle`, and then it always is."""
        now = self._clock()
        if not idle and now - self._told_at < PERIOD_S:
            return
        self._told_at = now
        slots = self._scheduler.slots
        chains = [_chain(slot) for slot in slots]
        waiting = list(self._scheduler.waiting)
        self.view = InstanceView(
            at=now,
            slots=tuple(self._slot(slot, chains) for slot in slots),
            waiting=tuple(_choice(sequence) for sequence in waiting[:MOST_WAITING]),
            n_waiting=len(waiting),
            steps=tuple(self._steps),
        )

    def _slot(self, slot: Slot, chains: list[Chain]) -> SlotView:
        own, other = chains[slot.id], -1
        n_shared = 0
        for i, chain in enumerate(chains):
            if i != slot.id and (n := own.shared(chain)) > n_shared:
                other, n_shared = self._first_slot + i, n
        sequence = slot.sequence
        return SlotView(
            id=self._first_slot + slot.id,
            n_tokens=len(slot.tokens),
            phase="idle" if sequence is None else sequence.phase.value,
            adapters=slot.tuning.adapters,
            shared=(other, n_shared),
            last_used=slot.last_used,
            choice=None if sequence is None else _choice(sequence),
        )


def _chain(slot: Slot) -> Chain:
    """The hashes of what is in a slot's cells; computed as far as nobody has asked for them yet."""
    sequence = slot.sequence
    if sequence is not None and sequence.shifted:  # its cells are nobody's beginning
        return Chain()
    if sequence is None:
        slot.chain.upto(len(slot.tokens) // BLOCK, slot.tokens, slot.tuning)
        return slot.chain
    sequence.chain.upto(min(len(slot.tokens), len(sequence.target)) // BLOCK, sequence.target, sequence.tuning)
    return sequence.chain


def _choice(sequence: Sequence) -> ChoiceView:
    request = sequence.request
    return ChoiceView(
        request=request.id,
        index=sequence.index,
        priority=request.priority,
        n_prompt=len(request.prompt),
        n_cached=max(sequence.n_cached, 0),
        n_predicted=len(sequence.output),
        max_tokens=request.max_tokens,
        submitted_at=sequence.ticket.submitted_at,
        placed_at=sequence.placed_at,
        prompt_done_at=sequence.prompt_done_at,
    )
