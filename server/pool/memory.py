"""The memory of models by device and purpose, and the memory budget of the pool (option ``memory``). Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from operator import add

from server.pool.spec import ALL_THAT_FIT, ModelSpec

HOST = "CPU"
"""The library's name of the machine's own memory among devices."""
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes of a model on one device."""

    weights: int = 0
    context: int = 0  # keys and values, recurrent states
    compute: int = 0
    shared: int = 0  # part of `weights` that models with the same file and placement load once

    @property
    def total(self) -> int:
        return self.weights + self.context + self.compute

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(*map(add, astuple(self), astuple(other)))


Footprint = Mapping[str, Bytes]
"""Bytes by device, without devices that hold nothing."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A device's memory in bytes. Mappings do not contain devices whose memory is unknown."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Fit:
    """How to load a model: ``spec`` without automatic parameters, the memory that it takes (empty if unknown before
    the load), and reasons for reduced parameters.
    """

    spec: ModelSpec
    footprint: Footprint = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def held(measured: Footprint, fit: Fit) -> Footprint:
    """Return the memory of a loaded model, from what was `measured` after the load (empty if unknown) and in `fit`.

    The library counts a mapped file from the first to the last tensor on the CPU (src/llama-model.cpp,
    get_mapping_range). That includes tensors on a device and repacked ones, whose pages are only in the page cache. So
    no more weights count than before the load.
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
    """Return `taken` minus `other` by device, at least 0."""
    return {device: max(n - other.get(device, 0), 0) for device, n in taken.items()}


def readable(n_bytes: int) -> str:
    """Return a size like ``11.9 GiB``."""
    for size, unit in _UNITS:
        if abs(n_bytes) >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"


_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d+(?!\s*$))?)\s*(?P<unit>%|[KMGT]i?B?|B)?", re.IGNORECASE)
_AMOUNT_UNITS = {"": 20, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}  # an integer without a unit is MiB
_MAX_RESERVE = 1 << 30
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
    """``anywhere`` applies to devices that are not listed; None: the memory that is free at startup, minus a reserve.
    ``caches``: MiB for the RAM caches of all models; -1 = no separate limit, -2 = automatic.
    """

    anywhere: Amount | None = None
    devices: Mapping[str, Amount] = field(default_factory=dict)
    caches: int = -2

    def limits(self, memory: Mapping[str, Memory]) -> dict[str, int]:
        """Return the limits in bytes by device, from the `memory` while no model is loaded. Devices that do not report
        their memory are unlimited without an absolute amount.
        """
        found = {name: now.free - min(_MAX_RESERVE, now.free // 4) for name, now in memory.items()}
        if self.anywhere is not None:
            found = {name: self.anywhere.of(now) for name, now in memory.items()}
        known = {name.lower(): name for name in memory}
        for name, amount in self.devices.items():
            device = known.get(name.lower(), name)
            if device in memory or amount.part is None:
                found[device] = amount.of(memory.get(device, Memory(0, 0)))
        return found

    def for_caches(self, limits: Mapping[str, int], taken: Mapping[str, int]) -> int:
        """Return the bytes of RAM for caches: what models leave free, up to ``caches``; -1 = unlimited."""
        if HOST not in limits:
            return -1 if self.caches < 0 else self.caches * _MIB
        left = max(limits[HOST] - taken.get(HOST, 0), 0)
        automatic = min(_CACHES_MIB * _MIB, limits[HOST] // 4)
        return min(left, {-1: left, -2: automatic}.get(self.caches, self.caches * _MIB))


def read_budget(text: str) -> Budget:
    """Parse ``80%``, ``12GiB`` or ``CPU=12GiB,CUDA0=80%``; empty = automatic. Raises ValueError."""
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
    """Return the bytes by device that a load of `spec` needs, from its minimum `least`. Bytes above the limit of a
    device count for the CPU if layers may stay there. A model without ``fit`` needs at most the limits, as it is loaded
    in any case.
    """
    need = totals(least)
    if not spec.native.fit:
        return {device: min(n, limits.get(device, n)) for device, n in need.items()}
    if spec.native.n_gpu_layers == ALL_THAT_FIT:
        over = {device: max(n - limits.get(device, n), 0) for device, n in need.items() if device != HOST}
        need = {device: n - over.get(device, 0) for device, n in need.items()}
        need[HOST] = need.get(HOST, 0) + sum(over.values())
    return need
