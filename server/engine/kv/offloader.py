"""Moves states between cells, RAM and disk. Used by the step thread.

Moving a state stops every sequence of the instance, and the library moves it in one piece. So a state is moved only
if that is faster than recomputing, and only if it is predicted to stall nobody for longer than a step. Anything
longer waits until no other sequence runs, or is recomputed.
"""

import logging
import math
from collections.abc import Callable, Iterable

from server.engine.cache_scope import is_lasting
from server.engine.kv.disk_cache import DiskCache, start_reading
from server.engine.kv.ram_cache import CacheEntry, in_ram, size_of
from server.engine.kv.state import SlotState
from server.engine.media import Spans, last_position
from server.engine.runner_api import Runner
from server.engine.schedule.scheduler import ALONE_S, Scheduler
from server.engine.sequence import Phase, Sequence, Slot, log_fields
from server.errors import CONTAINED, InternalError

log = logging.getLogger(__name__)

SHARE = 0.1
"""Share of a step that may be spent on moving states, besides the last one. In `benchmarks.simulation`, 0.1 halves the
longest inter-token gap compared with 1.0, at equal throughput and time to first token.
"""


class Offloader:
    """Moves states between the cells of one instance, RAM and disk."""

    def __init__(self, runner: Runner, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._clock = clock
        self.n_refused = 0  # states dropped because saving them would have stalled others
        scheduler.placer.may_load = self.may_load

    @property
    def disk(self) -> DiskCache | None:
        return self._scheduler.placer.disk

    @property
    def _prompt_step_s(self) -> float:
        return max(self._scheduler.params.target_s, ALONE_S)

    @property
    def busy(self) -> bool:
        """Whether this step has spent its share on moving states while others wait; the rest waits for the next
        step."""
        return 0 < self._scheduler.spent_s > self._others_step_s() * SHARE

    def would_stop_others(self, seconds: float, besides: Sequence | None = None) -> bool:
        """Whether an operation of `seconds`, with what this step has spent, would stall other sequences for more than a
        step.
        """
        return self._scheduler.spent_s + seconds > self._others_step_s(besides)

    def _others_step_s(self, besides: Sequence | None = None) -> float:
        """Return how long a step may take for the slot holders: the decode target, the prefill target, or infinity
        without any.
        """
        step_s = math.inf
        for sequence in self._scheduler.active():
            if sequence is not besides:
                if sequence.phase is Phase.DECODE:
                    return self._scheduler.params.target_s
                step_s = self._prompt_step_s
        return step_s

    def _pieces_to_load(self, slot: Slot | None, n: int) -> int:
        """Return the largest number of pieces that `n` tokens may be scattered over."""
        if not self._runner.info.unified:
            return 1
        return min(n, 1 + sum(other.n_pieces for other in self._scheduler.slots if other is not slot and other.tokens))

    def swap_out(self, slot: Slot) -> SlotState:
        """Return the state of `slot`. Raises one of `CONTAINED` if the library fails or there is no memory."""
        started = self._clock()
        state = self._runner.seq_save(slot.id)
        if not state:
            raise InternalError(f"the library gave an empty state for slot {slot.id}")
        seconds = self._clock() - started
        self._scheduler.spent_s += seconds
        if slot.tokens:
            n_pieces = min(slot.n_pieces, len(slot.tokens)) or 1
            self._scheduler.move_cost.observe_state(len(slot.tokens), len(state), seconds, n_pieces)
        return SlotState(list(slot.tokens), state, slot.adapter_set, slot.n_exact, slot.checkpoints, slot.media)

    def make_room(self, n_bytes: int, now: float) -> bool:
        """Evict entries so that `n_bytes` more can be held in RAM besides them. Return False if there is no room."""
        return self._gave_way(self._scheduler.ram.make_room_beside(n_bytes, now))

    def hold(self, states: list[bytes], now: float) -> bool:
        """Hold `states` in RAM besides the entries. Return False if there is no room."""
        return self._gave_way(self._scheduler.ram.hold(states, now))

    def _gave_way(self, evicted: list[CacheEntry] | None) -> bool:
        self._to_disk(evicted or ())
        return evicted is not None

    def preempted_state(self, sequence: Sequence, now: float) -> SlotState | None:
        """Return the state of a sequence to be preempted. None if moving it would stall others or there is no memory;
        its tokens are then recomputed.
        """
        slot = sequence.held
        n_bytes = 0 if slot.ends_inside else self._size(slot)
        if not n_bytes or self.refuses(self._scheduler.move_cost.save_s(n_bytes, slot.n_pieces), sequence):
            return None
        try:
            if self.make_room(n_bytes, now):
                preempted = self.swap_out(slot)
                if self.hold(preempted.states, now):  # the checkpoints belong to the slot and are held already
                    return preempted
        except CONTAINED as error:
            what, about = "slot %d: its state could not be saved: %s", log_fields(sequence.request)
            log.warning(what, slot.id, str(error) or repr(error), extra=about)
            return None
        what, about = "slot %d: no room in RAM for the state of a preempted request", log_fields(sequence.request)
        log.info(what, slot.id, extra=about)
        return None

    def may_load(self, saved: SlotState) -> bool:
        """Whether to load `saved`; otherwise its tokens are recomputed."""
        n_pieces = self._pieces_to_load(None, len(saved.tokens))
        return not self.refuses(self._scheduler.move_cost.load_s(len(saved.state), n_pieces))

    def refuses(self, seconds: float, besides: Sequence | None = None) -> bool:
        """Whether a move would stall others for more than a step."""
        if not self.would_stop_others(seconds, besides):
            return False
        self._scheduler.move_cost.refused()
        return True

    def offload(self, slot: Slot, n_lost: int, now: float, incoming: CacheEntry | None = None) -> None:
        """Save an idle slot that is about to lose `n_lost` tokens, if that is useful and fast enough.

        `coming` is loaded after it in the same step.
        """
        cost, ram, n = self._scheduler.move_cost, self._scheduler.ram, len(slot.tokens)
        if not _is_reusable(slot) or not (ram.wants(slot, n_lost) if ram.limit else self._disk_wants(slot, n_lost)):
            return
        if not cost.pays(n, n_lost, slot.n_pieces) or not (n_bytes := self._size(slot)):
            return
        size = size_of(n_bytes, n, slot.checkpoints)
        to_ram = ram.limit != 0 and ram.fits(size)
        if not to_ram and not (self.disk is not None and self.disk.takes(size) and self._disk_wants(slot, n_lost)):
            return
        load_s = 0.0
        if incoming is not None:
            load_s = cost.load_s(len(incoming.saved.state), self._pieces_to_load(slot, len(incoming.tokens)))
        if self.refuses(cost.save_s(n_bytes, slot.n_pieces) + load_s):
            self.n_refused += 1
            log.debug("slot %d: %d tokens are not offloaded, saving them would stall other requests", slot.id, n)
            return
        if to_ram:
            ram.replace(slot)
            self._to_disk(ram.make_room(size, now))
        if (entry := self._entry_of(slot)) is None:
            return
        if to_ram:
            self._to_disk(ram.put(entry, now))
        if not to_ram or (self.disk is not None and self.disk.shared):
            self._to_disk((entry,))

    def _disk_wants(self, one: Slot | CacheEntry, n_lost: int) -> bool:
        return self.disk is not None and self.disk.wants(one, n_lost)

    def drop_cached(self, sequence: Sequence) -> None:
        """Drop the RAM and disk entries that `sequence` may have started from, because they would corrupt other
        sequences too.
        """
        tokens, adapter_set = sequence.content, sequence.adapter_set
        kept, _ = self._scheduler.ram.match(tokens, adapter_set, 0)
        if kept is not None:
            self._scheduler.ram.remove(kept)
        on_disk = self.disk.kept.match(tokens, adapter_set, 0)[0] if self.disk is not None else None
        if self.disk is not None and on_disk is not None:
            self.disk.drop(on_disk)

    def _size(self, slot: Slot) -> int:
        """Return the size in bytes of the state of `slot` without copying it; 0 if unknown."""
        try:
            return self._runner.seq_size(slot.id)
        except CONTAINED as error:
            log.warning("slot %d: the size of its state is not known: %s", slot.id, str(error) or repr(error))
            return 0

    def offer(self) -> bool:
        """Write an idle slot for other processes if nothing runs or waits and it is fast enough. Return whether one was
        written.
        """
        disk, scheduler = self.disk, self._scheduler
        if disk is None or not disk.shared or scheduler.n_active or scheduler.waiting:
            return False
        for slot in scheduler.slots:
            n = len(slot.tokens)
            if slot.offered is slot.last or not _is_reusable(slot) or not disk.wants(slot, n):
                continue
            n_bytes = self._size(slot)
            if not n_bytes or scheduler.move_cost.save_s(n_bytes, slot.n_pieces) > self._prompt_step_s:
                continue
            if disk.takes(size_of(n_bytes, n, slot.checkpoints)):
                slot.offered = slot.last
                self._write_out(slot, disk)
                return True
        return False

    def _entry_of(self, slot: Slot) -> CacheEntry | None:
        """Return the state of `slot` as a cache entry; None if the library fails or there is no memory."""
        try:
            saved = self.swap_out(slot)
            return in_ram(saved, slot.last_used, can_cut=self._runner.info.can_cut, hashes=slot.hashes)
        except CONTAINED as error:
            log.warning("slot %d: its state could not be kept: %s", slot.id, str(error) or repr(error))
            return None

    def _to_disk(self, entries: Iterable[CacheEntry]) -> None:
        if self.disk is not None:
            for entry in entries:
                self.disk.put(entry)

    def load(self, slot: Slot, state: bytes, n: int, media: Spans) -> bool:
        """Load `state`, of `n` tokens, into the empty `slot`. Return False if there is no room."""
        started = self._clock()
        if not self._runner.seq_load(slot.id, state, last_position(media, n) + 1):
            return False
        seconds = self._clock() - started
        self._scheduler.spent_s += seconds
        n_pieces = self._pieces_to_load(slot, n)
        self._scheduler.move_cost.observe_load(len(state), seconds, n_pieces)
        slot.n_pieces = n_pieces
        return True

    def start_reading(self) -> None:
        """Start the disk reads that waiting sequences need."""
        scheduler = self._scheduler
        wanted = (s.fetch for s in scheduler.waiting if s.fetch is not None)
        if self.disk is not None and any(fetch.future is None and not fetch.given_up for fetch in wanted):
            start_reading(scheduler.in_turn(), self.disk, scheduler.move_cost, self._clock(), most=len(scheduler.slots))

    def save_all(self, now: float) -> None:
        """Write RAM entries and slots to disk before they are freed, highest eviction priority first.

        Slots are copied one at a time, when less data waits to be written.
        """
        if self.disk is None:
            return
        self.disk.begin_close()
        ram = self._scheduler.ram
        slots = [slot for slot in self._scheduler.slots if _is_reusable(slot) and not ram.holds(slot)]
        wanted: list[CacheEntry | Slot] = [one for one in (*ram, *slots) if self.disk.wants(one, len(one.tokens))]
        wanted.sort(key=lambda one: one.eviction_priority(now))
        while wanted:
            one = wanted.pop()
            if isinstance(one, Slot):
                n_bytes = self._size(one)
                if n_bytes and self.disk.wait_for_room(size_of(n_bytes, len(one.tokens), one.checkpoints)):
                    self._write_out(one, self.disk)
            elif self.disk.wait_for_room(one.size):
                self.disk.put(one)

    def _write_out(self, slot: Slot, disk: DiskCache) -> None:
        if (entry := self._entry_of(slot)) is not None:
            disk.put(entry)


def _is_reusable(slot: Slot) -> bool:
    """Whether a later request may continue from what `slot` holds."""
    return not slot.ends_inside and is_lasting(slot.adapter_set.scope)
