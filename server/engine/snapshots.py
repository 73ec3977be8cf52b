"""Immutable snapshots of an instance and of the caches, for the web UI, GET /slots and KV events.

The reading thread makes them while steps run. So single numbers may be one step apart, and lists that the step thread
changes are first copied in one operation. Times are those of the engine's clock.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Literal, TypeAlias

from server.engine.cache.prefix_cache import BLOCK, CacheEntry, CacheTier, common_prefix
from server.engine.lora import AdapterSet
from server.engine.placement import Placement
from server.engine.request import Adapters, Request, State
from server.engine.scheduler import Scheduler, TokenRun
from server.engine.sequence import Sequence, Slot, Ticket

MAX_COMPARED = 2_000_000  # tokens in a view
MAX_WAITING = 50  # waiting choices listed individually
MAX_STEPS = 1000  # steps recorded for views
MAX_ENDED = 200
MAX_AGE_S = 2.0
"""Seconds for which a snapshot of cached entries is reused."""
MAX_STATES = 60  # entries of a tier listed individually, highest keep value first

CachedText: TypeAlias = tuple[int, AdapterSet, Seq[int]]
"""A slot's number, or a cached entry's negative one; what computed its tokens; the tokens."""


@dataclass(frozen=True, slots=True)
class ChoiceView:
    """One choice of a request. ``slot`` -1 = none. Times that have not occurred are 0."""

    request: str
    log_id: str  # id of the HTTP request; "" = none
    index: int
    priority: int
    n_prompt: int
    n_cached: int
    n_predicted: int
    max_tokens: int
    source: str  # source of the cached prefix (`Source`); "" = no slot yet
    source_slot: int  # -1 = not a slot
    recompute: str  # why the rest was prefilled (`RecomputeReason`)
    submitted_at: float
    placed_at: float
    placement_s: float
    prompt_done_at: float
    slot: int
    ended_at: float
    state: State


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """One slot, for GET /slots and the web UI. ``request`` and ``choice`` are the current or last ones, None if there
    was none.
    """

    id: int
    n_ctx: int
    is_processing: bool = False
    n_requests: int = 0
    n_tokens: int = 0  # in its cells
    request: Request | None = None
    choice: ChoiceView | None = None
    n_prompt_computed: int = 0
    has_new_line: bool = False
    n_checkpoints: int = 0
    spec_type: str = "none"  # speculation type
    scope: str = ""  # cache namespace of the request, or of its contents
    phase: str = "idle"  # or the sequence's phase
    adapters: Adapters = ()
    last_used: float = 0.0


Step: TypeAlias = tuple[int, float, float, int, int, int]
"""One decode: its number, time and seconds, and its decode, draft and prefill tokens."""


@dataclass(frozen=True, slots=True)
class InstanceView:
    """An instance at one moment. ``steps``: the last ones, including those of earlier views.

    ``shared``: pairs of slots and their common prefix in whole blocks: a spanning forest of longest common prefixes,
    so the common prefix of any two slots is the minimum on the path between them. A cached entry appears as its
    negative number.
    """

    shared: tuple[tuple[int, int, int], ...]
    waiting: tuple[ChoiceView, ...]
    n_waiting: int
    steps: tuple[Step, ...]


@dataclass(eq=False)
class Snapshots:
    """Records the ended choices of an instance and, while `watched`, its steps, and makes views of it."""

    _scheduler: Scheduler
    _clock: Callable[[], float]
    _first_slot: int
    watched: bool = False
    ended: deque[ChoiceView] = field(default_factory=lambda: deque(maxlen=MAX_ENDED))
    _steps: deque[Step] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    _n_steps: int = 0
    _texts: object = None  # identifies the texts of `_shared`
    _shared: tuple[tuple[int, int, int], ...] = ()

    # ---- the step thread

    def step(self, runs: Seq[TokenRun], n_prompt: int, seconds: float) -> None:
        self._n_steps += 1
        n_drafted = sum([len(run.draft_tokens) for run in runs])
        n_decode = sum([len(run.tokens) for run in runs]) - n_prompt - n_drafted
        self._steps.append((self._n_steps, self._clock(), seconds, n_decode, n_drafted, n_prompt))

    def end(self, sequence: Sequence, now: float, state: State) -> None:
        """Record that a choice is about to release its slot."""
        self.ended.append(self._choice(sequence, now, state))

    # ---- the event loop

    def view(self, not_taken: Seq[Ticket], cached: Seq[CachedText]) -> InstanceView:
        """Return a view. `not_taken`: waiting requests that prefer this instance. `cached`: the cached entries for the
        prefix tree.
        """
        slots = self._scheduler.slots.copy()
        waiting = [*self._scheduler.waiting, *(Sequence(ticket, 0) for ticket in not_taken)]
        return InstanceView(
            shared=self._shared_prefixes(slots, cached),
            waiting=tuple(map(self._choice, waiting[:MAX_WAITING])),
            n_waiting=len(waiting),
            steps=tuple(self._steps),
        )

    def _shared_prefixes(self, slots: Seq[Slot], cached: Seq[CachedText]) -> tuple[tuple[int, int, int], ...]:
        """Return `InstanceView.shared`, recomputed when a text has changed."""
        texts = [(self._first_slot + i, slot.adapter_set, _text(slot)) for i, slot in enumerate(slots)] + list(cached)
        held = [(slot.n_requests, id(slot.tokens)) for slot in slots]
        if (key := (held, [(number, len(text)) for number, _, text in texts])) != self._texts:
            self._texts, self._shared = key, tuple(shared_prefixes(texts))
        return self._shared

    def slots(self, n_ctx: int, spec_type: str) -> Iterator[SlotSnapshot]:
        for slot in self._scheduler.slots.copy():
            running, n_tokens = slot.sequence, len(slot.tokens)
            s = running or slot.last
            yield SlotSnapshot(
                *(self._first_slot + slot.id, n_ctx, running is not None, slot.n_requests, n_tokens),
                request=s.request if s else None,
                choice=self._choice(s) if s else None,
                n_prompt_computed=max(min(n_tokens, len(s.request.prompt)) - max(s.n_cached, 0), 0) if s else 0,
                has_new_line=s is not None and s.text.has_new_line,
                n_checkpoints=len(slot.checkpoints),
                spec_type=spec_type,
                scope=(s or slot).adapter_set.scope,
                phase="idle" if running is None else running.phase.value,
                adapters=slot.adapter_set.adapters,
                last_used=slot.last_used,
            )

    def _choice(self, sequence: Sequence, ended_at: float = 0.0, state: State | None = None) -> ChoiceView:
        request, slot, (source, source_slot, recompute) = sequence.request, sequence.slot, sequence.origin
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
            recompute=recompute,
            submitted_at=sequence.ticket.submitted_at,
            placed_at=sequence.placed_at,
            placement_s=sequence.placement_s,
            prompt_done_at=sequence.prompt_done_at,
            slot=-1 if slot is None else self._first_slot + slot.id,
            ended_at=ended_at,
            state=state or (State.RUNNING if sequence.placed_at else State.WAITING),
        )


Source: TypeAlias = Literal["none", "slot", "copy", "ram", "disk"]
"""Where a prompt's cached prefix came from."""
RecomputeReason: TypeAlias = Literal["last", "off", "scored", "nothing", "differs", "ends", "uncut", "other", "short"]
"""Why the tokens after the cached prefix were prefilled.

``last``: the last token is always computed. ``off``: caching is off for the request. ``scored``: prompt log
probabilities are wanted. ``nothing``: no cache has this prefix. ``differs``: the cached text differs from there on.
``ends``: the cached text ends there. ``uncut``: more is cached, in memory that cannot be truncated to that place.
``other``: more is cached under another LoRA set or namespace. ``short``: another slot has a little more, but copying
costs more than computing.
"""


