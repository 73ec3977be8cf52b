"""Who gets a slot, and who decodes which tokens in the next step. Pure: no threads, no clock, no native calls.

A step of the instance is: `place` until nobody can be placed, `plan`, decode, `commit` (or `make_room` when the
cells ran out), sample, `release` who ended.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from server.engine.adapters import reusable
from server.engine.pace import Pace
from server.engine.params import EngineParams
from server.engine.prefix import common_prefix, longest_match
from server.engine.protocols import RunnerInfo
from server.engine.request import Adapters
from server.engine.reuse import Move, moves
from server.engine.sequence import Phase, Sequence, Slot
from server.engine.tier import MIN_TOKENS, Stored, Tier, tier_limit

MIN_COPY = 16  # tokens; a shorter prefix of another slot is computed anew
MIN_WAIT = 64  # tokens; a longer prefix that another slot is computing is waited for
RESERVE = 64  # cells kept for what a placed sequence will generate (unified KV)
ALONE_S = 1.0  # step time to stay under when no slot generates: bounds how long a cancel takes


@dataclass(frozen=True, slots=True)
class Placement:
    """Put `sequence` into `slot`, whose cells must then hold the first `n_reuse` tokens of `source`'s.

    With ``moves`` (then `source` is `slot`), these bring further runs of its cells to their new places. With
    ``stored``, the first `n_reuse` tokens come from that state.
    """

    sequence: Sequence
    slot: Slot
    source: Slot | None
    n_reuse: int
    moves: tuple[Move, ...] = ()
    stored: Stored | None = None

    @property
    def n_kept(self) -> int:
        """Tokens that need no computing."""
        return self.n_reuse + sum(move.n for move in self.moves)


@dataclass(frozen=True, slots=True)
class Entry:
    """A run of tokens of one sequence in the step's batch."""

    seq: int
    pos: int
    tokens: list[int]
    want_logits: bool
    sequence: Sequence


class _Skip(Enum):
    """Why a waiting sequence is not placed now."""

    LATER = "its slot is busy, or its prefix is being computed; others may go first"
    NO_ROOM = "too few free cells; others must not overtake it for ever"


