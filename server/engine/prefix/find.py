"""Which slot a waiting sequence gets, and from where its prompt's beginning comes. Pure."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from server.engine.kv.cost import MoveCost, least_valuable
from server.engine.kv.disk_cache import DiskCache, Fetch
from server.engine.kv.ram_cache import MIN_TOKENS, RamState, StateCache
from server.engine.kv.state import marks
from server.engine.lora import reusable
from server.engine.media import whole
from server.engine.params import EngineParams
from server.engine.prefix.match import Move, common_prefix, longest_match, moves
from server.engine.runner_api import RunnerInfo
from server.engine.schedule.cell_room import Room
from server.engine.schedule.evaluations import n_more_runs
from server.engine.sequence import Phase, Sequence, Slot

MIN_COPY = 16  # tokens; a shorter prefix of another slot is computed anew
_MANY, _LEAST_LOST = 1000, 0.01  # tokens; share of a cache's value that is lost at least when it goes to RAM
MIN_READ = 64  # tokens; less is computed rather than read from disk
MOST_MOVED_FROM = 4  # slots whose cells are looked through for runs to move
MIN_WAIT = 64  # tokens; a longer prefix that another slot is computing is waited for


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
    stored: RamState | None = None

    @property
    def n_kept(self) -> int:
        """Tokens that need no computing."""
        return self.n_reuse + sum(move.n for move in self.moves)


@dataclass(frozen=True, slots=True)
class Found:
    """Where ``n`` tokens of a prompt's beginning are or will be.

    In the cells of a slot, to be used in place or copied; in a state in RAM; in one that is read from disk; with a
    sequence that computes them right now. The last two are waited for.
    """

    n: int = 0
    where: Slot | RamState | Fetch | Sequence | None = None


NOTHING = Found()


class Skip(Enum):
    """Why a waiting sequence is not placed now."""

    LATER = "its slot is busy, or its prefix is being computed or read; others may go first"
    NO_ROOM = "too few free cells; others that fit may go first, see `Room`"


class Placer:
    """Chooses among the slots of one instance, and what RAM keeps."""

    def __init__(
        self, slots: list[Slot], ram: StateCache[RamState], info: RunnerInfo, params: EngineParams, cost: MoveCost
    ) -> None:
        self.slots = slots
        self.ram = ram
        self.info = info
        self.params = params
        self.move_cost = cost
        self.step_s = 0.0  # of a step in which all generate, as seen lately
        self.disk: DiskCache | None = None
        self.room = Room(slots, info)
        self._awaited: dict[
            Sequence, tuple[Sequence, int]
        ] = {}  # who computes so many tokens of a waiting one's prompt
        self.may_load: Callable[[RamState], bool] = lambda stored: True

    def find(self, sequence: Sequence) -> Placement | Skip:
        """Where `sequence` can go now, with the most of its prompt that needs no computing."""
        pinned = sequence.request.id_slot
        if pinned >= 0:
            pinned %= self.info.n_seq  # ids run on across instances
        if (pinned >= 0 and not self.slots[pinned].idle) or self._still_waits(sequence):
            return Skip.LATER
        if sequence.parked is not None:
            return self._if_room(sequence, Placement(sequence, self._anywhere(pinned), None, 0))
        found = self._search(sequence)
        self._awaited.pop(sequence, None)
        if isinstance(found.where, Fetch):
            return Skip.LATER
        if isinstance(found.where, Sequence):
            self._awaited[sequence] = (found.where, found.n)
            return Skip.LATER
        if isinstance(found.where, RamState):
            slot = self._anywhere(pinned)
            return self._if_room(sequence, Placement(sequence, slot, None, found.n, stored=found.where))
        return self._if_room(sequence, self._in_cells(sequence, found.where, found.n, pinned))

    def _anywhere(self, pinned: int) -> Slot:
        return self.slots[pinned] if pinned >= 0 else self._cheapest(None)

    def _still_waits(self, sequence: Sequence) -> bool:
        """Whether what it was found to wait for may still come; so a long prompt is compared once, not in each step."""
        if sequence.fetch is not None and sequence.fetch.pending:
            return True
        if sequence not in self._awaited:
            return False
        computing, n = self._awaited[sequence]
        return computing.phase is Phase.PREFILL and computing.n_computed < n

    def _search(self, sequence: Sequence) -> Found:
        """Where most of the prompt's beginning is, or will be."""
        if not self._may_reuse(sequence):
            return NOTHING
        slot, n = self._match(sequence)
        best = Found(n, slot)
        stored, n_stored = self._stored(sequence, n)
        if stored is not None and self.may_load(stored):
            best = Found(n_stored, stored)
        return self._on_disk(sequence, best.n) or self._coming(sequence, max(best.n, MIN_WAIT - 1)) or best

    def _in_cells(self, sequence: Sequence, source: Slot | None, n: int, pinned: int) -> Placement:
        """`n` tokens of `source` in place, or as a copy where that pays."""
        slot = self.slots[pinned] if pinned >= 0 else self._choose(sequence, source, n)
        own = self._own_match(slot, sequence)
        if source is not slot and (own >= n or not self._worth_copying(source, n)):
            source, n = (slot, own) if own else (None, 0)
        placement = Placement(sequence, slot, source, n)
        movable = self.info.can_shift and self.info.can_cut  # a recurrent state keeps what is dropped from its middle
        if sequence.request.n_cache_reuse > 0 and movable and self._may_reuse(sequence):
            placement = self._with_moves(placement, pinned)
        return placement

    def _may_reuse(self, sequence: Sequence) -> bool:
        return sequence.request.cache_prompt and self.params.cache_prompt

    def _with_moves(self, placement: Placement, pinned: int) -> Placement:
        """The idle slot of which most can be reused when runs of its cells may move; else `placement`.

        Of many only those used last are looked at: each look reads the whole context.
        """
        sequence, best = placement.sequence, placement
        wanted = sequence.target[: sequence.n_reusable]
        idle = [self.slots[pinned]] if pinned >= 0 else [slot for slot in self.slots if slot.idle]
        candidates = [slot for slot in idle if slot.tuning == sequence.tuning and slot.tokens]
        candidates.sort(key=lambda slot: (slot is not placement.slot, -slot.last_used))
        for slot in candidates[:MOST_MOVED_FROM]:
            n = slot.reusable(common_prefix(wanted, slot.tokens), sequence.tuning)
            runs = moves(slot.tokens, wanted, n, sequence.request.n_cache_reuse)
            if slot.media or sequence.media:
                runs = _uncut(runs, slot, sequence)
            found = Placement(sequence, slot, slot, n, tuple(runs))
            if found.n_kept > best.n_kept:
                best = found
        return best

    def _match(self, sequence: Sequence) -> tuple[Slot | None, int]:
        """Longest reusable prefix."""
        known = None
        if sequence in self._awaited:
            computing, n = self._awaited[sequence]
            if computing.slot is not None and computing.n_computed >= n and not computing.shifted:
                known = computing.slot, n
        return longest_match(sequence.target, self.slots, sequence.tuning, sequence.n_reusable, known)

    def _own_match(self, slot: Slot, sequence: Sequence) -> int:
        """What of `slot`'s own cells begins the prompt."""
        if not self._may_reuse(sequence):
            return 0
        n = min(common_prefix(sequence.target, slot.tokens), sequence.n_reusable)
        return slot.reusable(n, sequence.tuning)

    def _stored(self, sequence: Sequence, n: int) -> tuple[RamState | None, int]:
        """A kept state that saves much more computing than the `n` tokens of a slot."""
        prompt, most = sequence.target, sequence.n_reusable
        stored, n_stored = self.ram.match(prompt, sequence.tuning, n + MIN_TOKENS, sequence.hashes, most)
        fetched = sequence.fetch.found if sequence.fetch is not None else None
        if fetched is not None:
            n_fetched = fetched.reusable(min(common_prefix(prompt, fetched.tokens), most), sequence.tuning)
            if n_fetched > max(n_stored, n + MIN_TOKENS):
                return fetched, n_fetched
        return stored, n_stored

    def _on_disk(self, sequence: Sequence, n: int) -> Found | None:
        """What comes from disk, if that is much more than the `n` tokens at hand. It is looked for there once."""
        if self.disk is None:
            return None
        if sequence.fetch is None:
            prompt, most = sequence.target, sequence.n_reusable
            entry, n_disk = self.disk.match(prompt, sequence.tuning, n + MIN_READ, sequence.hashes, most)
            if entry is not None:
                sequence.fetch = Fetch(entry, n_disk)
        fetch = sequence.fetch
        return Found(fetch.n, fetch) if fetch is not None and fetch.pending and fetch.n > n + MIN_READ else None

    def inherited(self) -> dict[Sequence, int]:
        """The priority of prompts that more urgent sequences wait for: that of the most urgent one."""
        if not self._awaited:
            return {}
        self._awaited = {
            waiter: (computing, n)
            for waiter, (computing, n) in self._awaited.items()
            if waiter.phase is Phase.WAITING and computing.phase is Phase.PREFILL and computing.n_computed < n
        }
        priorities: dict[Sequence, int] = {}
        for waiter, (computing, _) in self._awaited.items():
            own = priorities.get(computing, computing.request.priority)
            if waiter.request.priority < own:
                priorities[computing] = waiter.request.priority
        return priorities

    def _coming(self, sequence: Sequence, at_least: int) -> Found | None:
        """Who is computing most of the prompt's beginning right now, more than `at_least` tokens.

        Where cells can't be cut, whoever computes it gets a mark there, unless that place is behind him.
        """
        longest, computing, prefill, target = at_least, None, Phase.PREFILL, sequence.target
        for slot in self.slots:
            s = slot.sequence
            if s is None or s.phase is not prefill or s.target[longest : longest + 1] != target[longest : longest + 1]:
                continue
            n = reusable(common_prefix(target, s.target), s.tuning, sequence.tuning)
            n = whole(sequence.media, min(n, sequence.n_reusable))
            if n > longest and (self.info.can_cut or (n > s.n_computed and self.params.ctx_checkpoints)):
                longest, computing = n, s
        if computing is None:
            return None
        if not self.info.can_cut and longest not in computing.marks:
            computing.marks += (longest,)
        return Found(longest, computing)

    def marks(self, placement: Placement) -> tuple[int, ...]:
        """Where checkpoints are to be made while what `placement` lacks is computed."""
        if self.info.can_cut or not self.params.ctx_checkpoints:
            return ()
        target, tuning, slot = placement.sequence.target, placement.sequence.tuning, placement.slot
        others = (s for s in self.slots if s is not slot and s.tuning == tuning)
        parted = max((common_prefix(target, s.tokens) for s in others), default=0)
        parted = max(parted, self.ram.parted(target, tuning, placement.sequence.hashes))
        found = marks(target, len(slot.tokens), self.info.turn_ends, self.params.checkpoint_min_step, parted)
        media = placement.sequence.media
        return tuple(sorted({whole(media, mark) for mark in found})) if media else found

    def _choose(self, sequence: Sequence, source: Slot | None, n: int) -> Slot:
        """The matching slot itself if little is lost by it, else the one whose cells are worth least."""
        if source is not None and source.idle:
            similar = n > self.params.slot_prompt_similarity * len(sequence.target) > 0
            if similar and len(source.tokens) - n <= n:
                return source
        return self._cheapest(source)

    def _cheapest(self, spare: Slot | None) -> Slot:
        """An idle slot of little value, best next to a running one; `spare` only if there is no other."""
        idle = (slot for slot in self.slots if slot.idle)
        if self.info.unified:
            return least_valuable(idle, spare)
        running, evaluation = {slot.id for slot in self.slots if not slot.idle}, self._evaluation()

        def price(slot: Slot) -> tuple[float, int]:
            n = n_more_runs(slot.id, running)
            return n * evaluation, n

        return least_valuable(idle, spare, price)

    def _evaluation(self) -> float:
        """What one more evaluation in each step costs, in the unit of a cache's value: prompt tokens per second that
        could be computed meanwhile. Who loses his slot goes to RAM, so that only what moving states takes is lost."""
        step_s = self.step_s
        if not step_s or not self.move_cost.computed.value:
            return 0.0
        lost = min(self.move_cost.round_trip_s(_MANY) / self.move_cost.compute_s(_MANY), 1.0) if self.ram.limit else 1.0
        return self.move_cost.computed.value * self.evaluation_s / step_s / max(lost, _LEAST_LOST)

    @property
    def evaluation_s(self) -> float:
        """What a further evaluation in a step takes: no more than a step that was seen, however it was measured."""
        return min(self.info.evaluation_s, self.step_s or math.inf)

    def _worth_copying(self, source: Slot | None, n: int) -> bool:
        """Cells of a unified cache are shared. A separate stream is copied whole, however little of it is kept."""
        if source is None or n < MIN_COPY:
            return False
        return self.info.unified or self.move_cost.copy_pays(n)

    def _if_room(self, sequence: Sequence, placement: Placement) -> Placement | Skip:
        n_kept = 0 if placement.stored is not None else placement.n_kept  # a kept state needs cells, too
        return placement if self.room.fits(sequence, n_kept) else Skip.NO_ROOM


def _uncut(runs: list[Move], slot: Slot, sequence: Sequence) -> list[Move]:
    """As many of the first `runs` as end in no medium, the last one perhaps shorter."""
    for i, move in enumerate(runs):
        n = whole(sequence.media, move.target + move.n) - move.target
        n = min(n, whole(slot.media, move.source + move.n) - move.source)
        if n < move.n:
            return [*runs[:i], *([replace(move, n=n)] if n > 0 else [])]
    return runs
