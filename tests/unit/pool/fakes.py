"""A pool without threads, time or a native library: a test runs each blocking job, and moves the clock, itself."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from server.engine.request import Adapters
from server.engine.runner_api import Runner
from server.engine.stats import EngineStats
from server.errors import ModelFailed
from server.pool.block_events import ReportingEngine
from server.pool.loading import EmbedderFactory, Factories
from server.pool.model import Lease
from server.pool.pool import Pool
from server.pool.protocols import Fetcher
from server.pool.scheduler import PoolLimits
from server.pool.spec import LoadParams, ModelSpec
from server.pool.state import Status
from tests.support.fakes import FakeRunner, FakeWeights, Measures
from tests.support.pool_integrity import check_pool
from tests.unit.clock import Clock

T = TypeVar("T")


def spec(model: str, **changes: Any) -> ModelSpec:
    """A model to configure; ``instances``, ``embedding`` and ``pooling`` may be given directly."""
    native = LoadParams(
        instances=changes.pop("instances", 1),
        embedding=changes.pop("embedding", None),
        pooling=changes.pop("pooling", ""),
    )
    return ModelSpec(model, Path(f"{model}.gguf"), native=native, **changes)


class ManualExecutor(Executor):
    """Keeps submitted jobs until `run`."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self, index: int = 0) -> None:
        """Run one waiting job to its end."""
        future, job = self.jobs.pop(index)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(job())
        except BaseException as error:  # noqa: BLE001 (it is the future's)
            future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        assert not self.jobs, "shut down with jobs waiting"


class Engines:
    """Makes engines that do nothing, and remembers them."""

    def __init__(self) -> None:
        self.made: list[FakeEngine] = []
        self.failing = False

    def __call__(self, runners: Sequence[Runner], params: object, loop: object) -> ReportingEngine:
        if self.failing:
            raise RuntimeError("no thread for the engine")
        self.made.append(FakeEngine(runners))
        return cast(ReportingEngine, self.made[-1])


class FakeEngine:
    n_ctx_seq = 256
    n_slots = 4
    failure, serves = "", True

    def __init__(self, runners: Sequence[Runner]) -> None:
        self.runners = runners
        self.busy = False
        self.closed = False
        self.cache_limit = -1
        self.adapters = tuple(getattr(runners[0], "adapters", ()))
        self.stats = EngineStats()

    def set_adapter_scales(self, scales: Adapters) -> None:
        self.adapters = tuple(replace(a, scale=dict(scales).get(a.id, 0.0)) for a in self.adapters)

    def limit_caches(self, n_bytes: int) -> None:
        self.cache_limit = n_bytes

    async def close(self, drain_s: float = 0.0) -> None:
        assert not self.closed, "an engine was closed twice"
        self.closed = True
        self.busy = False
        for runner in self.runners:
            runner.close()


class Grammar:
    """Counts how often it was prepared."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.n_prepared = 0
        self._fault = fault

    def prepare(self) -> None:
        if self._fault is not None:
            raise self._fault
        self.n_prepared += 1


class Loader(Measures):
    """Fails for the models in ``failing``; ``weights`` has all that were ever loaded."""

    def __init__(self) -> None:
        self.failing: dict[str, BaseException] = {}
        self.weights: list[FakeWeights] = []
        self.n_runners_that_fit = 1000

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        progress(0.0)
        if spec.id in self.failing:
            raise self.failing[spec.id]
        if not progress(1.0):
            raise ModelFailed(spec.id, "cancelled")
        self.weights.append(FakeWeights(spec, self._runner))
        return self.weights[-1]

    def _runner(self) -> FakeRunner:
        if self.n_runners_that_fit == 0:
            raise ModelFailed("", "out of memory")
        self.n_runners_that_fit -= 1
        return FakeRunner()

    @property
    def open(self) -> list[FakeWeights]:
        """The weights that are in memory."""
        return [w for w in self.weights if not w.closed]


async def spin(n: int = 25) -> None:
    """Let everything that can go on without a thread or the clock go on."""
    for _ in range(n):
        await asyncio.sleep(0)


class Setup:
    """A pool with all its fakes."""

    def __init__(
        self, *specs: ModelSpec, loader: Loader | None = None, fetcher: Fetcher | None = None, **limits: Any
    ) -> None:
        self.clock = Clock(100.0)
        self.threads = ManualExecutor()
        self.loader = loader or Loader()
        self.engines = Engines()
        self.embedders = Engines()
        self.factories = Factories(
            engine=self.engines,
            embedder=cast(EmbedderFactory, self.embedders),
            template=lambda info, spec: cast(Any, object()),
            grammar=lambda vocab: cast(Any, Grammar()),
        )
        self.pool = Pool(
            *(specs, cast(Any, self.loader), PoolLimits(**limits), self.clock, self.factories),
            threads=self.threads,
            in_process=cast(Any, Loader),
            fetcher=cast(Fetcher, fetcher),
            reread=lambda: [each for each in specs if each.origin != "cache"],  # where `Pool.remove` has deleted them
        )

    async def work(self) -> None:
        """Run blocking jobs until there is nothing left to do."""
        await spin()
        while self.threads.jobs:
            self.threads.run()
            await spin()
        check_pool(self.pool)

    async def done(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, with all the jobs that it takes."""
        task = asyncio.create_task(work)
        await self.work()
        return await asyncio.wait_for(task, 60)

    async def begun(self, model: str) -> None:
        """Run jobs until the model's load has begun."""
        await spin()
        while self.status(model) is not Status.LOADING:
            self.threads.run()
            await spin()

    def end_process(self, model: str) -> None:
        """Do what the end of a loaded model's process does; nothing if it is not loaded."""
        entry = self.pool._entries[model]
        if entry.loaded is not None:
            self.pool._scheduler._ended(entry, entry.loaded, "killed")

    def status(self, model: str) -> Status:
        return self.pool.state(model).status

    def statuses(self) -> dict[str, Status]:
        return {s.spec.id: s.status for s in self.pool.states()}

    async def later(self, seconds: float) -> None:
        """Pass time, do what is due then."""
        self.clock.now += seconds
        self.pool._scheduler.tick()
        await self.work()


@asynccontextmanager
async def pool_of(
    *models: ModelSpec | str, loader: Loader | None = None, fetcher: Fetcher | None = None, **limits: Any
) -> AsyncIterator[Setup]:
    """A pool, closed at the end; nothing may be left in memory."""
    setup = Setup(*(spec(m) if isinstance(m, str) else m for m in models), loader=loader, fetcher=fetcher, **limits)
    yield setup
    closing = asyncio.ensure_future(setup.pool.close(0.0))
    await setup.work()
    await asyncio.wait_for(closing, 60)
    assert setup.loader.open == []
    assert all(engine.closed for engine in (*setup.engines.made, *setup.embedders.made))


async def loaded(s: Setup, model: str) -> Lease:
    """A lease, with all the work that it takes."""
    return await s.done(s.pool.acquire(model))


def acquiring(s: Setup, model: str, *, autoload: bool | None = None) -> "asyncio.Future[Lease]":
    """A caller that waits for a lease."""
    return asyncio.ensure_future(s.pool.acquire(model, autoload=autoload))
