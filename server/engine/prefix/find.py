"""Which slot a waiting sequence gets, and from where its prompt's beginning comes. Pure.

Slots are compared with the prompt, and are in no tree: docs/adr/0002 says why.
"""

import math
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from server.engine.kv.cost import MoveCost, least_valuable
from server.engine.kv.disk_cache import DiskCache, Fetch
from server.engine.kv.ram_cache import MIN_TOKENS, KeptState, StateCache
from server.engine.kv.state import SlotState, marks
from server.engine.lora import reusable
from server.engine.media import Spans, whole
from server.engine.params import EngineParams
from server.engine.prefix.hashes import common_prefix
from server.engine.runner_api import RunnerInfo
from server.engine.schedule.evaluations import n_more_runs
from server.engine.sequence import Phase, Sequence, Slot

MOST_MOVED_FROM = 4  # slots whose cells are looked through for runs to move
_MANY, _LEAST_LOST = 1000, 0.01  # tokens; share of a cache's value that is lost at least when it goes to RAM
MIN_WAIT = 64  # tokens; fewer are computed rather than read from disk, or waited for while another computes them


@dataclass(frozen=True, slots=True)
class Move:
    """Bring the ``n`` cells at ``source`` to ``target`` <= source; what lies between is forgotten (llama-server's
    ``n_cache_reuse``).

    Cells that move were computed behind other text, so what follows from them is an approximation: only for requests
    that ask for it, and never reused as an exact prefix.
    """

    source: int
    target: int
    n: int


def moves(cached: Seq[int], prompt: Seq[int], prefix: int, smallest: int) -> list[Move]:
    """The moves, in order, that bring runs of at least `smallest` tokens behind the common `prefix` to their place.

    Greedy as the reference (server-context.cpp, update_slots): each run is the next one in the cache that
    continues the prompt. Positions in later moves count from the cache as it was at first.
    """
    found: list[Move] = []
    packed, wanted = _packed(cached), _packed(prompt)  # the library's own search is a thousand times as fast
    head, at = prefix, prefix
    while at + smallest <= len(prompt):
        head = _find(packed, wanted[at * _WIDTH : (at + smallest) * _WIDTH], head)
        if head < 0:
            break
        n = common_prefix(packed[head * _WIDTH :], wanted[at * _WIDTH :]) // _WIDTH
        found.append(Move(head, at, n))
        head, at = head + n, at + n
    return found


_WIDTH = array("i").itemsize


def _packed(tokens: Seq[int]) -> bytes:
    return array("i", tokens).tobytes()


def _find(packed: bytes, run: bytes, start: int) -> int:
    """The first token at which `run` begins, from `start` on; -1: none."""
    at = packed.find(run, start * _WIDTH)
    while at >= 0 and at % _WIDTH:
        at = packed.find(run, at + 1)
    return at // _WIDTH


def uncut(runs: list[Move], cached: Spans, wanted: Spans) -> list[Move]:
    """As many of the first `runs` as end in no medium of either text, the last one perhaps shorter."""
    for i, move in enumerate(runs):
        n = whole(wanted, move.target + move.n) - move.target
        n = min(n, whole(cached, move.source + move.n) - move.source)
        if n < move.n:
            return [*runs[:i], *([replace(move, n=n)] if n > 0 else [])]
    return runs


Beginning: TypeAlias = "Slot | KeptState | Fetch | Sequence | None"
"""Where a prompt's beginning is, or will be: in the cells of a slot, to be used in place or copied; in a state in RAM,
which may have been read from disk; in one that is being read; with a sequence that computes it right now. The last two
are waited for."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Put `sequence` into `slot`, whose cells must then hold the first `n_reuse` tokens of `source`: of the slot
    itself, of another one, of a kept state; of nothing.

    With ``moves`` (then `source` is `slot`), these bring further runs of its cells to their new places.
    """

    sequence: Sequence
    slot: Slot
    source: Slot | KeptState | None
    n_reuse: int
    moves: tuple[Move, ...] = ()

    @property
    def n_kept(self) -> int:
        """Tokens that need no computing."""
        return self.n_reuse + sum(move.n for move in self.moves)

    @property
    def n_in_cells(self) -> int:
        """Those of them that need no cells: a kept state does."""
        return 0 if isinstance(self.source, KeptState) else self.n_kept


