"""A pool without threads, clock or native library: the test runs each blocking job and sets the time."""

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
    """Return a model's configuration. `changes` are its fields, or ``instances``, ``embedding`` and ``pooling``."""
    native = LoadParams(
        instances=changes.pop("instances", 1),
        embedding=changes.pop("embedding", None),
        pooling=changes.pop("pooling", ""),
    )
    return ModelSpec(model, Path(f"{model}.gguf"), native=native, **changes)


class ManualExecutor(Executor):
    """Keep submitted jobs until `run_job`."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run_job(self, index: int = 0) -> None:
        """Run one submitted job."""
        future, job = self.jobs.pop(index)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(job())
        except BaseException as error:  # noqa: BLE001 (the future raises it)
            future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        assert not self.jobs, "shut down with submitted jobs"


class EngineFactory:
    """Create engines that do nothing. ``created`` lists all of them; if ``failing``, creation raises."""

    def __init__(self) -> None:
        self.created: list[FakeEngine] = []
        self.failing = False

    def __call__(self, runners: Sequence[Runner], params: object, loop: object) -> ReportingEngine:
        if self.failing:
            raise RuntimeError("no thread for the engine")
        self.created.append(FakeEngine(runners))
        return cast(ReportingEngine, self.created[-1])


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


class FakeCompiler:
    """Count the calls of `prepare`, or raise `error` from it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.n_prepared = 0
        self._error = error

    def prepare(self) -> None:
        if self._error is not None:
            raise self._error
        self.n_prepared += 1


class RecordingLoader(Measures):
    """Load fake weights. ``weights`` lists all of them; a model in ``failing`` raises its exception instead."""

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
    def in_memory(self) -> list[FakeWeights]:
        """The weights that are not closed."""
        return [w for w in self.weights if not w.closed]


async def spin(n: int = 25) -> None:
    """Run the event loop until only jobs and the clock are awaited."""
    for _ in range(n):
        await asyncio.sleep(0)


class PoolHarness:
    """A pool with all its fakes."""

    def __init__(
        self, *specs: ModelSpec, loader: RecordingLoader | None = None, fetcher: Fetcher | None = None, **limits: Any
    ) -> None:
        self.clock = Clock(100.0)
        self.threads = ManualExecutor()
        self.loader = loader or RecordingLoader()
        self.engines = EngineFactory()
        self.embedders = EngineFactory()
        self.factories = Factories(
            engine=self.engines,
            embedder=cast(EmbedderFactory, self.embedders),
            template=lambda info, spec: cast(Any, object()),
            grammar=lambda vocab: cast(Any, FakeCompiler()),
        )
        self.pool = Pool(
            *(specs, cast(Any, self.loader), PoolLimits(**limits), self.clock, self.factories),
            threads=self.threads,
            in_process=cast(Any, RecordingLoader),
            fetcher=cast(Fetcher, fetcher),
            reread=lambda: [each for each in specs if each.origin != "cache"],  # `Pool.remove` deletes cached models
        )

    async def run_jobs(self) -> None:
        """Run blocking jobs until none is left."""
        await spin()
        while self.threads.jobs:
            self.threads.run_job()
            await spin()
        check_pool(self.pool)

    async def complete(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of `coroutine` after running the jobs that it submits."""
        task = asyncio.create_task(coroutine)
        await self.run_jobs()
        return await asyncio.wait_for(task, 60)

    async def lease(self, model: str) -> Lease:
        """Acquire a lease, loading the model if necessary."""
        return await self.complete(self.pool.acquire(model))

    async def use(self, model: str) -> None:
        """Acquire and release a lease."""
        (await self.lease(model)).release()

    def start_acquire(self, model: str, *, autoload: bool | None = None) -> "asyncio.Future[Lease]":
        """Return a task that waits for a lease."""
        return asyncio.ensure_future(self.pool.acquire(model, autoload=autoload))

    async def run_until_loading(self, model: str) -> None:
        """Run jobs until the model's load starts."""
        await spin()
        while self.status(model) is not Status.LOADING:
            self.threads.run_job()
            await spin()

    def end_process(self, model: str) -> None:
        """Report the end of a loaded model's process; do nothing if the model is not loaded."""
        entry = self.pool._entries[model]
        if entry.loaded is not None:
            self.pool._scheduler._ended(entry, entry.loaded, "killed")

    def status(self, model: str) -> Status:
        return self.pool.state(model).status

    def statuses(self) -> dict[str, Status]:
        return {s.spec.id: s.status for s in self.pool.states()}

    async def advance(self, seconds: float) -> None:
        """Advance the clock and do what is then due."""
        self.clock.now += seconds
        self.pool._scheduler.tick()
        await self.run_jobs()


@asynccontextmanager
async def pool_of(
    *models: ModelSpec | str, loader: RecordingLoader | None = None, fetcher: Fetcher | None = None, **limits: Any
) -> AsyncIterator[PoolHarness]:
    """Open a pool. On exit, close it and check that no model is left in memory."""
    specs = (spec(m) if isinstance(m, str) else m for m in models)
    harness = PoolHarness(*specs, loader=loader, fetcher=fetcher, **limits)
    yield harness
    closing = asyncio.ensure_future(harness.pool.close(0.0))
    await harness.run_jobs()
    await asyncio.wait_for(closing, 60)
    assert harness.loader.in_memory == []
    assert all(engine.closed for engine in (*harness.engines.created, *harness.embedders.created))