def origin_of(placement: Placement, slots: Seq[Slot]) -> tuple[Source, int, RecomputeReason]:
    """Return the source of the cached prefix, its slot within the instance (-1 = none), and why the rest is computed.
    Call it before `placement` changes cells.
    """
    sequence, n = placement.sequence, placement.n_cached
    source = placement.source if n else None
    where: Source = "none"
    if isinstance(source, CacheEntry):
        where = "disk" if sequence.fetch is not None and sequence.fetch.found is source else "ram"
    elif source is not None:
        where = "slot" if source is placement.slot else "copy"
    cached = () if source is None else source.tokens
    return where, source.id if isinstance(source, Slot) else -1, _recompute_reason(placement, cached, n, slots)


def _recompute_reason(placement: Placement, cached: Seq[int], n: int, slots: Seq[Slot]) -> RecomputeReason:
    sequence = placement.sequence
    target = sequence.target
    if n >= len(target) - 1:
        return "last"
    if not sequence.request.cache_prompt:
        return "off"
    if n >= sequence.n_reusable:
        return "scored"
    following = target[n : n + 1]  # slots with another token here need no comparison
    if not placement.shifted and cached[n : n + 1] == following:
        return "uncut"
    others = [slot for slot in slots if slot.tokens[n : n + 1] == following]
    shared = ((common_prefix(target, slot.tokens), slot.adapter_set == sequence.adapter_set) for slot in others)
    common, same = max(shared, default=(0, True))
    if common > n:
        return "short" if same else "other"
    if not n:
        return "nothing"
    return "ends" if n >= len(cached) else "differs"