@dataclass(eq=False)
class Placer:
    """Chooses among the slots of one instance, and what RAM keeps."""

    slots: list[Slot]
    ram: StateCache
    info: RunnerInfo
    params: EngineParams
    move_cost: MoveCost
    disk: DiskCache | None = None
    may_load: Callable[[SlotState], bool] = lambda saved: True
    _awaited: dict[Sequence, tuple[Sequence, int]] = field(default_factory=dict)
    """Who computes so many tokens of a waiting one's prompt."""

    def find(self, sequence: Sequence) -> Placement | None:
        """Where `sequence` can go, with the most of its prompt that needs no computing. None: it waits, since its slot
        is busy, or its beginning is being computed or read; others may go first."""
        pinned = sequence.request.id_slot
        if pinned >= 0:
            pinned %= self.info.n_seq  # ids run on across instances
        if (pinned >= 0 and not self.slots[pinned].idle) or self._still_waits(sequence):
            return None
        if sequence.parked is not None:
            return Placement(sequence, self._anywhere(pinned), None, 0)
        where, n = self._search(sequence)
        self._awaited.pop(sequence, None)
        if isinstance(where, Sequence):
            self._awaited[sequence] = where, n
        if isinstance(where, Sequence | Fetch):
            return None
        if isinstance(where, KeptState):
            return Placement(sequence, self._anywhere(pinned), where, n)
        return self._in_cells(sequence, where, n, pinned)

    def _anywhere(self, pinned: int) -> Slot:
        return self.slots[pinned] if pinned >= 0 else self._cheapest(None)

    def _still_waits(self, sequence: Sequence) -> bool:
        """Whether what it was found to wait for may still come; so a long prompt is compared once, not in each step.

        For the last few tokens those wait who would compute more, all together, than whoever computes them has left.
        """
        if sequence.fetch is not None and sequence.fetch.pending:
            return True
        if sequence not in self._awaited:
            return False
        computing, n = self._awaited[sequence]
        n_left = n - computing.n_computed
        if computing.phase is not Phase.PREFILL or n_left <= 0:
            return False
        if n_left >= self._least_gain:
            return True
        n_of_all = n_left * sum(one is computing for one, _ in self._awaited.values())
        return n_of_all >= max(self._least_gain, len(computing.target) - computing.n_computed)

    @property
    def _least_gain(self) -> int:
        """So many more tokens are waited for; any where cells can't be cut: what is past is out of reach then."""
        return MIN_TOKENS if self.info.can_cut else 1

    def _search(self, sequence: Sequence) -> tuple[Beginning, int]:
        if not self._may_reuse(sequence):
            return None, 0
        where: Slot | KeptState | None
        where, n = self._match(sequence)
        stored, n_stored = self._stored(sequence, n)
        if stored is not None and self.may_load(stored.saved):
            where, n = stored, n_stored
        at_least = max(n + self._least_gain, MIN_WAIT) - 1
        return self._on_disk(sequence, n) or self._coming(sequence, at_least) or (where, n)

    def _in_cells(self, sequence: Sequence, source: Slot | None, n: int, pinned: int) -> Placement:
        """`n` tokens of `source` in place, or as a copy where that pays."""
        slot = self.slots[pinned] if pinned >= 0 else self._choose(sequence, source, n)
        own = self._own_match(slot, sequence)
        if source is not slot and (own >= n or not self._copy_pays(n, len(source.tokens) if source else 0)):
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
                runs = uncut(runs, slot.media, sequence.media)
            found = Placement(sequence, slot, slot, n, tuple(runs))
            if found.n_kept > best.n_kept:
                best = found
        return best

    def _match(self, sequence: Sequence) -> tuple[Slot | None, int]:
        """The slot from which most of the prompt's beginning can be had, and how many tokens."""
        prompt, wanted, limit = sequence.target, sequence.tuning, sequence.n_reusable
        best, longest = None, 0
        if sequence in self._awaited:
            computing, n = self._awaited[sequence]
            if computing.slot is not None and computing.n_computed >= n and not computing.shifted:
                best, longest = computing.slot, computing.slot.reusable(min(n, limit), wanted)
        following = prompt[longest : longest + 1]
        for slot in self.slots:
            tokens = slot.tokens
            if tokens[longest : longest + 1] == following:
                n = slot.reusable(min(common_prefix(prompt, tokens), limit), wanted)
                if n > longest:
                    best, longest, following = slot, n, prompt[n : n + 1]
                    if longest >= limit:
                        break
        return best, longest

    def _own_match(self, slot: Slot, sequence: Sequence) -> int:
        """What of `slot`'s own cells begins the prompt."""
        if not self._may_reuse(sequence):
            return 0
        n = min(common_prefix(sequence.target, slot.tokens), sequence.n_reusable)
        return slot.reusable(n, sequence.tuning)

    def _stored(self, sequence: Sequence, n: int) -> tuple[KeptState | None, int]:
        """A kept state that saves much more computing than the `n` tokens of a slot."""
        prompt, most = sequence.target, sequence.n_reusable
        stored, n_stored = self.ram.match(prompt, sequence.tuning, n + MIN_TOKENS, sequence.hashes, most)
        fetched = sequence.fetch.found if sequence.fetch is not None else None
        if fetched is not None:
            n_fetched = fetched.reusable(min(common_prefix(prompt, fetched.tokens), most), sequence.tuning)
            if n_fetched > max(n_stored, n + MIN_TOKENS):
                return fetched, n_fetched
        return stored, n_stored

    def _on_disk(self, sequence: Sequence, n: int) -> tuple[Fetch, int] | None:
        """What comes from disk, if that is much more than the `n` tokens at hand. It is looked for there once."""
        if self.disk is None:
            return None
        if sequence.fetch is None:
            prompt, most = sequence.target, sequence.n_reusable
            entry, n_disk = self.disk.kept.match(prompt, sequence.tuning, n + MIN_WAIT, sequence.hashes, most)
            if entry is not None:
                sequence.fetch = Fetch(entry, n_disk)
        fetch = sequence.fetch
        return (fetch, fetch.n) if fetch is not None and fetch.pending and fetch.n > n + MIN_WAIT else None

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

    def _coming(self, sequence: Sequence, at_least: int) -> tuple[Sequence, int] | None:
        """Who is computing most of the prompt's beginning right now, more than `at_least` tokens, where a copy of it
        will pay.

        Where cells can't be cut, whoever computes it gets a mark there, unless that place is behind him.
        """
        longest, computing, prefill, target = at_least, None, Phase.PREFILL, sequence.target
        for slot in self.slots:
            s = slot.sequence
            if s is None or s.phase is not prefill or len(s.target) <= longest:
                continue
            if s.target[longest : longest + 1] != target[longest : longest + 1]:
                continue
            n = reusable(common_prefix(target, s.target), s.tuning, sequence.tuning)
            n = whole(sequence.media, min(n, sequence.n_reusable))
            if n > longest and (self.info.can_cut or (n > s.n_computed and self.params.ctx_checkpoints)):
                longest, computing = n, s
        if computing is None or not self._copy_pays(longest, longest):
            return None
        if not self.info.can_cut and longest not in computing.marks:
            computing.marks += (longest,)
        return computing, longest

    def marks(self, placement: Placement) -> tuple[int, ...]:
        """Where checkpoints are to be made while what `placement` lacks is computed."""
        if self.info.can_cut or not self.params.ctx_checkpoints:
            return ()
        target, tuning, slot = placement.sequence.target, placement.sequence.tuning, placement.slot
        parted = self.ram.parted(target, tuning, placement.sequence.hashes)
        for s in self.slots:
            if s is not slot and s.tuning == tuning and s.tokens[parted : parted + 1] == target[parted : parted + 1]:
                parted = max(parted, common_prefix(target, s.tokens))
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
        running, evaluation = {slot.id for slot in self.slots if not slot.idle}, self._evaluation_value()

        def price(slot: Slot) -> tuple[float, int]:
            n = n_more_runs(slot.id, running)
            return n * evaluation, n

        return least_valuable(idle, spare, price)

    def _evaluation_value(self) -> float:
        """What one more evaluation in each step costs, in the unit of a cache's value: prompt tokens per second that
        could be computed meanwhile. Who loses his slot goes to RAM, so that only what moving states takes is lost."""
        cost = self.move_cost
        if not cost.step_s or not cost.computed:
            return 0.0
        lost = min(cost.round_trip_s(_MANY) / cost.compute_s(_MANY), 1.0) if self.ram.limit else 1.0
        return cost.computed * self.evaluation_s / cost.step_s / max(lost, _LEAST_LOST)

    @property
    def evaluation_s(self) -> float:
        """What a further evaluation in a step takes: no more than a step that was seen, however it was measured."""
        return min(self.info.evaluation_s, self.move_cost.step_s or math.inf)

    def _copy_pays(self, n: int, n_held: int) -> bool:
        """`n` tokens of a slot that holds `n_held`. Cells of a unified cache are shared. Of a separate stream all that
        it holds is copied, however little is kept."""
        if n < MIN_TOKENS:
            return False
        return self.info.unified or self.move_cost.copy_pays(n, n_held, self.params.target_s)


