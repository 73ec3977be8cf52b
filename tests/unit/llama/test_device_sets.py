"""How often a model is loaded for its instances' devices, and who gets which weights. No library here."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from server.errors import ModelFailed
from server.llama.loader import load_by_devices
from server.pool.protocols import Weights
from server.pool.spec import LoadParams, ModelSpec

Devices = tuple[str, ...] | None


@dataclass
class FakeWeights:
    """Says in its contexts on what it was loaded."""

    devices: Devices
    closed: bool = False

    def runner(self) -> Any:
        return "generates", self.devices

    def embedding_runner(self) -> Any:
        return "embeds", self.devices

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeLoads:
    """Counts loads; the one with number `failing` fails."""

    failing: int = -1
    made: list[FakeWeights] = field(default_factory=list)

    def __call__(self, spec: ModelSpec, progress: Callable[[float], bool], _first: object = None) -> Weights:
        (devices,) = spec.native.devices
        for fraction in (0.0, 0.5, 1.0):
            if not progress(fraction):
                raise ModelFailed(spec.id, "the load was stopped")
        if len(self.made) == self.failing:
            raise ModelFailed(spec.id, "no memory left")
        self.made.append(FakeWeights(devices))
        return cast(Weights, self.made[-1])


def spec(*devices: Devices) -> ModelSpec:
    return ModelSpec("m", Path("m.gguf"), native=LoadParams(instances=len(devices), devices=devices))


def test_each_distinct_set_is_loaded_once_and_its_instances_get_their_contexts_there() -> None:
    loads = FakeLoads()
    weights: Any = load_by_devices(spec(("B",), ("A",), ("B",), ()), loads, lambda _: True)
    assert [made.devices for made in loads.made] == [("B",), ("A",), ()]
    assert [weights.runner() for _ in range(4)] == [("generates", d) for d in (("B",), ("A",), ("B",), ())]
    assert [weights.embedding_runner() for _ in range(2)] == [("embeds", d) for d in (("B",), ("A",))]


def test_closing_frees_every_load() -> None:
    loads = FakeLoads()
    load_by_devices(spec(("A",), ("B",)), loads, lambda _: True).close()
    assert [made.closed for made in loads.made] == [True, True]
