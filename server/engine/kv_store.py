"""The only code that changes KV cells other than by decoding. It keeps ``slot.tokens`` equal to the cells, and moves
states between cells, RAM and disk. Used by the step thread. `MoveBudget` decides whether a state is moved.
"""

import logging
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from math import inf

from server.engine.cache.disk_cache import DiskCache
from server.engine.cache.prefix_cache import (
    MIN_PROMPT,
    MIN_TOKENS,
    CachedPrefix,
    CacheEntry,
    Fetch,
    added,
    common_prefix,
    longest_match,
    n_bytes_of,
    size_of,
    up_to,
)
from server.engine.cache.scope import is_lasting
from server.engine.lora import NEVER
from server.engine.media import Spans, below, dropped, last_position, n_up_to, position, span_at, whole
from server.engine.placement import Placement
from server.engine.runner_api import Runner
from server.engine.scheduler import Scheduler, TokenRun
from server.engine.sequence import Sequence, Slot, first_to_evict, log_fields
from server.engine.stats import EngineStats
from server.errors import CONTAINED, InternalError, InvalidRequest

UNKNOWN_S = 2.0  # longest wait for a read from disk while the prefill rate is unknown
READ_AHEAD = 2  # states read ahead for an instance's queue: one is loaded while the next is read
log = logging.getLogger(__name__)


