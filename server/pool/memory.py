"""The memory of models by device and purpose, and the memory budget of the pool (option ``memory``). Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from operator import add

from server.pool.spec import ALL_THAT_FIT, ModelSpec

HOST = "CPU"
"""The name of the machine's own memory among devices, as the library calls it."""
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes on one device."""

    weights: int = 0
    context: int = 0  # keys and values, recurrent states
    compute: int = 0
    shared: int = 0  # of `weights`: those that entries with the same file and placement load once

    @property
    def total(self) -> int:
        return self.weights + self.context + self.compute

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(*map(add, astuple(self), astuple(other)))


Footprint = Mapping[str, Bytes]
"""By device; one that is not named holds nothing."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A device's memory in bytes; devices without known memory are absent from mappings."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Fit:
    """How to load a model: ``spec`` with everything chosen, what it takes, and why. ``footprint`` is empty if unknown
    in advance.
    """

    spec: ModelSpec
    footprint: Footprint = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def held(measured: Footprint, fit: Fit) -> Footprint:
    """Return what a loaded model holds, by what was `measured` of it and before.

    A mapped file counts in the library from the first tensor on the CPU to the last, whatever lies between: what
    is on a device, and what was repacked into a buffer of its own (src/llama-model.cpp, get_mapping_range). Those pages
    are the page cache's, so no more weights count than were measured before. `measured` is empty where nothing can be.
    """
    before = fit.footprint.get(HOST)
    now = measured.get(HOST)
    if before is None or now is None or not fit.spec.native.mmap:
        return measured or fit.footprint
    weights, shared = min(now.weights, before.weights), min(now.shared, before.shared)
    return {**measured, HOST: replace(now, weights=weights, shared=shared)}


def added(footprints: Iterable[Footprint]) -> dict[str, Bytes]:
    """Return the sum of `footprints`."""
    found: dict[str, Bytes] = {}
    for footprint in footprints:
        for device, taken in footprint.items():
            found[device] = found.get(device, Bytes()) + taken
    return found


def totals(footprint: Footprint) -> dict[str, int]:
    return {device: taken.total for device, taken in footprint.items()}


def without(taken: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes by device that are left of `taken`."""
    return {device: max(n - other.get(device, 0), 0) for device, n in taken.items()}


def readable(n_bytes: int) -> str:
    """``11.9 GiB``."""
    for size, unit in _UNITS:
        if abs(n_bytes) >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"


_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d+(?!\s*$))?)\s*(?P<unit>%|[KMGT]i?B?|B)?", re.IGNORECASE)
_AMOUNT_UNITS = {"": 20, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}  # a whole number alone is MiB
_MOST_SPARED = 1 << 30
_MIB = 1 << 20
_CACHES_MIB = 8192


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes, or a share of the total."""

    n_bytes: int = 0
    part: float | None = None

    def of(self, memory: Memory) -> int:
        return self.n_bytes if self.part is None else int(memory.total * self.part)


@dataclass(frozen=True, slots=True)
class Budget:
    """``anywhere`` applies to devices that are not listed; None: what is free when the pool starts, minus a reserve.
    ``caches``: MiB for the RAM caches of all models; -1 = no own limit, -2 = automatic.
    """

    anywhere: Amount | None = None
    devices: Mapping[str, Amount] = field(default_factory=dict)
    caches: int = -2

    def limits(self, memory: Mapping[str, Memory]) -> dict[str, int]:
        """Return the bytes by device while no model is loaded. Devices that do not report their memory are unlimited
        unless given an absolute amount.
        """
        found = {name: now.free - min(_MOST_SPARED, now.free // 4) for name, now in memory.items()}
        if self.anywhere is not None:
            found = {name: self.anywhere.of(now) for name, now in memory.items()}
        known = {name.lower(): name for name in memory}
        for name, amount in self.devices.items():
            device = known.get(name.lower(), name)
            if device in memory or amount.part is None:
                found[device] = amount.of(memory.get(device, Memory(0, 0)))
        return found

    def for_caches(self, limits: Mapping[str, int], taken: Mapping[str, int]) -> int:
        """Return the bytes of RAM for caches: what models leave, up to an own limit; -1 = unlimited."""
        if HOST not in limits:
            return -1 if self.caches < 0 else self.caches * _MIB
        left = max(limits[HOST] - taken.get(HOST, 0), 0)
        automatic = min(_CACHES_MIB * _MIB, limits[HOST] // 4)
        return min(left, {-1: left, -2: automatic}.get(self.caches, self.caches * _MIB))


def read_budget(text: str) -> Budget:
    """``80%``, ``12GiB``, ``CPU=12GiB,CUDA0=80%``; empty: automatic. Raises ValueError."""
    anywhere, devices = None, dict[str, Amount]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, amount = part.rpartition("=")
        if equals:
            devices[name.strip()] = _amount(amount)
        elif anywhere is None:
            anywhere = _amount(part)
        else:
            raise ValueError("names two amounts without a device; write CPU=12GiB,CUDA0=80%")
    return Budget(anywhere, devices)


def _amount(text: str) -> Amount:
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or float(match["number"]) <= 0:
        raise ValueError("should be an amount such as 80% or 12GiB, or one for each device: CPU=12GiB,CUDA0=80%")
    number, unit = float(match["number"]), (match["unit"] or "").upper()
    if unit != "%":
        return Amount(int(number * (1 << _AMOUNT_UNITS[unit[:1]])))
    if number > 100:
        raise ValueError("should be at most 100%")
    return Amount(part=number / 100)


def needed(spec: ModelSpec, least: Footprint, limits: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes by device that `spec` needs to be loaded, from its minimum `least`. What a device could never
    hold counts for the CPU if layers may stay there. A model without fit is loaded in any case and takes at most
    everything.
    """
    need = totals(least)
    if not spec.native.fit:
        return {device: min(n, limits.get(device, n)) for device, n in need.items()}
    if spec.native.n_gpu_layers == ALL_THAT_FIT:
        over = {device: max(n - limits.get(device, n), 0) for device, n in need.items() if device != HOST}
        need = {device: n - over.get(device, 0) for device, n in need.items()}
        need[HOST] = need.get(HOST, 0) + sum(over.values())
    return need
