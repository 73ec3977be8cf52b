"""What is compared: the engine as it is, the same without its RAM cache, and caching as a slot-local server does it."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from server.engine.cache.prefix_cache import longest_match
from server.engine.params import EngineParams
from server.engine.placement import Placement, Placer
from server.engine.runner_api import RunnerInfo
from server.engine.scheduler import Scheduler
from server.engine.sequence import Sequence, Slot


class SlotLocal(Placer):
    """A slot's cells are for whoever comes into this slot: no copies, nothing waited for. llama-server without its
    prompt cache in RAM: an idle slot that begins alike is taken, else the one unused for longest."""

    def find(self, sequence: Sequence, now: float) -> Placement | None:
        """Return the placement in an idle slot."""
        if sequence.offloaded is not None:
            return super().find(sequence, now)
        idle = [slot for slot in self.slots if slot.idle]
        source, n = longest_match(idle, sequence.target, sequence.adapter_set, 0, sequence.n_reusable)
        return self._in_cells(sequence, source, n, None)

    @property
    def _ids_in_use(self) -> AbstractSet[int]:
        return frozenset()  # no slot is next to another

    def _copy_pays(self, n: int, n_held: int) -> bool:
        return False


class Unsorted(Scheduler):
    """Which slots are next to each other is not looked at."""

    @staticmethod
    def _bridging(prefilling: AbstractSet[int], members: AbstractSet[int]) -> AbstractSet[int]:
        return frozenset()

    def relocation(self, fixed: AbstractSet[int]) -> tuple[Slot, Slot] | None:
        return None


@dataclass(frozen=True, slots=True)
class Policy:
    """A name for tables, and what it switches."""

    name: str
    shares: bool = True
    ram_mib: int = 0
    disk_mib: int = 0
    target_itl_ms: float = 50.0
    is_pinned: bool = False

    def scheduler(self, info: RunnerInfo) -> Scheduler:
        """The engine's scheduler under this policy."""
        params = EngineParams(cache_ram=self.ram_mib, target_itl_ms=self.target_itl_ms, max_queue=1 << 30)
        scheduler = Scheduler(info, params) if self.shares else Unsorted(info, params)
        if not self.shares:
            scheduler.placer = SlotLocal(scheduler.slots, scheduler.ram, info, params, scheduler.move_budget)
        return scheduler


RAM_MIB_PER_SLOT = 2048  # 128 GiB of RAM for 64 slots

WHOLE_BATCHES = Policy("slot-local, whole batches", shares=False, target_itl_ms=0.0)
SLOT_LOCAL = Policy("slot-local", shares=False)
SHARED = Policy("shared slots")


def with_ram(n_slots: int, *, is_pinned: bool = False) -> Policy:
    """Llamapool with a cache in RAM, whose memory is pageable or pinned."""
    name = "shared slots + pinned RAM" if is_pinned else "shared slots + RAM"
    return Policy(name, ram_mib=RAM_MIB_PER_SLOT * n_slots, is_pinned=is_pinned)


DISK_MIB_PER_SLOT = 8192


def with_disk(n_slots: int) -> Policy:
    """And with one on disk behind it: all that there is."""
    return Policy("shared slots + RAM + disk", ram_mib=RAM_MIB_PER_SLOT * n_slots, disk_mib=DISK_MIB_PER_SLOT * n_slots)