class Cells:
    """The cells of one instance, and the moves of states between them, RAM and disk."""

    def __init__(
        self, runner: Runner, scheduler: Scheduler, clock: Callable[[], float], stats: EngineStats | None = None
    ) -> None:
        self._stats = stats or EngineStats()
        self._runner = runner
        self._scheduler = scheduler
        self._clock = clock
        self._can_cut = runner.info.can_cut
        self._checkpoint_s = 0.0  # seconds of the last checkpoint, including the wait for a deferred decode
        self._moves = scheduler.move_budget

    # ---- between cells, RAM and disk

    @property
    def disk(self) -> DiskCache | None:
        return self._scheduler.placer.disk

    def offload(self, slot: Slot, n_lost: int, now: float, then_s: float = 0.0) -> None:
        """Save an idle slot that is about to lose `n_lost` tokens, if that pays (`MoveBudget.admits`). Tokens that
        another slot or RAM also holds, and tokens that no request can reuse, do not count.

        `then_s`: seconds of the moves that follow in the same step.
        """
        ram, disk, n = self._scheduler.ram, self.disk, min(len(slot.tokens), slot.n_exact)
        if n_lost < MIN_TOKENS or not _is_reusable(slot):
            return
        elsewhere = (*self._others(slot), *ram)
        n_lost -= len(slot.tokens) - n  # tokens that are not exact
        n_lost = min(n_lost, n - longest_match(elsewhere, slot.tokens, slot.adapter_set, 0, n)[1])
        if n_lost < MIN_TOKENS:
            return
        self._stats.n_slot_evictions += 1
        if (not ram.offloads and disk is None) or not (n_bytes := self._state_size(slot)):
            return
        if not self._moves.admits(n_bytes, n_lost):
            return
        size = size_of(n_bytes, len(slot.tokens), {})  # RAM has the checkpoints already
        to_ram = ram.offloads and ram.fits(size, now)
        if not to_ram and not (
            disk is not None and disk.wants(slot) and disk.takes(size + n_bytes_of(slot.checkpoints))
        ):
            return
        if self._moves.move_stalls(n_bytes, then_s):
            self._stats.n_cache_refused += 1
            self._moves.n_unsaved += 1
            log.debug("slot %d: %d tokens are not offloaded, saving them would stall other requests", slot.id, n)
            return
        if to_ram:
            ram.remove_shorter(slot, now)
            ram.make_room(size, now)
        if (entry := self._try_copy_state(slot)) is not None:
            ram.put(entry, now)  # spills it to disk if it does not fit
            if to_ram and disk is not None and disk.shared:
                disk.put(entry)

    def pin(self, slot: Slot, until: float, now: float) -> None:
        """Keep a copy of the state of `slot` in RAM until `until`. Raises `InvalidRequest` if there is no room, or no
        request could reuse it.
        """
        ram = self._scheduler.ram
        if not slot.n_exact or (not ram.offloads and self._scheduler.params.cache_ram):
            raise InvalidRequest("the prefix was not pinned: the cache was reset meanwhile; pin it again")
        entry = self._try_copy_state(slot) if _is_reusable(slot) else None
        if entry is None or not ram.pin(entry, until, now):
            raise InvalidRequest(
                f"the prefix of {len(slot.tokens)} tokens was not pinned: pinned prefixes may take half of cache_ram; "
                "raise it, or wait until others expire"
            )

    def free_cells(self, runs: list[TokenRun], now: float) -> Sequence | None:
        """Free cells after a decode of `runs` found none (`KvBudget.victim`). Return the sequence that must end,
        because it is the only one and its batch cannot be smaller.
        """
        n_tokens = sum(len(run.tokens) for run in runs)
        can_split = n_tokens > 1 and not any(run.media is not None and not run.media.causal for run in runs)
        victim = self._scheduler.kv_budget.victim(n_tokens, can_split=can_split)
        if isinstance(victim, Slot):
            self.evict(victim, now)
        elif victim is None or self._scheduler.n_active == 1:
            return victim
        else:
            self.preempt(victim, now)
        return None

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Move a running sequence out of the cells and back into the queue. Its state is reserved in RAM, unless
        moving it would stall others or there is no memory; its tokens are then recomputed.
        """
        slot, ram = sequence.held, self._scheduler.ram
        self._stats.n_preempted += 1
        self._scheduler.requeue(sequence, now)
        n_bytes = 0 if slot.ends_inside else self._state_size(slot)
        has_room = n_bytes and not self._moves.move_stalls(n_bytes) and ram.make_room(n_bytes, now)
        entry = self._try_copy_state(slot) if has_room else None
        self.clear(slot)  # first, so that checkpoints count once
        if entry is not None and ram.reserve(entry, now):
            sequence.offloaded = entry
        else:
            about = log_fields(sequence.request)
            log.info("slot %d: no room or time to keep the state of a preempted request", slot.id, extra=about)

    def save(self, slot: Slot) -> CacheEntry:
        """Return the state of `slot` without its incomplete medium; an empty state if the cache was reset meanwhile."""
        if not slot.n_exact or (slot.ends_inside and not self.truncate(slot, len(slot.tokens))):
            self.clear(slot)
        return self._copy_state(slot)

    def _copy_state(self, slot: Slot) -> CacheEntry:
        """Return the state of `slot`. Raises one of `CONTAINED` if the library fails or there is no memory."""
        started = self._clock()
        state = self._runner.seq_save(slot.id)
        if not state:
            raise InternalError(f"the library gave an empty state for slot {slot.id}")
        self._observe_move(len(slot.tokens), state, started)
        floor = 0 if self._can_cut else len(slot.tokens)
        return CacheEntry(
            *(list(slot.tokens), slot.adapter_set, slot.n_exact, slot.checkpoints, slot.media, floor, slot.last_used),
            state,
        )

    def _load(self, slot: Slot, state: bytes, n: int, media: Spans) -> bool:
        """Load a `state` of `n` tokens into the empty `slot`. Return False, with the slot empty, if there is no room or
        the library fails.
        """
        started = self._clock()
        try:
            is_loaded = self._runner.seq_load(slot.id, state, last_position(media, n) + 1)
        except CONTAINED as error:
            log.warning("slot %d: a state of %d tokens could not be loaded: %r", slot.id, n, error)
            self.clear(slot)
            return False
        if is_loaded:
            self._observe_move(n, state, started)
        return is_loaded

    def _observe_move(self, n: int, state: bytes, started: float) -> None:
        seconds = self._clock() - started
        self._moves.spent_s += seconds
        if n:
            self._moves.observe_move(n, len(state), seconds)

    def _try_copy_state(self, slot: Slot) -> CacheEntry | None:
        """Return the state of `slot`; None if the library fails or there is no memory."""
        try:
            return self._copy_state(slot)
        except CONTAINED as error:
            log.warning("slot %d: its state could not be kept: %s", slot.id, str(error) or repr(error))
            return None

    def _state_size(self, slot: Slot) -> int:
        """Return the size in bytes of the state of `slot` without copying it; 0 if unknown."""
        try:
            return self._runner.seq_size(slot.id)
        except CONTAINED as error:
            log.warning("slot %d: the size of its state is not known: %s", slot.id, str(error) or repr(error))
            return 0

    def drop_cached(self, sequence: Sequence) -> None:
        """Drop the RAM and disk entries that share a prefix with `sequence`, because they may have caused its fault.
        A reserved state of a preempted sequence stays, but only that sequence reuses it.
        """
        tokens, adapter_set, ram, disk = sequence.content, sequence.adapter_set, self._scheduler.ram, self.disk
        for entry in (*ram, *(() if disk is None else disk.index)):
            if not entry.reusable(common_prefix(tokens, entry.tokens), adapter_set):
                continue
            if entry.pinned_until == inf:
                entry.n_exact = 0
            elif disk is not None and entry.name:
                disk.drop(entry)
            else:
                ram.remove(entry)

    def start_reading(self) -> None:
        """Start disk reads for the first waiting sequences, except those whose `id_slot` is busy. A sequence waits no
        longer than recomputing would take.

        Reads for the first `READ_AHEAD` states in the queue are started. Reads of sequences that were overtaken since
        continue.
        """
        disk, scheduler, now = self.disk, self._scheduler, self._clock()
        if disk is None:
            return
        wanted: dict[CacheEntry, list[Fetch]] = {}
        for sequence in scheduler.waiting.candidates():
            slot, fetch = scheduler.placer.wanted_slot(sequence), sequence.fetch
            if (slot is None or slot.idle) and fetch is not None and (fetch.pending(now) or fetch.found is not None):
                wanted.setdefault(fetch.entry, []).append(fetch)
        for entry, fetches in list(wanted.items())[:READ_AHEAD]:
            future = next((fetch.future for fetch in fetches if fetch.future is not None), None) or disk.read(entry)
            for fetch in fetches:
                if fetch.future is None:
                    fetch.future = future
                    fetch.wait_until = now + (self._moves.compute_s(fetch.n) or UNKNOWN_S)

    def write_for_others(self) -> bool:
        """Write an idle slot to a disk that is shared with other processes, if no request runs or waits and the move is
        fast enough. Return whether a slot was written.
        """
        disk, scheduler = self.disk, self._scheduler
        if disk is None or not disk.shared or scheduler.n_active or scheduler.waiting:
            return False
        for slot in scheduler.slots:
            if slot.written_for_others is slot.last or not _is_reusable(slot) or not disk.wants(slot):
                continue
            n_bytes = self._state_size(slot)
            is_fast = n_bytes and self._moves.move_s(n_bytes) <= self._moves.prompt_step_s
            if is_fast and disk.takes(size_of(n_bytes, len(slot.tokens), slot.checkpoints)):
                slot.written_for_others = slot.last
                if (entry := self._try_copy_state(slot)) is not None:
                    disk.put(entry)
                return True
        return False

    def save_all(self, now: float) -> None:
        """Write RAM entries and slots to disk before they are freed, highest keep value first.

        Slots are copied one at a time, when less data waits to be written.
        """
        if self.disk is None:
            return
        self.disk.begin_close()
        ram = self._scheduler.ram
        slots = [slot for slot in self._scheduler.slots if _is_reusable(slot) and not ram.holds(slot)]
        wanted: list[CacheEntry | Slot] = [one for one in (*ram, *slots) if self.disk.wants(one)]
        for one in sorted(wanted, key=lambda one: one.keep_value(now), reverse=True):
            size = (
                size_of(self._state_size(one), len(one.tokens), one.checkpoints) if isinstance(one, Slot) else one.size
            )
            if self.disk.wait_for_room(size):
                entry = self._try_copy_state(one) if isinstance(one, Slot) else one
                if entry is not None:
                    self.disk.put(entry)

    # ---- the cells of a slot

    def clear(self, slot: Slot) -> int:
        """Remove everything from `slot`; return the number of its tokens."""
        n = len(slot.tokens)
        self._runner.seq_remove(slot.id, 0)
        self._unshare(slot, 0)
        slot.tokens, slot.media, slot.checkpoints = [], (), {}
        slot.n_exact, slot.floor = NEVER, 0
        return n

    def clear_idle(self, wanted: Callable[[Slot], bool]) -> None:
        for slot in self._scheduler.slots:
            if slot.idle and wanted(slot):
                self.clear(slot)

    def drop_all(self) -> int:
        """Clear idle slots, and exclude the contents of the others from reuse. Return the number of their tokens."""
        slots, waiting = self._scheduler.slots, list(self._scheduler.waiting)
        n_tokens = sum(len(slot.tokens) for slot in slots if slot.n_exact)
        self.clear_idle(lambda _: True)
        for sequence in waiting:
            sequence.fetch = sequence.awaited = None  # it may have been read already
        offloaded = [entry for sequence in waiting if (entry := sequence.offloaded) is not None]
        for one in (*(slot for slot in slots if slot.tokens), *offloaded):  # their sequences continue with them
            one.n_exact, one.checkpoints = 0, {}
        return n_tokens

    def evict(self, slot: Slot, now: float, then_s: float = 0.0) -> None:
        """Remove the cells of the idle `slot`, offloading them first if that is useful."""
        self.offload(slot, len(slot.tokens), now, then_s)
        self.clear(slot)

    def truncate(self, slot: Slot, n: int) -> bool:
        """Keep the first `n` tokens, rounded down to a whole medium. Return False, with nothing changed, if the memory
        cannot be truncated there.
        """
        n = whole(slot.media, n)
        if not self._runner.seq_remove(slot.id, position(slot.media, n)):
            return False
        self._record_truncation(slot, n)
        return True

    def _record_truncation(self, slot: Slot, n: int) -> None:
        """Update `slot` after everything but its first `n` tokens was removed."""
        self._unshare(slot, n)
        del slot.tokens[n:]
        slot.media = below(slot.media, n)
        if n <= slot.n_exact:
            slot.n_exact = NEVER
        slot.checkpoints = up_to(slot.checkpoints, n)
        self._update_floor(slot)

    def _truncate_or_rewind(self, slot: Slot, n: int) -> None:
        """Keep the first `n` tokens, by a checkpoint if necessary. If that is impossible, clear the slot."""
        if len(slot.tokens) <= n or self.truncate(slot, n):
            return
        checkpoint = slot.checkpoints.get(n)
        if checkpoint is None or not self._rewind(slot, n, checkpoint):
            self.clear(slot)
            return
        self._stats.n_checkpoint_hits += 1

    def _rewind(self, slot: Slot, n: int, checkpoint: bytes) -> bool:
        """Restore the `checkpoint` after `n` tokens. Return False if the cells are empty now; `slot` is unchanged then
        and must be cleared.
        """
        if not self._runner.seq_rewind(slot.id, checkpoint, last_position(slot.media, n) + 1):
            return False
        self._record_truncation(slot, n)
        return True

    def prepare_rollback(self, runs: list[TokenRun]) -> None:
        """Create checkpoints for `runs`, which are decoded next, if their draft tokens need them to be rolled back.

        A micro-batch replaces no cell in the window of its first token (llama-kv-cache.cpp, find_slot). So a sliding
        window can be truncated after a decode in one micro-batch. Several sequences with separate KV are decoded in
        several.
        """
        if self._can_cut:
            return
        in_one_ubatch = self._runner.info.unified or len(runs) == 1
        for run in runs:
            slot = run.sequence.held
            n_draft = len(run.draft_tokens)
            if n_draft <= self._runner.info.n_rollback or (in_one_ubatch and slot.floor < len(slot.tokens)):
                continue
            try:
                run.undo = len(slot.tokens), self._runner.seq_checkpoint(slot.id)
            except CONTAINED as error:
                log.warning("slot %d: draft tokens are skipped, because no checkpoint was made: %r", slot.id, error)
                run.tokens, run.n_outputs = run.tokens[:-n_draft], 1

    def roll_back(self, run: TokenRun, n: int, now: float) -> None:
        """Roll back the last `n` tokens of `run`, which were rejected drafts.

        If the memory cannot be truncated, a rollback also removes accepted tokens. They are decoded again together with
        the next token.
        """
        sequence = run.sequence
        slot = sequence.held
        n_left = len(slot.tokens) - n
        if self.truncate(slot, n_left):
            return
        if run.undo is not None and self._rewind(slot, *run.undo):
            sequence.n_rolled_back = n_left - run.undo[0]
            return
        about = log_fields(sequence.request)
        what = "slot %d: rejected draft tokens could not be rolled back; recomputing its %d tokens"
        log.warning(what, slot.id, n_left, extra=about)
        self._scheduler.requeue(sequence, now)
        self.clear(slot)

    def _update_floor(self, slot: Slot) -> None:
        """Update ``floor`` after the cells of `slot` have changed."""
        if not self._can_cut:
            slot.floor = n_up_to(slot.media, self._runner.seq_floor(slot.id))

    def decoded(self, runs: list[TokenRun]) -> None:
        if self._can_cut:
            return
        for run in runs:
            slot = run.sequence.held
            self._update_floor(slot)
            if len(slot.tokens) in run.sequence.checkpoint_positions:
                self._checkpoint(slot)

    def _checkpoint(self, slot: Slot) -> None:
        """Create a checkpoint of `slot`, if there is time and memory."""
        n, max_count = len(slot.tokens), self._scheduler.params.ctx_checkpoints
        if self._can_cut or not max_count or n > slot.n_exact:
            return
        if any(abs(n - place) < MIN_TOKENS for place in slot.checkpoints):
            return
        if self._checkpoint_s and self._moves.stalls_others(self._checkpoint_s):
            return
        started = self._clock()
        try:
            n_bytes = self._runner.seq_size(slot.id, partial=True)
            stalls = not self._checkpoint_s and self._moves.move_stalls(n_bytes)
            if stalls or not self._make_room_for_checkpoint(slot, n_bytes, started):
                return
            state = self._runner.seq_checkpoint(slot.id)
        except CONTAINED as error:
            log.warning("slot %d: no checkpoint at %d tokens: %r", slot.id, n, error)
            return
        self._checkpoint_s = self._clock() - started
        self._moves.spent_s += self._checkpoint_s
        self._stats.n_checkpoints += 1
        max_bytes = self._scheduler.ram.limit // self._runner.info.n_seq
        slot.checkpoints = added(slot.checkpoints, n, state, max_count, max_bytes)

    def _make_room_for_checkpoint(self, slot: Slot, n_bytes: int, now: float) -> bool:
        """Make room in RAM for a checkpoint of `slot`; idle slots lose theirs first, lowest keep value first."""
        ram = self._scheduler.ram
        while not ram.make_room(n_bytes, now):
            others = [other for other in self._others(slot) if other.idle and other.checkpoints]
            n_idle = sum(n_bytes_of(other.checkpoints) for other in others)
            if not others or not ram.fits(n_bytes - n_idle, now):
                return False
            first_to_evict(others).checkpoints = {}
        return True

    def prepare(self, placement: Placement, now: float) -> None:
        """Put the prefix of `placement` into the cells of its slot: a shorter one if the memory cannot be truncated
        there, and none after an error.
        """
        slot, source = placement.slot, placement.source
        n_lost = len(slot.tokens) - (placement.n_cached if source is slot else 0)
        load_s = self._moves.move_s(len(source.state)) if isinstance(source, CacheEntry) else 0.0
        self.offload(slot, n_lost, now, load_s)
        try:
            self._fill_slot(placement, now)
        except CONTAINED as error:
            about = log_fields(placement.sequence.request)
            log.warning("slot %d: its prompt is recomputed: %r", slot.id, error, extra=about)
            self.clear(slot)

    def _fill_slot(self, placement: Placement, now: float) -> None:
        slot, source, sequence = placement.slot, placement.source, placement.sequence
        if source is not slot:
            self.clear(slot)
        if isinstance(source, CacheEntry):
            self._load_entry(slot, source, sequence, now)
        elif source is not None and source is not slot:
            self._copy(source, slot)
        if placement.shifted:
            self._keep_runs(slot, [range(placement.n_reuse), *placement.shifted], now)
            return
        self._truncate_or_rewind(slot, placement.n_reuse)
        if isinstance(source, Slot) and len(slot.tokens) >= MIN_PROMPT:
            self._checkpoint(slot)  # a turn ended here, and a later request may continue from it

    def _load_entry(self, slot: Slot, entry: CacheEntry, sequence: Sequence, now: float) -> None:
        """Load `entry`. Remove it from RAM if it is the reserved state of `sequence`, which resumes."""
        ram, resumes = self._scheduler.ram, entry is sequence.offloaded
        if resumes:
            sequence.offloaded = None
            ram.remove(entry)
        if (resumes and self._moves.move_stalls(len(entry.state))) or not self._load_entry_evicting(slot, entry, now):
            what, about = "slot %d: no room or time for a cached state of %d tokens", log_fields(sequence.request)
            log.info(what, slot.id, len(entry.tokens), extra=about)
        elif entry in ram:  # otherwise it was read from disk
            ram.touch(entry, now)

    def _keep_runs(self, slot: Slot, runs: Seq[range], now: float) -> bool:
        """Keep only these `runs` of cells: the first starts at 0, and the others are shifted to follow it. Return False
        if `slot` is empty now.
        """
        n = runs[0].stop
        if not self._unshare_from(slot, runs[1].start, now):
            return False
        joined, media, shift = slot.tokens[:n], slot.media, 0
        for run in runs[1:]:
            start, target = run.start - shift, len(joined)
            if start > target:  # otherwise earlier shifts have put it in place
                self._runner.seq_drop(slot.id, target, start)
                media = dropped(media, target, start)
            joined += slot.tokens[run.start : run.stop]
            shift = run.start - target
        if runs[-1].stop < len(slot.tokens):
            self._runner.seq_remove(slot.id, len(joined))
        slot.n_exact = min(slot.n_exact, n)
        self._unshare(slot, n)
        slot.checkpoints = up_to(slot.checkpoints, n)
        slot.tokens, slot.media = joined, media
        return True

    def _copy(self, source: Slot, target: Slot) -> None:
        """Copy the contents of `source` to the empty `target`. A separate stream is copied whole, so its state is moved
        instead if that is faster. A copy is necessary if other copies wait for the next decode, and with MTP heads,
        whose state only a copy preserves.
        """
        runner, moves = self._runner, self._moves
        state, move_is_faster = None, moves.round_trip_s(len(source.tokens)) < moves.copy_s
        if move_is_faster and not (runner.info.unified or moves.n_copies or runner.heads is not None):
            state = self._try_copy_state(source)
        if state is None or not self._load(target, state.state, len(source.tokens), source.media):
            runner.seq_copy(source.id, target.id)
            if not runner.info.unified:
                moves.n_copies += 1
                moves.spent_s += moves.copy_s
        self._record_contents(target, source)
        if runner.info.unified:
            target.n_shared, target.shares_with = len(target.tokens), source

    def relocate(self, source: Slot, target: Slot, now: float) -> None:
        """Relocate the sequence in `source` to the idle slot `target`, whose contents are evicted. If the library fails
        or there is no memory, it stays in `source`.
        """
        self.evict(target, now, self._moves.transfer_s(len(source.tokens)))
        try:
            self._copy(source, target)
        except CONTAINED as error:
            log.warning("slot %d: its sequence could not be moved to slot %d: %r", source.id, target.id, error)
            self.clear(target)
            self._scheduler.placer.slots_changed = False  # try again after the next change
            return
        slots = self._scheduler.slots
        slots[source.id], slots[target.id] = target, source
        source.id, target.id = target.id, source.id
        source.n_requests, target.n_requests = target.n_requests, source.n_requests
        self.clear(target)
        self._update_floor(source)

    def shift(self, sequence: Sequence, keep: int, discard: int, now: float) -> None:
        """Drop `discard` tokens after the first `keep` (context shift); later tokens are shifted and generation
        continues.
        """
        slot = sequence.held
        tokens = slot.tokens
        sequence.base = tokens[:keep] + tokens[keep + discard :]
        sequence.media = dropped(sequence.media, keep, keep + discard)
        sequence.base_output = len(sequence.output) - len(sequence.pending)
        if not self._keep_runs(slot, [range(keep), range(keep + discard, len(tokens))], now):
            self._scheduler.requeue(sequence, now)

    def _unshare_from(self, slot: Slot, start: int, now: float) -> bool:
        """Give `slot` its own cells if others share those from `start` on, because a shift would shift them for all.
        Return False if `slot` is empty now.

        A shift of unshared cells only changes positions, as in llama-server.
        """
        if self.n_held_elsewhere(slot) <= start:
            return True
        if self._moves.stalls_others(self._moves.round_trip_s(len(slot.tokens))):
            self.clear(slot)
            return False
        copy = self._try_copy_state(slot)
        self.clear(slot)
        return copy is not None and self._load_entry_evicting(slot, copy, now)

    def n_held_elsewhere(self, slot: Slot) -> int:
        """Return how many of its first tokens another slot holds in the same cells."""
        return max([slot.n_shared, *(o.n_shared for o in self._scheduler.slots if o.shares_with is slot)])

    def _unshare(self, slot: Slot, n: int) -> None:
        """Record that `slot` keeps only its first `n` cells. Of the slots that share more of them, the one that shares
        the most becomes the heir, and the others then share with the heir.

        Example: slots 1 and 2 share 100 and 80 cells of slot 0, which is truncated to 50. Then slot 1 shares 50 cells
        with slot 0, and slot 2 shares 80 with slot 1.
        """
        copies = [other for other in self._scheduler.slots if other.shares_with is slot and other.n_shared > n]
        n_shared, source = slot.n_shared, slot.shares_with
        slot.n_shared = min(n_shared, n)
        if not slot.n_shared:
            slot.shares_with = None
        if not copies:
            return
        heir = max(copies, key=lambda other: other.n_shared)
        for other in copies:
            other.shares_with = heir
        if n_shared > n:  # it was a copy itself; the heir now shares the same source
            heir.n_shared, heir.shares_with = min(heir.n_shared, n_shared), source
        else:
            heir.n_shared, heir.shares_with = n, slot if n else None

    def restore(self, slot: Slot, saved: CacheEntry, now: float) -> None:
        """Replace the contents of `slot` by a saved state; idle slots are evicted for it as needed.

        Raises `InvalidRequest` if it does not fit or the library rejects it; the slot is empty then.
        """
        self.clear(slot)
        n = len(saved.tokens)
        if n > self._runner.info.n_ctx_seq:
            raise InvalidRequest(f"the state has {n} tokens, the slot's context {self._runner.info.n_ctx_seq}")
        if not n:
            return
        slot.last_used = now
        if not self._load_entry_evicting(slot, saved, now):
            raise InvalidRequest(f"the state of {n} tokens was refused by the library or finds no room")
        slot.adapter_set = saved.adapter_set

    def _load_entry_evicting(self, slot: Slot, saved: CacheEntry, now: float) -> bool:
        """Load `saved` into the empty `slot`; evict idle slots as needed. Return False, with the slot empty, if too few
        cells are free or the library rejects it.
        """
        info, n = self._runner.info, len(saved.tokens)
        while True:
            others = self._others(slot)
            # without free cells the library is not called, which would log an error
            is_full = info.unified and info.can_cut and n + _n_cells(others) > info.n_cells
            if not is_full and self._load(slot, saved.state, n, saved.media):
                self._record_contents(slot, saved)
                return True
            cached = [s for s in others if s.idle]
            has_room = info.can_cut and n + sum(len(s.tokens) for s in others) <= info.n_cells
            n_running = _n_cells(s for s in others if not s.idle)
            if not (info.unified and cached) or has_room or n + n_running > info.n_cells:
                return False  # nothing to evict, refused for another reason, or it would not help
            self.evict(first_to_evict(cached), now)

    def _record_contents(self, slot: Slot, contents: CachedPrefix) -> None:
        slot.tokens, slot.media, slot.n_exact = list(contents.tokens), contents.media, contents.n_exact
        slot.checkpoints = contents.checkpoints
        if not self._scheduler.ram.make_room(0, slot.last_used):
            slot.checkpoints = {}
        self._update_floor(slot)

    def _others(self, slot: Slot) -> list[Slot]:
        return [s for s in self._scheduler.slots if s is not slot and s.tokens]


def _is_reusable(slot: Slot) -> bool:
    """Return whether a later request may continue from what `slot` holds."""
    return not slot.ends_inside and slot.n_exact >= MIN_TOKENS and is_lasting(slot.adapter_set.scope)


def _n_cells(slots: Iterable[Slot]) -> int:
    """Return the smallest number of cells that `slots` may hold together."""
    return sum(len(slot.tokens) - slot.n_shared for slot in slots)


_MARGIN = 4  # cells that ``n_keep`` must leave, as in llama-server


def shift_sizes(sequence: Sequence, n_ctx: int, *, add_bos: bool) -> tuple[int, int]:
    """Return (tokens kept at the start, tokens dropped after them) as llama-server (server-context.cpp, update_slots).
    Drops nothing if only a medium could be dropped.
    """
    request = sequence.request
    keep = len(request.prompt) if request.n_keep < 0 else request.n_keep
    keep = whole(sequence.media, min(n_ctx - _MARGIN, keep + add_bos))
    left = sequence.n_computed - keep
    discard = max(1, min(request.n_discard or left // 2, left - 1))
    end = whole(sequence.media, keep + discard)
    if end < keep + discard:  # inside a medium, which is dropped whole unless nothing would be left
        medium = span_at(sequence.media, end)
        assert medium is not None
        end = medium.end if medium.end < sequence.n_computed else end
    return keep, end - keep