# ---- told to who looks

Source: TypeAlias = Literal["none", "slot", "copy", "ram", "disk"]
"""What held a prompt's beginning: nothing, its slot, another one, a kept state."""
Anew: TypeAlias = Literal["last", "off", "scored", "nothing", "differs", "ends", "uncut", "other", "short"]
"""Why what follows was computed.

``last``: one token always is, for what comes next. ``off``: the request takes nothing from a cache. ``scored``: the log
probabilities of the prompt are wanted. ``nothing``: nobody held anything that begins like it. ``differs``: from there
on another text was held. ``ends``: no more was held. ``uncut``: more was held, in a memory that can be gone on from no
later place. ``other``: more was held, under another LoRA set or for somebody else. ``short``: another slot held a
little more, and copying that costs more than computing it.
"""


def origin_of(placement: Placement, slots: Seq[Slot]) -> tuple[Source, int, Anew]:
    """And which slot held it, by its place in the instance; -1: none. To be asked before `placement` changes cells."""
    sequence, n = placement.sequence, placement.n_kept
    source = placement.source if n else None
    where: Source = "none"
    if isinstance(source, KeptState):
        where = "disk" if sequence.fetch is not None and sequence.fetch.found is source else "ram"
    elif source is not None:
        where = "slot" if source is placement.slot else "copy"
    held = () if source is None else source.tokens
    return where, source.id if isinstance(source, Slot) else -1, _anew(placement, held, n, slots)


def _anew(placement: Placement, held: Seq[int], n: int, slots: Seq[Slot]) -> Anew:
    sequence = placement.sequence
    target = sequence.target
    if n >= len(target) - 1:
        return "last"
    if not sequence.request.cache_prompt:
        return "off"
    if n >= sequence.n_reusable:
        return "scored"
    following = target[n : n + 1]  # who holds another one here needs no comparison
    if not placement.moves and held[n : n + 1] == following:
        return "uncut"
    others = [slot for slot in slots if slot.tokens[n : n + 1] == following]
    shared = ((common_prefix(target, slot.tokens), slot.tuning == sequence.tuning) for slot in others)
    common, same = max(shared, default=(0, True))
    if common > n:
        return "short" if same else "other"
    if not n:
        return "nothing"
    return "ends" if n >= len(held) else "differs"
