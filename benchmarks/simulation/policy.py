"""The compared policies: the engine with and without its RAM and disk tiers, and slot-local caching."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from server.engine.cache.prefix_cache import longest_match
from server.engine.params import EngineParams
from server.engine.placement import Placement, Placer
from server.engine.runner_api import RunnerInfo
from server.engine.scheduler import Scheduler
from server.engine.sequence import Sequence, Slot


class SlotLocal(Placer):
    """Slot-local caching, as in llama-server without its prompt cache in RAM: no copies, and no waits for a prefill.

    A request gets the idle slot with the longest common prefix, otherwise the least recently used one.
    """

    def find(self, sequence: Sequence, now: float) -> Placement | None:
        """Return the placement in an idle slot."""
        if sequence.offloaded is not None:
            return super().find(sequence, now)
        idle = [slot for slot in self.slots if slot.idle]
        source, n = longest_match(idle, sequence.target, sequence.adapter_set, 0, sequence.n_reusable)
        return self._from_cells(sequence, source, n, None)

    @property
    def _ids_in_use(self) -> AbstractSet[int]:
        return frozenset()  # adjacency does not count

    def _copy_pays(self, n: int, n_held: int) -> bool:
        return False


class Unsorted(Scheduler):
    """A scheduler that ignores which slots are adjacent."""

    @staticmethod
    def _bridging(prefilling: AbstractSet[int], members: AbstractSet[int]) -> AbstractSet[int]:
        return frozenset()

    def relocation(self, fixed: AbstractSet[int]) -> tuple[Slot, Slot] | None:
        return None


@dataclass(frozen=True, slots=True)
class Policy:
    """A named configuration of the engine. ``shares``: slots share prefixes."""

    name: str
    shares: bool = True
    ram_mib: int = 0
    disk_mib: int = 0
    target_itl_ms: float = 50.0
    is_pinned: bool = False

    def scheduler(self, info: RunnerInfo) -> Scheduler:
        """Return the engine's scheduler with this policy."""
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
    """Return Llamapool's policy with a RAM tier in pageable or pinned memory."""
    name = "shared slots + pinned RAM" if is_pinned else "shared slots + RAM"
    return Policy(name, ram_mib=RAM_MIB_PER_SLOT * n_slots, is_pinned=is_pinned)


DISK_MIB_PER_SLOT = 8192


def with_disk(n_slots: int) -> Policy:
    """Return Llamapool's policy with a RAM tier and a disk tier."""
    return Policy("shared slots + RAM + disk", ram_mib=RAM_MIB_PER_SLOT * n_slots, disk_mib=DISK_MIB_PER_SLOT * n_slots)
