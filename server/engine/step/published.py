"""What an instance does, told by its step thread to who looks, and what the caches of a model keep: values that nobody
changes any more.

While nobody looks nothing is collected but the last requests that ended, one record each. While somebody does, a view
is made after a step, or before the thread waits, once the one before was read: there are as many as are read. Times are
those of the engine's clock.

Only what GET /slots shows (`SlotSnapshot`) is read from another thread while steps run, so that single numbers may be a
step apart.
"""

import logging
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import cmp_to_key
from heapq import nlargest
from itertools import pairwise
from typing import Literal, TypeAlias

from server.engine.kv.ram_cache import StateCache
from server.engine.prefix.hashes import BLOCK, n_equal
from server.engine.request import Adapters, Request
from server.engine.schedule.scheduler import Scheduler, TokenRun
from server.engine.sequence import Sequence, Slot, Ticket

log = logging.getLogger(__name__)

MOST_WAITING = 50  # of those that wait, told one by one
MOST_STEPS = 1000  # that are kept for who looks
MOST_ENDED = 200
KEPT_S = 2.0
"""How long what is told of kept states is good for."""
MOST_STATES = 60  # of a cache, told one by one: the most valuable ones

KeptText: TypeAlias = tuple[int, Seq[int]]
"""A kept state's number, and the hashes of its text."""

Outcome = Literal["done", "cancelled", "failed"]
"""How a choice ended."""


