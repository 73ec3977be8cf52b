"""What is asked of a slot beside requests: keep, put back or forget what is in its cells."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from server.engine.cache_scope import owner_of
from server.engine.kv.cells import Cells
from server.engine.kv.state import SlotState
from server.engine.sequence import Slot
from server.errors import PermissionDenied

Work = Callable[[Cells, Slot, float], object]


@dataclass(eq=False, slots=True)
class Command:
    """Carried out by the step thread once the slot is idle; ``done`` gets the result."""

    slot: int  # within its instance
    work: Work
    done: "Future[object]" = field(default_factory=Future)

    def carry_out(self, cells: Cells, slot: Slot, now: float) -> None:
        """Do it, unless nobody waits for it any more."""
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            self.done.set_result(self.work(cells, slot, now))
        except Exception as error:  # noqa: BLE001 - it is the asker's
            self.done.set_exception(error)

    def refuse(self, error: Exception) -> None:
        """End it without doing it."""
        if self.done.set_running_or_notify_cancel():
            self.done.set_exception(error)


class Commands:
    """What was asked of the slots of one instance and is not done. Used by its step thread."""

    def __init__(self) -> None:
        self._open: list[Command] = []

    @property
    def any(self) -> bool:
        """Whether there are some."""
        return bool(self._open)

    @property
    def slots(self) -> frozenset[int]:
        """Those that something is to be done with."""
        return frozenset([command.slot for command in self._open])

    def add(self, command: Command) -> None:
        """Take a new one in."""
        self._open.append(command)

    def carry_out(self, slots: Sequence[Slot], cells: Cells, now: float) -> None:
        """Do those of idle slots; those of a busy slot wait for it, as in llama-server."""
        for command in list(self._open):
            slot = slots[command.slot]
            if slot.idle:
                self._open.remove(command)
                command.carry_out(cells, slot, now)

    def give_up(self, error: Exception) -> None:
        """As `refuse`, from the event loop, where the thread that should do them does not come back."""
        for command in list(self._open):
            if not command.done.running() and not command.done.done():
                command.refuse(error)

    def refuse(self, error: Exception) -> None:
        """End all of them without doing them."""
        for command in self._open:
            command.refuse(error)
        self._open.clear()


def save(owner: str) -> Work:
    """What the slot holds, if it is `owner`'s."""

    def work(cells: Cells, slot: Slot, _now: float) -> SlotState:
        _check_owner(slot, owner)
        return cells.save(slot)

    return work


def _check_owner(slot: Slot, owner: str) -> None:
    if slot.tokens and owner_of(slot.tuning.scope) != owner:
        raise PermissionDenied("the slot holds what was computed for another API key")


def restore(saved: SlotState) -> Work:
    """Put `saved` into the slot."""
    return lambda cells, slot, now: cells.restore(slot, saved, now)


def erase(owner: str) -> Work:
    """Forget everything, if it is `owner`'s; the number of tokens that were there."""

    def work(cells: Cells, slot: Slot, _now: float) -> int:
        _check_owner(slot, owner)
        n = len(slot.tokens)
        cells.clear(slot)
        return n

    return work
