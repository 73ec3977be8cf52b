"""Models that are removed, or whose files go, while others use them."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from server.errors import ModelFailed, ModelNotFound, Unavailable
from server.pool.memory import Amount, Budget, Footprint
from server.pool.protocols import FileProgress
from server.pool.spec import ModelSpec, RemoteFiles
from server.pool.state import Status
from tests.unit.pool.fakes import Loader, acquiring, loaded, pool_of, spec


class Files:
    """A hub whose files are empty."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    def check(self, name: str, wanted: Callable[[], bool]) -> None:
        """Everything is there."""

    def fetch(self, spec: ModelSpec, report: Callable[[FileProgress], None], wanted: Callable[[], bool]) -> ModelSpec:
        spec.path.touch()
        return spec

    def remove(self, name: str) -> None:
        self.removed.append(name)


async def test_a_model_that_is_asked_for_while_it_is_removed_does_not_stay_in_memory() -> None:
    files = Files()
    async with pool_of(spec("a", origin="cache"), "b", fetcher=files) as s:

        async def use() -> None:
            with contextlib.suppress(Unavailable, ModelNotFound):
                (await s.pool.acquire("a")).release()

        held = await loaded(s, "a")
        removing = asyncio.ensure_future(s.pool.remove("a"))
        await s.work()
        assert s.status("a") is Status.DRAINING
        late = asyncio.ensure_future(use())  # it waits for the model to be loaded again
        await s.work()
        held.release()
        while not (removing.done() and late.done()):
            await s.work()
        await removing
        assert s.loader.open == []
        assert files.removed == ["a"]
        assert [state.spec.id for state in s.pool.states()] == ["b"]


async def test_a_model_whose_file_goes_while_it_sleeps_is_fetched_again(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.touch()
    model = ModelSpec("a", path, remote=RemoteFiles(hf="org/a"), sleep_idle_s=60)
    async with pool_of(model, "b", fetcher=Files()) as s:
        (await loaded(s, "a")).release()
        await s.later(60)
        assert s.status("a") is Status.SLEEPING
        path.unlink()
        waiting = acquiring(s, "a")
        while not waiting.done():  # the fetcher has a thread of its own
            await s.work()
        waiting.result().release()


async def test_a_model_that_can_not_be_measured_is_tried_once() -> None:
    class Broken(Loader):
        n_asked = 0

        def least(self, spec: ModelSpec) -> Footprint:
            self.n_asked += 1
            assert self.n_asked < 10, "it is measured again and again"
            raise ValueError("no such tensor")

    loader = Broken()
    async with pool_of(spec("a"), loader=loader, budget=Budget(Amount(100))) as s:
        loader.failing["a"] = ModelFailed("a", "no such tensor")
        with pytest.raises(ModelFailed, match="no such tensor"):
            await loaded(s, "a")
        assert loader.n_asked == 1
