"""Facts that a worker process reports: once about the loaded model, and periodically about its work."""

from dataclasses import dataclass

from server.engine.lora import Adapter
from server.engine.request import Bounds
from server.engine.runner_api import EmbedderInfo
from server.engine.stats import EngineStats
from server.engine.step.snapshots import SlotSnapshot
from server.media.bitmap import BitmapKind
from server.pool.footprint import Footprint
from server.pool.protocols import ModelInfo


@dataclass(frozen=True, slots=True)
class GeneratorFacts:
    """Of the engine that generates."""

    bounds: Bounds
    n_slots_each: int
    adapters: tuple[Adapter, ...]


@dataclass(frozen=True, slots=True)
class EmbedderFacts:
    """Of the engine that embeds."""

    info: EmbedderInfo
    n_slots: int
    takes_media: bool


@dataclass(frozen=True, slots=True)
class ReaderFacts:
    """Of the projector."""

    kinds: frozenset[BitmapKind]
    marker: str
    sample_rate: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class LoadedFacts:
    """Of the loaded model."""

    info: ModelInfo
    footprint: Footprint
    generator: GeneratorFacts | None
    embedder: EmbedderFacts | None
    reader: ReaderFacts | None

    def is_as(self, other: "LoadedFacts") -> bool:
        """Whether both are the same model, so that one can replace the other after a restart."""
        return (self.info, self.generator, self.embedder) == (other.info, other.generator, other.embedder)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What one engine does. ``requests``: for each slot the number of the request it shows; -1 = none."""

    n_begun: int  # requests that it got in all
    busy: bool
    heartbeats: tuple[tuple[int, bool], ...]  # of each instance: grows with all it does; whether it waits for work
    stats: EngineStats
    slots: tuple[SlotSnapshot, ...]
    requests: tuple[int, ...]