@dataclass(frozen=True, slots=True)
class ChoiceView:
    """One choice of a request, ``slot`` -1: it has none. Times that have not come are 0."""

    request: str
    log_id: str  # of the HTTP request; "" = it has none
    index: int
    priority: int
    n_prompt: int
    n_cached: int
    n_predicted: int
    max_tokens: int
    source: str  # of what was cached (`engine.prefix.find`); "" = it has no slot yet
    source_slot: int  # -1 = no slot's
    anew: str  # why the rest was computed
    submitted_at: float
    placed_at: float
    placement_s: float
    prompt_done_at: float
    slot: int
    ended_at: float = 0.0
    outcome: Outcome | None = None


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
class SlotSnapshot:
    """One slot. ``request`` is what it does, or did last; None when it never did anything. ``n_decoded`` counts
    generated tokens."""

    id: int
    n_ctx: int
    is_processing: bool = False
    n_requests: int = 0
    n_tokens: int = 0  # in its cells
    request: Request | None = None
    n_prompt_cached: int = 0
    n_prompt_computed: int = 0
    n_decoded: int = 0
    has_new_line: bool = False
    n_checkpoints: int = 0  # places inside it that a prompt can go on from, beside its end
    spec_type: str = "none"  # how its next tokens may be guessed
    scope: str = ""  # of the request, or of what it holds


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
    on the way between them, so that this is the whole tree of beginnings. A kept state stands among them as minus its
    number.
    """

    at: float
    slots: tuple[SlotView, ...]
    shared: tuple[tuple[int, int, int], ...]
    waiting: tuple[ChoiceView, ...]
    n_waiting: int
    steps: tuple[StepRecord, ...]


@dataclass(eq=False)
class Publisher:
    """Of one instance. `watched` and `kept` are set by who looks; everything else is the step thread's, but for `read`
    and reading `ended`. `not_taken`: requests that wait for this instance before others."""

    _scheduler: Scheduler
    _clock: Callable[[], float]
    _first_slot: int
    _not_taken: Callable[[], Seq[Ticket]] = tuple
    watched: bool = False
    kept: Seq[KeptText] = ()  # of kept states, which the tree has, too
    ended: deque[ChoiceView] = field(default_factory=lambda: deque(maxlen=MOST_ENDED))
    _view: InstanceView | None = None
    _due: bool = True  # the view was read
    _is_old: bool = False  # the thread has done something since
    _steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    _n_steps: int = 0
    _ends: Seq[tuple[int, int]] = ()  # of the texts that `_shared` is about
    _shared: tuple[tuple[int, int, int], ...] = ()

    def step(self, entries: Seq[TokenRun], n_prompt: int, seconds: float) -> None:
        """`entries` were decoded."""
        self._n_steps += 1
        n_guessed = sum([len(entry.guesses) for entry in entries])
        n_decode = sum([len(entry.tokens) for entry in entries]) - n_prompt - n_guessed
        self._steps.append(StepRecord(self._n_steps, self._clock(), seconds, n_decode, n_guessed, n_prompt))

    def end(self, sequence: Sequence, now: float, outcome: Outcome) -> None:
        """A choice is about to give back what it holds."""
        self.ended.append(self._choice(sequence, now, outcome))

    def read(self) -> tuple[InstanceView | None, bool]:
        """What was published last, None at first; and whether the thread, should it wait, is to be woken to publish
        what it has done since."""
        self._due = True
        return self._view, self._is_old or self._view is None

    def publish(self) -> None:
        """Make a view, if one is due. Never fails: who looks ends no request."""
        self._is_old = not self._due
        if not self._due:
            return
        self._due = False
        try:
            self._view = self._made()
        except Exception:
            log.exception("what the instance does could not be told. A fault: report it with what follows")

    def _made(self) -> InstanceView:
        now = self._clock()
        slots = self._scheduler.slots
        waiting = [*self._scheduler.waiting, *(Sequence(ticket, 0) for ticket in self._not_taken())]
        return InstanceView(
            at=now,
            slots=tuple(map(self._slot, slots)),
            shared=self._beginnings(slots),
            waiting=tuple(self._choice(sequence) for sequence in waiting[:MOST_WAITING]),
            n_waiting=len(waiting),
            steps=tuple(self._steps),
        )

    def _beginnings(self, slots: Seq[Slot]) -> tuple[tuple[int, int, int], ...]:
        """As in `InstanceView.shared`; found anew when a text has changed."""
        kept = self.kept
        texts = [*map(_hashes, slots), *(text for _, text in kept)]
        numbers = [*range(self._first_slot, self._first_slot + len(slots)), *(-number for number, _ in kept)]
        ends = [(number, text[-1] if text else 0) for number, text in zip(numbers, texts, strict=True)]
        if ends != self._ends:  # a text's last hash is that of all of it
            self._ends = ends
            self._shared = tuple((numbers[a], numbers[b], n) for a, b, n in shared_beginnings(texts))
        return self._shared

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

    def _choice(self, sequence: Sequence, ended_at: float = 0.0, outcome: Outcome | None = None) -> ChoiceView:
        request, (source, source_slot, anew) = sequence.request, sequence.origin
        return ChoiceView(
            request=request.id,
            log_id=request.log_id,
            index=sequence.index,
            priority=request.priority,
            n_prompt=len(request.prompt),
            n_cached=max(sequence.n_cached, 0),
            n_predicted=len(sequence.output),
            max_tokens=request.max_tokens,
            source=source,
            source_slot=-1 if source_slot < 0 else self._first_slot + source_slot,
            anew=anew,
            submitted_at=sequence.ticket.submitted_at,
            placed_at=sequence.placed_at,
            placement_s=sequence.placement_s,
            prompt_done_at=sequence.prompt_done_at,
            slot=-1 if sequence.slot is None else self._first_slot + sequence.slot.id,
            ended_at=ended_at,
            outcome=outcome,
        )


def snapshot(slot: Slot, first_id: int, n_ctx: int, spec_type: str) -> SlotSnapshot:
    """A copy of what `slot` does now."""
    n_tokens, running = len(slot.tokens), slot.sequence
    sequence = running or slot.last
    told = SlotSnapshot(
        first_id + slot.id,
        n_ctx,
        running is not None,
        slot.n_requests,
        n_tokens,
        spec_type=spec_type,
        n_checkpoints=len(slot.checkpoints),
        scope=slot.tuning.scope,
    )
    if sequence is None:
        return told
    n_cached = max(sequence.n_cached, 0)
    return replace(
        told,
        request=sequence.request,
        n_prompt_cached=n_cached,
        n_prompt_computed=max(min(n_tokens, len(sequence.request.prompt)) - n_cached, 0),
        n_decoded=len(sequence.output),
        has_new_line=sequence.text.has_new_line,
        scope=sequence.tuning.scope,
    )


@dataclass(frozen=True, slots=True)
class KeptView:
    """A prompt state that has no slot. ``number``: its name, as long as it is kept."""

    number: int
    n_tokens: int
    size: int  # bytes
    used_at: float  # by the engine's clock
    n_used: int
    value: float  # as in `engine.kv.cost`


@dataclass(frozen=True, slots=True)
class KeptStates:
    """All that a cache keeps: how many, their bytes, and the `MOST_STATES` most valuable ones."""

    n: int
    n_bytes: int
    states: tuple[KeptView, ...]


def kept_in(cache: StateCache, now: float) -> tuple[KeptStates, list[KeptText]]:
    """What a cache keeps, and how those that are told one by one begin."""
    told = nlargest(MOST_STATES, cache, key=lambda state: state.value(now))
    views = [KeptView(id(s), len(s.tokens), s.size, s.used_at, s.n_used, s.value(now)) for s in told]
    texts: list[KeptText] = [(id(s), s.hashes.upto(len(s.tokens) // BLOCK, s.tokens, s.tuning)) for s in told]
    return KeptStates(len(cache), cache.size, tuple(views)), texts


def shared_beginnings(texts: Seq[Seq[int]]) -> list[tuple[int, int, int]]:
    """A spanning forest of most shared tokens; `texts` by the hashes of their beginnings.

    Neighbours in the order of a dictionary: what any two share is the least that neighbours between them do.
    """

    def order(one: int, other: int) -> int:
        a, b = texts[one], texts[other]
        n = n_equal(a, b)
        return len(a) - len(b) if n == min(len(a), len(b)) else -1 if a[n] < b[n] else 1

    ordered = sorted(range(len(texts)), key=cmp_to_key(order))
    pairs = [(one, other, n_equal(texts[one], texts[other])) for one, other in pairwise(ordered)]
    return [(one, other, (n - 1) * BLOCK) for one, other, n in pairs if n > 1]  # the first hash is that of no tokens


def _hashes(slot: Slot) -> Seq[int]:
    """The hashes of what is in a slot's cells; computed as far as nobody has asked for them yet."""
    sequence = slot.sequence
    if sequence is None:
        n = len(slot.tokens) // BLOCK
        return slot.hashes.upto(n, slot.tokens, slot.tuning)[: n + 1]
    if sequence.shifted:  # its cells are nobody's beginning
        return ()
    n = min(len(slot.tokens), len(sequence.target)) // BLOCK
    return sequence.hashes.upto(n, sequence.target, sequence.tuning)[: n + 1]
