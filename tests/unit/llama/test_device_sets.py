"""How often a model is loaded for its instances' devices, and who gets which weights. No library here."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from server.errors import ModelFailed
from server.llama.weights.device_sets import load_by_devices
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


def test_one_set_for_all_instances_is_one_load() -> None:
    loads = FakeLoads()
    weights: Any = load_by_devices(spec(None), loads, lambda _: True)
    assert loads.made == [weights]


def test_instances_on_equal_sets_share_weights() -> None:
    loads = FakeLoads()
    weights: Any = load_by_devices(spec(("A", "B"), ("A", "B"), ("A", "B")), loads, lambda _: True)
    assert loads.made == [weights]
    assert weights.runner() == ("generates", ("A", "B"))


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


def test_a_failing_load_frees_those_before_it() -> None:
    loads = FakeLoads(failing=2)
    with pytest.raises(ModelFailed, match="no memory left"):
        load_by_devices(spec(("A",), ("B",), ("C",)), loads, lambda _: True)
    assert [made.closed for made in loads.made] == [True, True]


def test_progress_runs_once_from_zero_to_one_over_all_loads() -> None:
    seen: list[float] = []
    load_by_devices(spec(("A",), ("B",)), FakeLoads(), lambda fraction: seen.append(fraction) is None)  # type: ignore[func-returns-value]
    assert seen == [0.0, 0.25, 0.5, 0.5, 0.75, 1.0]


def test_stopping_in_the_second_load_frees_the_first() -> None:
    loads = FakeLoads()
    with pytest.raises(ModelFailed, match="stopped"):
        load_by_devices(spec(("A",), ("B",)), loads, lambda fraction: fraction < 0.7)
    assert [made.closed for made in loads.made] == [True]
