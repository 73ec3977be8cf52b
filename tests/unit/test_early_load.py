"""A model that is loaded before the pool exists: the pool gets these results only if they are what it asks for."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from server.early_load import EarlyLoad
from server.errors import ModelFailed
from server.pool.budget import read_budget
from server.pool.footprint import HOST, Bytes, Fit
from server.pool.spec import ModelSpec
from tests.support.fakes import FakeLoader, FakeWeights

SPEC = ModelSpec(id="a", path=Path("a.gguf"))
TAKEN = 1000


class CountingLoader(FakeLoader):
    """Counts measurements; a model takes 1,000 bytes."""

    n_fits = 0

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        self.n_fits += 1
        if spec.id in self.failing:
            raise ModelFailed(spec.id, self.failing[spec.id])
        return Fit(spec, {HOST: Bytes(TAKEN, 0, 0)})


def early(loader: FakeLoader) -> EarlyLoad:
    return EarlyLoad(loader, SPEC, read_budget(""))


def test_the_pool_gets_the_early_weights_once() -> None:
    loader = CountingLoader()
    load = early(loader)
    fit = load.fit(SPEC, {HOST: TAKEN})
    first = load.load(fit.spec, lambda _: True)
    assert load.template(first.info, SPEC) is load.template(first.info, SPEC)
    assert (loader.n_fits, loader.loaded) == (1, [first])
    assert load.load(load.fit(SPEC, {}).spec, lambda _: True) is not first
    load.close()
    assert not loader.loaded[0].closed


def test_a_choice_that_the_pool_does_not_grant_is_given_up() -> None:
    loader = CountingLoader()
    load = early(loader)
    load.fit(SPEC, {HOST: TAKEN - 1})
    assert loader.n_fits == 2
    assert [weights.closed for weights in loader.loaded] in ([], [True])
    assert load.load(SPEC, lambda _: True) is loader.loaded[-1]


def test_a_failed_load_is_tried_again() -> None:
    loader = CountingLoader(failing={"a": "no such file"})
    load = early(loader)
    with pytest.raises(ModelFailed, match="no such file"):
        load.fit(SPEC, {})
    loader.failing.clear()
    assert load.load(load.fit(SPEC, {}).spec, lambda _: True) is loader.loaded[-1]


class EndlessLoader(CountingLoader):
    """Loads until `progress` stops it."""

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        pause = threading.Event()
        while progress(0.5):
            pause.wait(0.001)
        raise ModelFailed(spec.id, "cancelled")


def test_a_load_that_the_pool_cancels_stops() -> None:
    load = early(EndlessLoader())
    reported: list[float] = []

    def progress(value: float) -> bool:
        reported.append(value)
        return False

    with pytest.raises(ModelFailed, match="cancelled"):
        load.load(load.fit(SPEC, {}).spec, progress)
    assert reported


def test_closing_stops_a_load_that_nobody_asked_for() -> None:
    load = early(EndlessLoader())
    load.close()
    assert load.memory() == FakeLoader().memory()


def test_another_model_is_loaded_as_usual() -> None:
    loader = CountingLoader()
    load = early(loader)
    other = ModelSpec(id="b", path=Path("b.gguf"))
    assert load.load(load.fit(other, {}).spec, lambda _: True) is loader.loaded[-1]
    load.close()
    assert load.memory() == loader.memory()