@dataclass(frozen=True, slots=True)
class HeldText:
    """The text of one slot or cached entry: the first `n` of `tokens`, which must not change while it is used. ``key``
    identifies it; ``medium`` is "GPU" (KV cells on any device) or "CPU" (RAM). ``salt``: its cache namespace.
    """

    key: Hashable
    tokens: Seq[int]
    n: int
    medium: str
    salt: str = ""


Entry: TypeAlias = tuple[int, int, int, float, int, float]
"""A cached entry without a slot: a number while it is cached, its tokens and bytes, the time of its last use by the
engine's clock, its number of uses, and its keep value.
"""


@dataclass(frozen=True, slots=True)
class TierView:
    """A cache tier: number of entries, bytes, and the `MAX_STATES` entries of highest keep value."""

    n: int
    n_bytes: int
    states: tuple[Entry, ...]


def tier_view(cache: CacheTier, now: float) -> tuple[TierView, list[CachedText]]:
    """Return the view of a cache tier, and the texts of the entries in it."""
    n, n_bytes = len(cache), cache.n_bytes  # read first: a step thread may add entries
    found = nlargest(MAX_STATES, cache, key=lambda state: state.keep_value(now))
    views = [(id(s), len(s.tokens), s.size, s.last_used, s.n_used, s.keep_value(now)) for s in found]
    return TierView(n, n_bytes, tuple(views)), [(-id(s), s.adapter_set, s.tokens) for s in found]


def _text(slot: Slot) -> Seq[int]:
    """Return the text of `slot`; nothing after a context shift, because shifted cells are no prefix of any prompt."""
    sequence, tokens = slot.sequence, slot.tokens
    if sequence is None:
        return tokens
    return () if sequence.shifted else sequence.target[: len(tokens)]


def shared_prefixes(texts: Seq[CachedText]) -> list[tuple[int, int, int]]:
    """Return a spanning forest of longest common prefixes, in whole blocks: (number, number, tokens).

    Each text is linked to the one before it that shares the longest prefix. The common prefix of any two is the
    minimum on the path between them. After `MAX_COMPARED` tokens the other texts are not linked: this runs on the event
    loop, and clients choose the texts.
    """
    pairs: list[tuple[int, int, int]] = []
    n_compared = 0
    origins = [(adapter_set.scope, adapter_set.at(0)) for _, adapter_set, _ in texts]
    for at, (number, _, tokens) in enumerate(texts):
        best, longest = 0, BLOCK - 1
        for i, (other, _, its_tokens) in enumerate(texts[:at]):
            if n_compared > MAX_COMPARED:
                return pairs
            if tokens[longest : longest + 1] == its_tokens[longest : longest + 1] and origins[i] == origins[at]:
                n = common_prefix(tokens, its_tokens)
                n_compared += n + 1
                best, longest = (other, n) if n > longest else (best, longest)
        if longest >= BLOCK:
            pairs.append((best, number, longest - longest % BLOCK))
    return pairs
