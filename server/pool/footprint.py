"""The memory of a model by device and purpose, as plain numbers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from server.pool.spec import ModelSpec

HOST = "CPU"
"""The name of the machine's own memory among devices, as the library calls it."""
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes on one device."""

    weights: int = 0
    context: int = 0  # keys and values, recurrent states
    compute: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.context + self.compute

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.weights + other.weights, self.context + other.context, self.compute + other.compute)


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
    """What a loaded model holds, by what was `measured` of it and before.

    A mapped file counts in the library from the first tensor on the CPU to the last, whatever lies between: what
    is on a device, and what was repacked into a buffer of its own (src/llama-model.cpp, get_mapping_range). Those pages
    are the page cache's, so no more weights count than were measured before. `measured` is empty where nothing can be.
    """
    before = fit.footprint.get(HOST)
    now = measured.get(HOST)
    if before is None or now is None or not fit.spec.native.mmap:
        return measured or fit.footprint
    return {**measured, HOST: replace(now, weights=min(now.weights, before.weights))}


def added(footprints: Iterable[Footprint]) -> dict[str, Bytes]:
    """All of them together."""
    found: dict[str, Bytes] = {}
    for footprint in footprints:
        for device, taken in footprint.items():
            found[device] = found.get(device, Bytes()) + taken
    return found


def totals(footprint: Footprint) -> dict[str, int]:
    """Bytes by device."""
    return {device: taken.total for device, taken in footprint.items()}


def readable(n_bytes: int) -> str:
    """``11.9 GiB``."""
    for size, unit in _UNITS:
        if abs(n_bytes) >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"