class Scheduler:
    """Queue, slots and budgets of one instance."""

    def __init__(self, info: RunnerInfo, params: EngineParams) -> None:
        self.info = info
        self.tier = Tier(tier_limit(params.cache_ram, info.free_bytes), partial=info.can_cut)
        self.params = params
        self.slots = [Slot(i) for i in range(info.n_seq)]
        self.waiting: deque[Sequence] = deque()
        self.pace = Pace(params.target_itl_ms / 1e3, min(params.min_chunk, info.n_batch), info.n_batch)
        self.pace_alone = Pace(ALONE_S, self.pace.smallest, info.n_batch, min(512, info.n_batch))
        self._limit = info.n_batch
        self._turns: dict[Adapters, int] = {}  # when each LoRA set last had a step
        self._crowded = False  # somebody was parked and nobody has left since: placing him again would go in circles

    def active(self) -> Iterator[Sequence]:
        """Every sequence that holds a slot."""
        return (slot.sequence for slot in self.slots if slot.sequence is not None)

    def place(self) -> Placement | None:
        """The next waiting sequence that can have a slot, taken out of the queue."""
        if not any(slot.idle for slot in self.slots):
            return None
        if self._crowded and any(self.active()):
            return None
        for sequence in self.waiting:
            placement = self._placement(sequence)
            if placement is _Skip.NO_ROOM:
                return None
            if isinstance(placement, Placement):
                self.waiting.remove(sequence)
                return placement
        return None

    def _placement(self, sequence: Sequence) -> Placement | _Skip:
        pinned = sequence.request.id_slot
        if pinned >= 0:
            pinned %= self.info.n_seq  # ids run on across instances
        if pinned >= 0 and not self.slots[pinned].idle:
            return _Skip.LATER
        if sequence.saved is not None:
            slot = self.slots[pinned] if pinned >= 0 else self._stalest(None)
            return self._if_room(sequence, Placement(sequence, slot, None, 0))
        source, n = self._match(sequence)
        stored, n_stored = self._stored(sequence, n)
        coming = self._coming(sequence)
        if coming >= MIN_WAIT and coming > max(n, n_stored):
            return _Skip.LATER
        if stored is not None:
            slot = self.slots[pinned] if pinned >= 0 else self._stalest(None)
            return self._if_room(sequence, Placement(sequence, slot, None, n_stored, stored=stored))
        slot = self.slots[pinned] if pinned >= 0 else self._choose(sequence, source, n)
        if source is not slot and not self._worth_copying(source, n):
            source, n = None, 0
        placement = Placement(sequence, slot, source, n)
        if sequence.request.n_cache_reuse > 0 and self.info.can_shift and self._may_reuse(sequence):
            placement = self._with_moves(placement, pinned)
        return self._if_room(sequence, placement)

    def _may_reuse(self, sequence: Sequence) -> bool:
        return sequence.request.cache_prompt and self.params.cache_prompt

    def _with_moves(self, placement: Placement, pinned: int) -> Placement:
        """The idle slot of which most can be reused when runs of its cells may move; else `placement`."""
        sequence, best = placement.sequence, placement
        wanted = sequence.target[:-1]
        candidates = [self.slots[pinned]] if pinned >= 0 else [slot for slot in self.slots if slot.idle]
        for slot in candidates:
            if slot.tuning != sequence.tuning:
                continue
            n = slot.reusable(common_prefix(wanted, slot.tokens), sequence.tuning)
            found = Placement(
                sequence, slot, slot, n, tuple(moves(slot.tokens, wanted, n, sequence.request.n_cache_reuse))
            )
            if found.n_kept > best.n_kept:
                best = found
        return best

    def _match(self, sequence: Sequence) -> tuple[Slot | None, int]:
        """Longest reusable prefix: at least the last token is decoded again, for its logits."""
        if not self._may_reuse(sequence):
            return None, 0
        source, n = longest_match(sequence.target, self.slots, sequence.tuning)
        return source, min(n, len(sequence.target) - 1)

    def _stored(self, sequence: Sequence, n: int) -> tuple[Stored | None, int]:
        """A kept state that saves much more computing than the `n` tokens of a slot."""
        if not len(self.tier) or not self._may_reuse(sequence):
            return None, 0
        return self.tier.match(sequence.target[:-1], sequence.tuning, n + MIN_TOKENS)

    def _coming(self, sequence: Sequence) -> int:
        """Longest prefix that a slot is computing right now."""
        if not self._may_reuse(sequence):
            return 0
        prefilling = (s for s in self.active() if s.phase is Phase.PREFILL)
        longest = max(
            (reusable(common_prefix(sequence.target, s.target), s.tuning, sequence.tuning) for s in prefilling),
            default=0,
        )
        return min(longest, len(sequence.target) - 1)

    def _choose(self, sequence: Sequence, source: Slot | None, n: int) -> Slot:
        """The matching slot itself if little is lost by it, else the one unused for longest."""
        if source is not None and source.idle:
            similar = n > self.params.slot_prompt_similarity * len(sequence.target) > 0
            if similar and len(source.tokens) - n <= n:
                return source
        return self._stalest(source)

    def _stalest(self, spare: Slot | None) -> Slot:
        """An idle slot: an empty one first, then the least recently used; `spare` only if there is no other."""
        idle = [slot for slot in self.slots if slot.idle]
        return min(idle, key=lambda slot: (slot is spare, bool(slot.tokens), slot.last_used, slot.id))

    def _worth_copying(self, source: Slot | None, n: int) -> bool:
        """A copy takes the whole source along; with separate KV that costs, however little of it is kept."""
        if source is None or n < MIN_COPY:
            return False
        return self.info.unified or n * 16 >= len(source.tokens)

    def _if_room(self, sequence: Sequence, placement: Placement) -> Placement | _Skip:
        if not self.info.unified:
            return placement
        taken = sum(
            max(len(s.target), s.n_computed) - (s.slot.n_shared if s.slot is not None else 0) + RESERVE
            for s in self.active()
        )
        needed = max(len(sequence.target), len(sequence.saved_tokens)) - placement.n_kept + RESERVE
        return placement if taken == 0 or taken + needed <= self.info.n_cells else _Skip.NO_ROOM

    def occupy(self, placement: Placement, now: float) -> None:
        """Record that `placement` was carried out; ``slot.tokens`` already says what its cells hold."""
        sequence, slot = placement.sequence, placement.slot
        slot.sequence, sequence.slot = sequence, slot
        slot.tuning = sequence.tuning
        slot.n_requests += 1
        if sequence.n_cached < 0:
            sequence.n_cached = len(slot.tokens)
            sequence.placed_at = now
        sequence.phase = Phase.PREFILL
        if len(slot.tokens) == len(sequence.target) and sequence.output:
            sequence.phase = Phase.DECODE

    def plan(self) -> list[Entry]:
        """The next batch: every generating slot's token first, then prompts, the oldest first."""
        members = self._turn()
        entries = [
            Entry(s.slot.id, len(s.slot.tokens), [s.output[-1]], True, s)
            for s in members
            if s.phase is Phase.DECODE and s.slot is not None
        ]
        size = self.pace.size if entries else self.pace_alone.size
        budget = max(size - len(entries), self.params.min_chunk if entries else 1)
        budget = min(budget, self._limit - len(entries), self.info.n_batch - len(entries))
        prefilling = sorted(
            (s for s in members if s.phase is Phase.PREFILL),
            key=lambda s: (s.ticket.submitted_at, s.index),
        )
        for s in prefilling:
            if budget <= 0 or s.slot is None:
                break
            at = len(s.slot.tokens)
            end = at + budget
            if at < s.tuning.start < end:  # an aLoRA begins to work there
                end = s.tuning.start
            tokens = s.target[at:end]
            budget -= len(tokens)
            wants_logits = at + len(tokens) == len(s.target) and not s.output  # with output, the next token is known
            entries.append(Entry(s.slot.id, at, tokens, wants_logits, s))
        return entries

    def _turn(self) -> list[Sequence]:
        """Who may be in the next batch: only one LoRA set computes a batch, so several sets take turns."""
        active = list(self.active())
        sets = {s.next_adapters for s in active}
        if len(sets) < 2:
            return active
        turn = max(self._turns.values(), default=0) + 1
        self._turns = {adapters: self._turns.get(adapters, 0) for adapters in sets}
        chosen = min(sets, key=lambda adapters: (self._turns[adapters], adapters))
        self._turns[chosen] = turn
        return [s for s in active if s.next_adapters == chosen]

    def commit(self, entries: list[Entry], seconds: float) -> None:
        """The batch was decoded in `seconds`: its tokens are in the cells."""
        self._limit = self.info.n_batch
        n_prompt = sum(len(e.tokens) for e in entries if e.sequence.phase is Phase.PREFILL)
        if n_prompt:
            alone = all(e.sequence.phase is Phase.PREFILL for e in entries)
            n_tokens = sum(len(e.tokens) for e in entries)
            (self.pace_alone if alone else self.pace).observe(n_tokens, seconds)
        for entry in entries:
            sequence = entry.sequence
            assert sequence.slot is not None
            sequence.slot.tokens.extend(entry.tokens)
            if sequence.phase is Phase.PREFILL and len(sequence.slot.tokens) == len(sequence.target):
                sequence.phase = Phase.DECODE

    def make_room(self, entries: list[Entry]) -> Slot | Sequence | None:
        """The cells ran out: whose cells to free (an idle slot's), or whom to park. None: a smaller batch, or nothing.

        `is_stuck` tells these two apart.
        """
        cached = [slot for slot in self.slots if slot.idle and slot.tokens]
        if cached:
            return min(cached, key=lambda slot: slot.last_used)
        active = list(self.active())
        if len(active) > 1:
            return max(active, key=lambda s: (s.ticket.submitted_at, s.index))
        self._limit = max(1, sum(len(e.tokens) for e in entries) // 2)
        return None

    def is_stuck(self, entries: list[Entry]) -> bool:
        """Not even one token of the only sequence finds a cell."""
        return sum(len(e.tokens) for e in entries) == 1

    def release(self, sequence: Sequence, now: float) -> None:
        """`sequence` gives its slot back; the cells stay as a cache."""
        slot = sequence.slot
        if slot is not None:
            slot.sequence, sequence.slot, slot.last = None, None, sequence
            slot.last_used = now
            self._crowded = False
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def park(self, sequence: Sequence, now: float) -> None:
        """Back to the head of the queue; what was generated must be in the cells again before it goes on."""
        self.release(sequence, now)
        self._crowded = True
        sequence.target = sequence.content
        if len(sequence.output) > sequence.base_output:  # its last token is not in the cells
            del sequence.target[-1:]
        sequence.phase = Phase.WAITING
        self.waiting.appendleft(sequence)

    def check_integrity(self) -> None:
        """Prove that every slot and every cell is accounted for once; raises AssertionError."""
        held = list(self.active())
        assert len(set(map(id, held))) == len(held), "a sequence holds two slots"
        assert not any(s in self.waiting for s in held), "a sequence holds a slot and waits"
        for slot in self.slots:
            assert len(slot.tokens) <= self.info.n_ctx_seq, f"slot {slot.id} holds more than its context"
            assert 0 <= slot.n_shared <= len(slot.tokens), f"slot {slot.id} shares more than it holds"
            s = slot.sequence
            if s is None:
                continue
            assert slot.tuning == s.tuning, f"slot {slot.id} has another LoRA set than its sequence"
            assert s.slot is slot, f"slot {slot.id} and its sequence disagree"
            assert s.phase in (Phase.PREFILL, Phase.DECODE), f"a {s.phase.value} sequence holds slot {slot.id}"
            text = s.content
            assert slot.tokens == text[: len(slot.tokens)], f"slot {slot.id} holds other tokens than its sequence"
        self.tier.check_integrity()
        for s in self.waiting:
            assert s.slot is None, "a waiting sequence has a slot"
            assert s.phase is Phase.WAITING, "a waiting sequence is not waiting"
