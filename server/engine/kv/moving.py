"""States out of the cells and back, between slots, RAM and disk. Used by the step thread.

Moving a state stops every sequence of the instance, and the library moves it in one piece. So it is done only where it
pays, and where it is predicted to hold nobody up for longer than a step: streams for theirs, prompts for theirs, which
is longer. What takes longer waits until nobody else is there, or is computed again.
"""

import logging
import math
from collections.abc import Callable, Iterable

from server.engine.cache_scope import is_lasting
from server.engine.kv.disk_cache import DiskCache, start_reading
from server.engine.kv.ram_cache import KeptState, in_ram, size_of
from server.engine.kv.state import SlotState
from server.engine.media import Spans, last_position
from server.engine.runner_api import Runner
from server.engine.schedule.scheduler import ALONE_S, Scheduler
from server.engine.sequence import Phase, Sequence, Slot, log_fields
from server.errors import CONTAINED, InternalError

log = logging.getLogger(__name__)

SHARE = 0.1
"""Of a step, for states that are moved, beside the last of them. In `benchmarks.simulation` the longest gap of a stream
is half of what it is with 1.0, and neither throughput nor the time to the first token is worse."""


class Moving:
    """Between the cells of one instance, RAM and, where it is configured, the disk."""

    def __init__(self, runner: Runner, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._clock = clock
        self.n_refused = 0  # states that were lost because saving them would have held others up
        scheduler.placer.may_load = self.may_load

    @property
    def disk(self) -> DiskCache | None:
        return self._scheduler.placer.disk

    @property
    def _prompt_step_s(self) -> float:
        return max(self._scheduler.params.target_s, ALONE_S)

    @property
    def busy(self) -> bool:
        """Others wait, and states were moved in this step: what is left waits for the next one."""
        return 0 < self._scheduler.spent_s > self._others_step_s() * SHARE

    def would_stop_others(self, seconds: float, besides: Sequence | None = None) -> bool:
        """Whether something that takes so long, with what this step has moved, would hold others up for more than a
        step."""
        return self._scheduler.spent_s + seconds > self._others_step_s(besides)

    def _others_step_s(self, besides: Sequence | None = None) -> float:
        """How long a step may take for those who hold slots: streams, or prompts where only these do; else endless."""
        step_s = math.inf
        for sequence in self._scheduler.active():
            if sequence is not besides:
                if sequence.phase is Phase.DECODE:
                    return self._scheduler.params.target_s
                step_s = self._prompt_step_s
        return step_s

    def _pieces_to_load(self, slot: Slot | None, n: int) -> int:
        """The most pieces that `n` tokens may come to lie in: unified cells are free between those of others."""
        if not self._runner.info.unified:
            return 1
        return min(n, 1 + sum(other.n_pieces for other in self._scheduler.slots if other is not slot and other.tokens))

    def take_out(self, slot: Slot) -> SlotState:
        """What `slot` holds. Raises one of `CONTAINED` when the library fails or there is no memory."""
        started = self._clock()
        state = self._runner.seq_save(slot.id)
        if not state:
            raise InternalError(f"the library gave an empty state for slot {slot.id}")
        seconds = self._clock() - started
        self._scheduler.spent_s += seconds
        if slot.tokens:
            n_pieces = min(slot.n_pieces, len(slot.tokens)) or 1
            self._scheduler.move_cost.observe_state(len(slot.tokens), len(state), seconds, n_pieces)
        return SlotState(list(slot.tokens), state, slot.tuning, slot.n_exact, slot.checkpoints, slot.media)

    def make_room(self, n_bytes: int, now: float) -> bool:
        """Before so many bytes more are held beside the entries in RAM: these give way. False: there is no room."""
        return self._gave_way(self._scheduler.ram.make_room_beside(n_bytes, now))

    def hold(self, states: list[bytes], now: float) -> bool:
        """Hold `states` beside the entries. False: there is no room for those of them that nobody holds."""
        return self._gave_way(self._scheduler.ram.hold(states, now))

    def _gave_way(self, evicted: list[KeptState] | None) -> bool:
        self._to_disk(evicted or ())
        return evicted is not None

    def state_to_park(self, sequence: Sequence, now: float) -> SlotState | None:
        """The state of a running sequence; None, and its tokens are computed again, where that would hold others up or
        there is no memory for it."""
        slot = sequence.held
        n_bytes = 0 if slot.ends_inside else self._size(slot)
        if not n_bytes or self.refuses(self._scheduler.move_cost.save_s(n_bytes, slot.n_pieces), sequence):
            return None
        try:
            if self.make_room(n_bytes, now):
                parked = self.take_out(slot)
                if self.hold(parked.states, now):  # the checkpoints are the slot's, and held already
                    return parked
        except CONTAINED as error:
            what, about = "slot %d: its state could not be saved: %s", log_fields(sequence.request)
            log.warning(what, slot.id, str(error) or repr(error), extra=about)
            return None
        what, about = "slot %d: no room in RAM for the state of a request that is parked", log_fields(sequence.request)
        log.info(what, slot.id, extra=about)
        return None

    def may_load(self, saved: SlotState) -> bool:
        """Whether `saved` is loaded; else its tokens are computed."""
        n_pieces = self._pieces_to_load(None, len(saved.tokens))
        return not self.refuses(self._scheduler.move_cost.load_s(len(saved.state), n_pieces))

    def refuses(self, seconds: float, besides: Sequence | None = None) -> bool:
        """Whether a move would hold others up for longer than a step."""
        if not self.would_stop_others(seconds, besides):
            return False
        self._scheduler.move_cost.refused()
        return True

    def keep(self, slot: Slot, n_lost: int, now: float, coming: KeptState | None = None) -> None:
        """Before `n_lost` tokens of an idle slot go: save them, if that is of use and quick enough.

        `coming` is loaded after it in the same step.
        """
        cost, ram, n = self._scheduler.move_cost, self._scheduler.ram, len(slot.tokens)
        if not _is_of_use(slot) or not (ram.wants(slot, n_lost) if ram.limit else self._disk_wants(slot, n_lost)):
            return
        if not cost.pays(n, n_lost, slot.n_pieces) or not (n_bytes := self._size(slot)):
            return
        size = size_of(n_bytes, n, slot.checkpoints)
        to_ram = ram.limit != 0 and ram.fits(size)
        if not to_ram and not (self.disk is not None and self.disk.takes(size) and self._disk_wants(slot, n_lost)):
            return
        load_s = 0.0
        if coming is not None:
            load_s = cost.load_s(len(coming.saved.state), self._pieces_to_load(slot, len(coming.tokens)))
        if self.refuses(cost.save_s(n_bytes, slot.n_pieces) + load_s):
            self.n_refused += 1
            log.debug("slot %d: %d tokens are not kept, saving them would stop others for too long", slot.id, n)
            return
        if to_ram:
            ram.replace(slot)
            self._to_disk(ram.make_room(size, now))
        if (entry := self._take(slot)) is None:
            return
        if to_ram:
            self._to_disk(ram.put(entry, now))
        if not to_ram or (self.disk is not None and self.disk.shared):
            self._to_disk((entry,))

    def _disk_wants(self, one: Slot | KeptState, n_lost: int) -> bool:
        return self.disk is not None and self.disk.wants(one, n_lost)

    def distrust(self, sequence: Sequence) -> None:
        """Forget what in RAM and on disk it may have come from: that would do the same to whoever begins as it does."""
        tokens, tuning = sequence.content, sequence.tuning
        kept, _ = self._scheduler.ram.match(tokens, tuning, 0)
        if kept is not None:
            self._scheduler.ram.remove(kept)
        on_disk = self.disk.kept.match(tokens, tuning, 0)[0] if self.disk is not None else None
        if self.disk is not None and on_disk is not None:
            self.disk.drop(on_disk)

    def _size(self, slot: Slot) -> int:
        """Bytes of the state of `slot`, which is not copied for it; 0 when the library can't tell."""
        try:
            return self._runner.seq_size(slot.id)
        except CONTAINED as error:
            log.warning("slot %d: the size of its state is not known: %s", slot.id, str(error) or repr(error))
            return 0

    def offer(self) -> bool:
        """While nobody runs or waits: write an idle slot for other processes, where that takes no longer than a
        prompt's step; False: there is none."""
        disk, scheduler = self.disk, self._scheduler
        if disk is None or not disk.shared or scheduler.n_active or scheduler.waiting:
            return False
        for slot in scheduler.slots:
            n = len(slot.tokens)
            if slot.offered is slot.last or not _is_of_use(slot) or not disk.wants(slot, n):
                continue
            n_bytes = self._size(slot)
            if not n_bytes or scheduler.move_cost.save_s(n_bytes, slot.n_pieces) > self._prompt_step_s:
                continue
            if disk.takes(size_of(n_bytes, n, slot.checkpoints)):
                slot.offered = slot.last
                self._write_out(slot, disk)
                return True
        return False

    def _take(self, slot: Slot) -> KeptState | None:
        """What `slot` holds, as an entry. None: the library failed, or there is no memory."""
        try:
            saved = self.take_out(slot)
            return in_ram(saved, slot.last_used, can_cut=self._runner.info.can_cut, hashes=slot.hashes)
        except CONTAINED as error:
            log.warning("slot %d: its state could not be kept: %s", slot.id, str(error) or repr(error))
            return None

    def _to_disk(self, entries: Iterable[KeptState]) -> None:
        if self.disk is not None:
            for entry in entries:
                self.disk.put(entry)

    def load(self, slot: Slot, state: bytes, n: int, media: Spans) -> bool:
        """Put `state`, of `n` tokens, into the empty `slot`; False when it finds no room."""
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
        """Let the disk read what waiting sequences were found to begin with there."""
        scheduler = self._scheduler
        wanted = (s.fetch for s in scheduler.waiting if s.fetch is not None)
        if self.disk is not None and any(fetch.future is None and not fetch.given_up for fetch in wanted):
            start_reading(scheduler.in_turn(), self.disk, scheduler.move_cost, self._clock(), most=len(scheduler.slots))

    def save_all(self, now: float) -> None:
        """The cells and RAM are about to be freed: to the disk with it, the most valuable first.

        One after the other, each when less waits to be written: what is in cells is not copied before.
        """
        if self.disk is None:
            return
        self.disk.begin_close()
        ram = self._scheduler.ram
        slots = [slot for slot in self._scheduler.slots if _is_of_use(slot) and not ram.holds(slot)]
        wanted: list[KeptState | Slot] = [one for one in (*ram, *slots) if self.disk.wants(one, len(one.tokens))]
        wanted.sort(key=lambda one: one.value(now))
        while wanted:
            one = wanted.pop()
            if isinstance(one, Slot):
                n_bytes = self._size(one)
                if n_bytes and self.disk.wait_for_room(size_of(n_bytes, len(one.tokens), one.checkpoints)):
                    self._write_out(one, self.disk)
            elif self.disk.wait_for_room(one.size):
                self.disk.put(one)

    def _write_out(self, slot: Slot, disk: DiskCache) -> None:
        if (entry := self._take(slot)) is not None:
            disk.put(entry)


def _is_of_use(slot: Slot) -> bool:
    """Whether somebody may go on from what `slot` holds."""
    return not slot.ends_inside and is_lasting(slot.tuning.scope)
