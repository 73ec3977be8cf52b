"""The choice of a slot for a waiting sequence, and of the source of its cached prefix (`Placer.find`). It makes no
native calls; `Cells.prepare` (kv_store.py) executes the placement.

How much of a match counts depends on LoRA set, cache namespace, media, and whether the memory can be truncated
(`CachedPrefix.reusable`, cache/prefix_cache.py). The first source whose condition holds is used:

| source | cached tokens, more than each source below | condition |
|---|---|---|
| the sequence's saved state | | it was preempted, and the state is in RAM |
| none yet: the sequence waits for a read | more than `MIN_WAIT` | reading from disk is faster than computing |
| none yet: it waits for a prefill | `MIN_TOKENS` | a running prefill, no less urgent, has `MIN_WAIT` of them (ADR 3) |
| a state in RAM, or read from disk | `MIN_GAIN_TOKENS` | loading is faster than computing, and stalls no sequence |
| the idle slot that holds the prefix, in place | | few other tokens would be lost (``slot_prompt_similarity``) |
| another slot, whose cells are copied | | copying is faster than computing |
| further runs of an idle slot, shifted | | ``n_cache_reuse`` |
| none: all tokens are computed | | |

Prompts are compared token by token, and not in a radix tree: see docs/adr/0002.

With separate KV streams the library evaluates together only sequences with adjacent ids and equal token counts
(llama-batch.cpp, split_equal with ``sequential``; llama-kv-cache.cpp, init_batch). Each gap between ids and each
additional length reads all weights once more: 4 sequences in slots 0, 2, 4 and 6 run at about half the speed of 4 in
slots 0 to 3. So sequences get adjacent slots (`Placer.relocation`), and the runner pads runs of similar length
(`server.llama.context.batch`).
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import inf

from server.engine.cache.disk_cache import DiskCache
from server.engine.cache.move_budget import MoveBudget
from server.engine.cache.prefix_cache import (
    MIN_TOKENS,
    CachedPrefix,
    CacheEntry,
    CacheTier,
    Fetch,
    checkpoint_positions,
    common_prefix,
    longest_match,
)
from server.engine.media import whole
from server.engine.params import EngineParams
from server.engine.runner_api import RunnerInfo
from server.engine.sequence import Phase, Sequence, Slot

MAX_SHIFT_SOURCES = 4  # slots that are searched for runs to shift
MIN_GAIN_TOKENS = 4
"""Additional cached tokens for which a state in RAM is loaded, if that is faster than computing them. Next to decoding
sequences, a prompt that is not cached entirely takes an additional graph evaluation.
"""
MIN_WAIT = 64  # tokens; fewer are recomputed instead of read from disk or awaited


def runs_to_shift(cached: Seq[int], prompt: Seq[int], prefix: int, smallest: int) -> list[range]:
    """Return the runs of at least `smallest` tokens of `cached` that continue `prompt` after the common `prefix`, one
    after the other (llama-server's ``n_cache_reuse``).

    Greedy as in llama-server (server-context.cpp, update_slots): each run is the next one in the cache. A shifted run
    is an approximation, since it was computed after other text. It is never reused as an exact prefix.
    """
    found: list[range] = []
    text, pattern = "".join(map(chr, cached)), "".join(map(chr, prompt))  # `str.find` is a thousand times faster
    head, at = prefix, prefix
    while at + smallest <= len(prompt):
        head = text.find(pattern[at : at + smallest], head)
        if head < 0:
            break
        n = common_prefix(cached[head:], prompt[at:])
        found.append(range(head, head + n))
        head, at = head + n, at + n
    return found


@dataclass(frozen=True, slots=True)
class Placement:
    """Put `sequence` into `slot`, whose cells must then hold the first `n_reuse` tokens of `source`: the slot itself,
    another slot, a cached entry, or None.

    ``shifted``: further runs of its cells (then `source` is `slot`) that are shifted to follow these (`runs_to_shift`).
    """

    sequence: Sequence
    slot: Slot
    source: Slot | CacheEntry | None
    n_reuse: int
    shifted: tuple[range, ...] = ()

    @property
    def n_cached(self) -> int:
        """Prompt tokens that need no prefill."""
        return self.n_reuse + sum(map(len, self.shifted))

    def n_in_cells(self, held: Mapping[Slot, int]) -> int:
        """Return the cached tokens that need no additional cells, because a running sequence holds them. Other cells of
        idle slots count as free. `held`: see `KvBudget.held`.
        """
        if not isinstance(self.source, Slot):
            return 0
        return min(self.n_reuse, held.get(self.source, 0)) if self.source.idle else self.n_cached


def neighbours(ids: Iterable[int]) -> list[list[int]]:
    """Return the groups of consecutive `ids`: those that one evaluation may have."""
    groups: list[list[int]] = []
    for seq in sorted(ids):
        if groups and groups[-1][-1] == seq - 1:
            groups[-1].append(seq)
        else:
            groups.append([seq])
    return groups


def n_more_id_groups(seq: int, others: AbstractSet[int]) -> int:
    """Return how `seq` changes the number of groups of `others`: 1 if separate, 0 next to one, -1 between two."""
    return 1 - (seq - 1 in others) - (seq + 1 in others)


@dataclass(eq=False)
class Placer:
    """Chooses among the slots of one instance and the RAM and disk tiers.

    ``slots_changed``: the slots in use have changed since they were last adjacent.
    """

    slots: list[Slot]
    ram: CacheTier
    info: RunnerInfo
    params: EngineParams
    move_budget: MoveBudget
    disk: DiskCache | None = None
    slots_changed: bool = False

    def find(self, sequence: Sequence, now: float) -> Placement | None:
        """Return where `sequence` continues from (the table above). None: it waits, because the slot of its `id_slot`
        is busy or its prefix is being computed or read. Others may be placed first.

        Records what it waits for in ``sequence.awaited`` or ``sequence.fetch``.
        """
        wanted = self.wanted_slot(sequence)
        if (wanted is not None and not wanted.idle) or self._still_awaits_prefix(sequence, now):
            return None
        free = wanted or self._cheapest(None)
        if sequence.offloaded is not None:
            return Placement(sequence, free, sequence.offloaded, len(sequence.offloaded.tokens))
        if not (sequence.request.cache_prompt and self.params.cache_prompt):
            return Placement(sequence, free, None, 0)
        sequence.awaited = None
        source, n = longest_match(self.slots, sequence.target, sequence.adapter_set, 0, sequence.n_reusable)
        entry, n_stored = self._stored(sequence, n)
        n_available = max(n, n_stored)
        if self._awaits_disk(sequence, n_available, now) or self._awaits_prefill(sequence, n_available):
            return None
        if entry is not None:
            return Placement(sequence, free, entry, n_stored)
        return self._from_cells(sequence, source, n, wanted)

    def wanted_slot(self, sequence: Sequence) -> Slot | None:
        """Return the slot of its `id_slot`; these ids run on across instances. None: any slot."""
        id_slot = sequence.request.id_slot
        return self.slots[id_slot % self.info.n_seq] if id_slot >= 0 else None

    def _still_awaits_prefix(self, sequence: Sequence, now: float) -> bool:
        """Return whether the awaited prefix may still arrive, so that a long prompt is not compared in every step.

        The last few tokens are not awaited, except if memory cannot be truncated: then the checkpoint at the end of the
        prefix is needed.
        """
        if sequence.fetch is not None and sequence.fetch.pending(now):
            return True
        if sequence.awaited is None:
            return False
        computing, n = sequence.awaited
        n_left = n - computing.n_computed
        return computing.phase is Phase.PREFILL and n_left >= (MIN_TOKENS if self.info.can_cut else 1)

    def _from_cells(self, sequence: Sequence, source: Slot | None, n: int, wanted: Slot | None) -> Placement:
        """Place the sequence on `n` tokens of `source`, in place or as a copy if copying pays."""
        slot = wanted or self._choose(sequence, source, n)
        own = slot.reusable(min(common_prefix(sequence.target, slot.tokens), sequence.n_reusable), sequence.adapter_set)
        if source is not slot and (own >= n or not self._copy_pays(n, len(source.tokens) if source else 0)):
            source, n = (slot, own) if own else (None, 0)
        placement = Placement(sequence, slot, source, n)
        # a recurrent state cannot drop its middle, and a medium cannot be split
        can_shift = self.info.can_shift and self.info.can_cut and not sequence.media
        allows_shifts = sequence.request.n_cache_reuse > 0 and not sequence.request.pin_s  # a pinned prefix is exact
        return self._with_shifts(placement, wanted) if allows_shifts and can_shift else placement

    def _with_shifts(self, placement: Placement, wanted: Slot | None) -> Placement:
        """Return the placement in the idle slot with the most tokens reusable by shifts; otherwise `placement`.

        Only the most recently used slots are checked, because each check reads the whole context.
        """
        sequence, best = placement.sequence, placement
        prompt = sequence.target[: sequence.n_reusable]
        idle = [slot for slot in self.slots if slot.idle] if wanted is None else [wanted]
        same = [s for s in idle if s.adapter_set == sequence.adapter_set]
        candidates = [s for s in same if s.tokens and s.n_exact and not s.media]  # none from before a reset
        candidates.sort(key=lambda slot: (slot is not placement.slot, -slot.last_used))
        for slot in candidates[:MAX_SHIFT_SOURCES]:
            n = slot.reusable(common_prefix(prompt, slot.tokens), sequence.adapter_set)
            runs = runs_to_shift(slot.tokens, prompt, n, sequence.request.n_cache_reuse)
            found = Placement(sequence, slot, slot, n, tuple(runs))
            if found.n_cached > best.n_cached:
                best = found
        return best

    def _stored(self, sequence: Sequence, n: int) -> tuple[CacheEntry | None, int]:
        """Return a cached entry that gives at least `MIN_GAIN_TOKENS` more than the `n` tokens of a slot, and how many.
        Loading it is faster than computing the difference, and stalls no other sequence.
        """
        prompt, most, moves = sequence.target, sequence.n_reusable, self.move_budget
        entry, n_stored = self.ram.match(prompt, sequence.adapter_set, n + MIN_GAIN_TOKENS - 1, most)
        if sequence.fetch is not None and (from_disk := sequence.fetch.found) is not None:
            found, n_found = longest_match([from_disk], prompt, sequence.adapter_set, n + MIN_GAIN_TOKENS - 1, most)
            entry, n_stored = (found, n_found) if n_found > n_stored else (entry, n_stored)
        if entry is None or moves.move_stalls(len(entry.state)) or not moves.pays(len(entry.state), n_stored - n):
            return None, 0
        return entry, n_stored

    def _awaits_disk(self, sequence: Sequence, n: int, now: float) -> bool:
        """Return whether to wait for a state on disk that gives considerably more than the `n` available tokens.
        Reading it is faster than computing the difference. Searches the disk index once.
        """
        if self.disk is not None and sequence.fetch is None:
            prompt, most = sequence.target, sequence.n_reusable
            entry, n_disk = self.disk.index.match(prompt, sequence.adapter_set, n + MIN_WAIT, most)
            if entry is not None and self.move_budget.pays(entry.size, n_disk - n):
                sequence.fetch = Fetch(entry, n_disk)
        fetch = sequence.fetch
        return fetch is not None and fetch.pending(now) and fetch.n > n + MIN_WAIT

    def _awaits_prefill(self, sequence: Sequence, n_available: int) -> bool:
        """Return whether to wait for the sequence that is prefilling the longest common prefix.

        It is considerably longer than the `n_available` tokens, and copying it will pay. A less urgent sequence is not
        awaited. If memory cannot be truncated, the awaited sequence gets a checkpoint at the end of the prefix, unless
        it is already past it.
        """
        can_cut = self.info.can_cut
        if not (can_cut or self.params.ctx_checkpoints):
            return False
        prefills = {
            CachedPrefix(
                s.target, s.adapter_set, slot.n_exact, media=s.media, floor=0 if can_cut else s.n_computed + 1
            ): s
            for slot in self.slots
            if (s := slot.sequence) is not None and s.phase is Phase.PREFILL
            if s.adapter_set.scope == sequence.adapter_set.scope and s.request.priority <= sequence.request.priority
        }
        at_least = max(n_available + MIN_TOKENS, MIN_WAIT) - 1
        prefix, n = longest_match(prefills, sequence.target, sequence.adapter_set, at_least, sequence.n_reusable)
        if prefix is None or not self._copy_pays(n, n):
            return False
        computing = prefills[prefix]
        if not can_cut:
            computing.checkpoint_positions = tuple({*computing.checkpoint_positions, n})
        sequence.awaited = computing, n
        return True

    def checkpoint_positions(self, placement: Placement) -> tuple[int, ...]:
        if self.info.can_cut or not self.params.ctx_checkpoints:
            return ()
        target, media, slot = placement.sequence.target, placement.sequence.media, placement.slot
        others = (one for one in (*self.ram, *self.slots) if one.adapter_set == placement.sequence.adapter_set)
        divergence = max((common_prefix(target, one.tokens) for one in others if one is not slot), default=0)
        found = checkpoint_positions(
            target, len(slot.tokens), self.info.turn_ends, self.params.checkpoint_min_step, divergence
        )
        return tuple(sorted({whole(media, mark) for mark in found})) if media else found

    def _choose(self, sequence: Sequence, source: Slot | None, n: int) -> Slot:
        """Return the matching slot if little is lost by truncating it; otherwise the cheapest idle one."""
        if source is not None and source.idle:
            similar = n > self.params.slot_prompt_similarity * len(sequence.target) > 0
            if similar and len(source.tokens) - n <= n:
                return source
        return self._cheapest(source)

    def _cheapest(self, avoid: Slot | None) -> Slot:
        """Return the idle slot with the lowest keep value, preferably next to a running one. Return `avoid` only if
        there is no other.
        """
        running, moves = self._ids_in_use, self.move_budget
        idle = [slot for slot in self.slots if slot.idle]
        now = max(slot.last_used for slot in idle)
        # cost of an additional evaluation in each step, in the unit of keep value: prefill tokens per second
        evaluation_cost = moves.prefill_rate * self._evaluation_s / moves.step_s if moves.step_s else 0.0

        def cost(slot: Slot) -> tuple[bool, float, int, float, int]:
            n = 0 if self.info.unified else n_more_id_groups(slot.id, running)
            return slot is avoid, slot.keep_value(now) + n * evaluation_cost, n, slot.last_used, slot.id

        return min(idle, key=cost)

    @property
    def _ids_in_use(self) -> AbstractSet[int]:
        return {slot.id for slot in self.slots if not slot.idle}

    @property
    def _evaluation_s(self) -> float:
        """Seconds of an additional evaluation; never more than a measured step."""
        return min(self.info.evaluation_s, self.move_budget.step_s or inf)

    def relocation(self, fixed: AbstractSet[int]) -> tuple[Slot, Slot] | None:
        """Return (source, target) of the relocation that saves the most time, or None. The sequence in `source` goes to
        the idle slot `target` so that steps need fewer evaluations.

        Slots in `fixed`, and slots requested by id, do not take part. A decoding sequence is expected to generate as
        many tokens again as so far, within its limit. The contents of `target` are lost, or offloaded if RAM stores
        states. The copy takes at most half of a step, because the other sequences wait for it in addition to their
        step.
        """
        running, moves, evaluation_s = self._ids_in_use, self.move_budget, self._evaluation_s
        self.slots_changed = self.slots_changed and len(neighbours(running)) > 1
        if not (self.slots_changed and evaluation_s):
            return None
        longest_s = moves.target_s / 2 - moves.spent_s
        movable = [
            slot
            for slot in self.slots
            if slot.id not in fixed and not any(s and s.request.id_slot >= 0 for s in (slot.sequence, slot.last))
        ]
        targets = [(slot, self._recovery_s(len(slot.tokens))) for slot in movable if slot.idle]
        best, best_saved_s = None, 0.0
        for source in movable:
            n_less, transfer_s = n_more_id_groups(source.id, running), moves.transfer_s(len(source.tokens))
            # a sequence between two others would split them, which saves nothing
            if (s := source.sequence) is None or s.phase is not Phase.DECODE or n_less < 0 or transfer_s > longest_s:
                continue
            n, limit, others = len(s.output), s.request.max_tokens, running - {source.id}
            evaluations_s = (n if limit < 0 else min(n, limit - n)) * evaluation_s
            for target, recovery_s in targets:
                saved_s = (n_less - n_more_id_groups(target.id, others)) * evaluations_s - transfer_s - recovery_s
                if saved_s > best_saved_s:
                    best, best_saved_s = (source, target), saved_s
        return best

    def _recovery_s(self, n: int) -> float:
        """Return the seconds to recompute `n` tokens that a slot loses, or to save and load them if that is faster."""
        return min(self.move_budget.compute_s(n), self.move_budget.round_trip_s(n) if self.ram.offloads else inf)

    def _copy_pays(self, n: int, n_held: int) -> bool:
        """Return whether copying `n` tokens of a slot that holds `n_held` is faster than computing them. Unified cells
        are shared; a separate stream is copied whole.
        """
        compute_s = self.move_budget.compute_s(n)
        is_faster = self.info.unified or not compute_s or self.move_budget.transfer_s(n_held) < compute_s
        return n >= MIN_TOKENS and is_faster
