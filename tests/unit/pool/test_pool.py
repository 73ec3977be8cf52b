"""Loads, restarts, eviction, sleep, reloads, unloads and removals of models in a pool of fakes."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from server.engine.lora import Adapter
from server.engine.params import EngineParams
from server.errors import (
    ConfigError,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    NoRoom,
    ShuttingDown,
    Unavailable,
    unexpected,
)
from server.pool.events import EVERY_MODEL, ListChanged, StatusChanged
from server.pool.memory import Amount, Budget, Footprint
from server.pool.model import Lease
from server.pool.protocols import FileProgress, ModelInfo
from server.pool.spec import ModelSpec, RemoteFiles
from server.pool.state import Status
from server.routes.health import failed_models
from tests.unit.pool.fakes import FakeEngine, PoolHarness, RecordingLoader, pool_of, spec, spin

UNLOADED, LOADING, READY, DRAINING, SLEEPING, FAILED, _ = Status


# ---- loading


async def test_load_continues_after_its_only_caller_is_cancelled() -> None:
    async with pool_of("a", "b") as s:
        task = s.start_acquire("a")
        await s.run_until_loading("a")
        task.cancel()
        await s.run_jobs()
        assert s.status("a") is READY


async def test_caller_cancelled_when_its_lease_is_granted_releases_it() -> None:
    async with pool_of("a") as s:
        task = s.start_acquire("a")
        await s.run_until_loading("a")
        s.threads.run_job()  # `Load.fit`
        await spin()
        s.threads.run_job()
        with s.pool.subscribe() as events:
            async for event in events:  # READY and the grant of the lease occur before the caller runs
                if isinstance(event, StatusChanged) and event.status is READY:
                    break
        task.cancel()
        await spin()
        assert task.cancelled()
        assert s.pool.state("a").n_leases == 0


# ---- failures


async def test_requests_get_the_failure_of_a_load_until_retry_failed_s_has_passed() -> None:
    async with pool_of("a", "b", retry_failed_s=10) as s:
        s.loader.failing["a"] = ModelFailed("a", "out of memory")
        with pytest.raises(ModelFailed):
            await s.lease("a")
        with pytest.raises(ModelFailed, match="out of memory"):
            await s.pool.acquire("a")
        assert not s.threads.jobs
        s.clock.now += 10
        s.loader.failing.clear()
        await s.use("a")
        assert s.pool.state("a").failure == ""


class PanicException(BaseException):
    """Like pyo3's: no subclass of Exception."""


@pytest.mark.parametrize("from_worker", [False, True])
async def test_rust_panic_during_a_load_fails_the_model(from_worker: bool) -> None:
    panic = PanicException("index out of bounds")
    async with pool_of("a") as s:
        s.loader.failing["a"] = unexpected(panic) if from_worker else panic
        with pytest.raises(ModelFailed, match="PanicException: index out of bounds"):
            await s.lease("a")


async def test_model_that_cannot_be_freed_fails_and_can_be_loaded_again() -> None:
    async with pool_of("a", "b") as s:
        await s.use("a")
        weights = s.loader.weights[0]
        weights.close = lambda: 1 / 0  # type: ignore[method-assign,assignment]
        await s.complete(s.pool.unload("a"))
        assert "could not be freed" in s.pool.state("a").failure
        weights.closed = True
        await s.complete(s.pool.load("a"))
        assert s.status("a") is READY


# ---- restarts and models_max


async def test_model_whose_process_ends_is_restarted_with_exponential_backoff() -> None:
    async with pool_of("a", wait_s=5.0) as s:
        await s.use("a")
        for pause_s in (0, 1, 2, 4, 8, 16, 32, 60, 60):
            s.end_process("a")
            await s.advance(max(pause_s - 0.5, 0.0))
            assert s.status("a") is (Status.FAILED if pause_s else Status.READY)
            assert s.pool.state("a").failed == bool(pause_s)
            await s.advance(0.5)
            assert s.status("a") is Status.READY
        s.clock.now += 60
        s.end_process("a")
        await s.run_jobs()
        assert s.status("a") is Status.READY


async def replace_ended_a_by_b(s: PoolHarness) -> tuple[Lease, Lease]:
    """End the process of `a`, so that `b` gets its place. Return a lease on the ended `a` and one on `b`."""
    lease_a = await s.lease("a")
    waiting = s.start_acquire("b")
    await s.run_jobs()
    s.end_process("a")
    await s.run_jobs()
    return lease_a, await waiting


async def test_restart_evicts_no_model() -> None:
    async with pool_of("a", "b", models_max=1) as s:
        lease_a, lease_b = await replace_ended_a_by_b(s)
        lease_b.release()
        await s.run_jobs()
        assert s.statuses() == {"a": UNLOADED, "b": READY}
        await s.use("a")  # a request does evict
        lease_a.release()


@pytest.mark.parametrize("changes", [{"load": "startup"}, {"pinned": True}])
@pytest.mark.parametrize("explicit_load", [False, True])
async def test_startup_and_pinned_models_restart_when_a_place_is_free_or_on_request(
    changes: dict[str, Any], explicit_load: bool
) -> None:
    async with pool_of(spec("a", **changes), "b", models_max=1, wait_s=5.0) as s:
        lease_a, lease_b = await replace_ended_a_by_b(s)
        refused = s.start_acquire("a")
        for _ in range(7):
            await s.advance(1)
            assert s.status("a") is FAILED
        with pytest.raises(NoRoom):
            await refused
        for _ in range(2):
            await s.advance(60)
            state = s.pool.state("a")
            assert (state.failed, state.failure) == (True, "the other models leave no room")
            assert failed_models(s.pool.states()).keys() == ({"a"} if "load" in changes else set())
        lease_b.release()
        await s.advance(60)
        assert s.statuses() == {"a": FAILED, "b": READY}  # a restart does not evict
        await s.complete(s.pool.load("a") if explicit_load else s.pool.unload("b"))
        await s.advance(1)
        assert s.statuses() == {"a": READY, "b": UNLOADED}
        lease_a.release()


@pytest.mark.parametrize("has_ended", [True, False])
async def test_request_without_autoload_evicts_no_model(has_ended: bool) -> None:
    async with pool_of(spec("a", load="startup", sleep_idle_s=60), "b", models_max=1) as s:
        if has_ended:
            leases = await replace_ended_a_by_b(s)
        else:
            await s.use("a")
            await s.advance(60)
            leases = (await s.lease("b"),) * 2
        for lease in leases:
            lease.release()
        waiting = s.start_acquire("a", autoload=False)
        await spin()
        await s.advance(1)
        with pytest.raises(ModelFailed, match="the other models leave no room"):
            await waiting
        assert s.statuses() == {"a": FAILED if has_ended else SLEEPING, "b": READY}
        with_autoload = s.start_acquire("a")
        waiting = s.start_acquire("a", autoload=False)
        await spin()
        await s.advance(1)
        for task in (waiting, with_autoload):
            (await task).release()
        assert s.statuses() == {"a": READY, "b": UNLOADED}


async def test_restart_that_keeps_failing_evicts_no_model() -> None:
    async with pool_of("a", "b", models_max=1) as s:
        await s.use("a")
        s.loader.failing["a"] = ModelFailed("a", "bad luck")
        s.end_process("a")
        await s.run_jobs()
        assert s.status("a") is FAILED
        await s.use("b")
        for _ in range(3):
            await s.advance(60)
            assert s.statuses() == {"a": UNLOADED, "b": READY}


async def test_unload_cancels_a_running_restart() -> None:
    async with pool_of("a", "b", models_max=1) as s:
        await s.use("a")
        s.end_process("a")
        await s.run_until_loading("a")
        await s.pool.unload("a")
        waiting = s.start_acquire("b")
        await spin()
        await s.complete(s.pool.load("a"))
        (await waiting).release()
        await s.run_jobs()
        assert s.statuses() == {"a": READY, "b": UNLOADED}


async def test_unload_during_a_restart_pause_drops_adapters_and_permits_a_load() -> None:
    async with pool_of("a", "b") as s:
        await s.use("a")
        s.engines.created[0].adapters = (Adapter(0, "0.gguf", name="0"),)
        s.loader.failing["a"] = ModelFailed("a", "bad luck")
        s.end_process("a")
        await s.run_jobs()
        assert s.pool.names_adapter("0")
        await s.pool.unload("a")
        assert not s.pool.names_adapter("0")
        s.loader.failing.clear()
        await s.use("a")


async def test_model_that_gives_way_serves_again_when_the_waiting_request_is_cancelled() -> None:
    async with pool_of("a", "b", models_max=1, patience_s=10) as s:
        lease = await s.lease("a")
        waiting = s.start_acquire("b")
        await s.run_jobs()
        await s.advance(10)
        late = s.start_acquire("a")
        await s.run_jobs()
        waiting.cancel()
        await s.run_jobs()
        late.result().release()
        lease.release()


# ---- sleeping


async def test_idle_model_sleeps_until_the_next_request_or_an_unload() -> None:
    async with pool_of(spec("a", sleep_idle_s=60), "b") as s:
        await s.use("a")
        await s.advance(59)
        assert s.status("a") is READY
        await s.advance(1)
        assert s.status("a") is SLEEPING
        assert s.loader.in_memory == []
        assert s.pool.state("a").info is not None
        await s.use("a")
        assert s.status("a") is READY
        await s.advance(60)
        await s.pool.unload("a")
        assert (s.status("a"), s.pool.state("a").info) == (UNLOADED, None)


async def test_next_tick_is_due_when_the_first_model_may_sleep() -> None:
    async with pool_of(spec("a", sleep_idle_s=60), spec("b", sleep_idle_s=20)) as s:
        await s.use("a")
        lease = await s.lease("b")
        s.clock.now += 30
        assert s.pool._scheduler.tick() == pytest.approx(20)  # for b, if it were released now; a may sleep in 30 s
        lease.release()
        s.clock.now += 5
        assert s.pool._scheduler.tick() == pytest.approx(15)


async def test_keep_alive_of_a_lease_replaces_sleep_idle_s_until_the_model_sleeps() -> None:
    async with pool_of("a", spec("b", sleep_idle_s=60)) as s:
        lease = await s.lease("a")
        lease.keep_alive_s = 30
        lease.release()
        assert s.pool.state("a").sleeps_in_s == pytest.approx(30)
        await s.advance(29)
        assert s.status("a") is READY
        await s.advance(1)
        assert s.status("a") is SLEEPING
        await s.use("a")
        assert s.pool.state("a").sleeps_in_s is None  # keep_alive_s of the earlier lease no longer applies
        lease, unlimited = await s.lease("b"), await s.lease("b")
        unlimited.keep_alive_s = -1
        unlimited.release()
        lease.release()
        await s.advance(1000)
        assert s.status("b") is READY


async def test_keep_alive_of_zero_applies_when_the_last_lease_is_released() -> None:
    async with pool_of("a") as s:
        lease, zero = await s.lease("a"), await s.lease("a")
        zero.keep_alive_s = 0
        zero.release()
        await s.advance(1)
        assert s.status("a") is READY
        lease.release()
        await s.advance(0)
        assert s.status("a") is SLEEPING


# ---- reload


async def test_reload_loads_changed_startup_models_and_evicts_no_model() -> None:
    async with pool_of(spec("a", load="startup"), spec("b", load="startup"), "c", models_max=3) as s:
        await s.pool.start()
        await s.use("c")
        loaded_b, changed = s.pool.state("b").loaded, spec("a", load="startup", pinned=True)
        configured = [changed, *(state.spec for state in s.pool.states()[1:]), spec("d", load="startup")]
        await s.complete(s.pool.reload(configured))
        await s.run_jobs()
        assert s.statuses() == {"a": READY, "b": READY, "c": READY, "d": UNLOADED}
        assert s.pool.state("b").loaded is loaded_b


async def test_requests_wait_while_a_reload_loads_the_only_model() -> None:
    async with pool_of("a") as s:
        await s.use("a")
        reloading = asyncio.ensure_future(s.pool.reload([spec("a", load="startup", pinned=True)]))
        await s.run_until_loading("a")
        waiting = s.start_acquire("a")
        await s.run_jobs()
        (await waiting).release()
        await reloading


async def test_reload_cancels_the_running_load_of_a_changed_model() -> None:
    async with pool_of(spec("a", load="startup"), "b") as s:
        await s.pool.start()
        waiting = s.start_acquire("a")
        await s.run_until_loading("a")
        await s.complete(s.pool.reload([spec("a", load="startup", pinned=True), spec("b")]))
        await s.run_jobs()
        assert (s.status("a"), len(s.loader.in_memory), s.pool.state("a").pinned) == (READY, 1, True)
        with await waiting as lease:
            assert lease.model.spec.pinned


async def test_reload_frees_a_removed_model_whose_disk_cache_is_being_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    indexed = asyncio.Event()

    async def use_disk(self: FakeEngine, files: object) -> None:
        await indexed.wait()

    monkeypatch.setattr(FakeEngine, "use_disk", use_disk, raising=False)
    monkeypatch.setattr("server.pool.loading.StateFolder", lambda *args, **options: None)
    cached = EngineParams(cache_disk=1, cache_disk_path="http://127.0.0.1/states")
    async with pool_of(spec("a", engine=cached), "b", "c") as s:
        waiting = s.start_acquire("a")
        await s.run_jobs()
        assert (s.status("a"), len(s.engines.created)) == (LOADING, 1)
        reloading = asyncio.ensure_future(s.pool.reload([spec("b"), spec("c")]))
        await spin()
        indexed.set()
        await s.run_jobs()
        await reloading
        assert s.loader.in_memory == []
        with pytest.raises(ModelNotFound):
            await waiting


async def start_blocked_reload(s: PoolHarness, *configured: ModelSpec) -> tuple[Lease, "asyncio.Future[None]"]:
    """Lease `a`, and start a reload, which waits for the release. Return both."""
    lease = await s.lease("a")
    reloading = asyncio.ensure_future(s.pool.reload(configured))
    await spin()
    return lease, reloading


CHANGED_A = spec("a", tags=("new",))


async def test_reload_ends_while_requests_arrive_which_then_get_the_changed_model() -> None:
    async with pool_of("a", "b") as s:
        old_lease, reloading = await start_blocked_reload(s, CHANGED_A, spec("b"))
        assert s.status("a") is DRAINING
        with pytest.raises(Unavailable, match="configured again"):
            await s.pool.load("a")
        waiting = s.start_acquire("a")
        await s.run_jobs()
        assert s.pool.state("a").n_waiting == 1
        old_lease.release()
        late = []
        while not reloading.done():
            late.append(s.start_acquire("a"))  # one more at each step of the event loop
            await spin(1)
            while s.threads.jobs:
                s.threads.run_job()
        await s.run_jobs()
        for lease in await asyncio.gather(waiting, *late):
            assert lease.model.spec.tags == ("new",)
            lease.release()
        assert [weights.closed for weights in s.loader.weights] == [True, False]


async def test_request_waits_for_a_reload_at_most_wait_s() -> None:
    async with pool_of("a", "b", wait_s=0.01) as s:
        old_lease, reloading = await start_blocked_reload(s, CHANGED_A, spec("b"))
        with pytest.raises(Unavailable, match="still being unloaded"):
            await asyncio.wait_for(s.pool.acquire("a"), 10)
        old_lease.release()
        await s.run_jobs()
        await reloading


async def test_unload_during_a_reload_does_not_refuse_requests_for_the_changed_model() -> None:
    async with pool_of("a", "b") as s:
        old_lease, reloading = await start_blocked_reload(s, CHANGED_A, spec("b"))
        waiting = s.start_acquire("a")
        await spin()
        await s.pool.unload("a")
        old_lease.release()
        await s.run_jobs()
        await reloading
        lease = await waiting
        assert lease.model.spec.tags == ("new",)
        lease.release()


async def test_request_that_waits_for_a_model_removed_by_a_reload_is_refused() -> None:
    async with pool_of("a", "b", "c") as s:
        old_lease, reloading = await start_blocked_reload(s, spec("b"), spec("c"))
        waiting = s.start_acquire("a")
        await s.run_jobs()
        old_lease.release()
        await s.run_jobs()
        await reloading
        with pytest.raises(ModelNotFound):
            await waiting


async def test_reload_keeps_pins_and_does_not_restart_a_model_for_its_aliases() -> None:
    async with pool_of("a", "b") as s:
        s.pool.pin("a", pinned=True)
        s.pool.pin("b", pinned=True)
        await s.use("a")
        await s.use("b")
        loaded_b = s.pool.state("b").loaded
        changed = spec("b", aliases=("other",), args=("llamapool", "-m", "b"))
        await s.complete(s.pool.reload([spec("a", tags=("new",)), changed]))
        a, b = s.pool.states()
        assert (a.pinned, a.spec.tags, b.pinned, b.loaded is loaded_b) == (True, ("new",), True, True)
        assert (b.spec.aliases, b.spec.args) == (("other",), ("llamapool", "-m", "b"))


async def test_view_of_an_api_key_follows_a_reload() -> None:
    async with pool_of("a", "b") as s:
        seen = s.pool.seen_by(lambda names: "b" not in names)
        await s.complete(s.pool.reload([spec("b"), spec("c"), spec("d", aliases=("a",))]))
        assert [state.spec.id for state in seen.states()] == ["c", "d"]
        with await s.complete(seen.acquire("a")) as lease:
            assert lease.model.spec.id == "d"
        with pytest.raises(ModelNotFound):
            await seen.acquire("b")


# ---- load and unload


async def test_unload_with_wait_returns_when_the_model_is_freed() -> None:
    async with pool_of("a", "b") as s:
        await s.complete(s.pool.load("a"))
        assert (s.status("a"), s.pool.state("a").n_leases) == (READY, 0)
        task = asyncio.ensure_future(s.pool.unload("a", wait=True))
        await spin()
        assert not task.done()
        await s.run_jobs()
        assert task.done()


async def test_unload_closes_the_engine_at_its_timeout_but_keeps_leased_weights() -> None:
    async with pool_of("a", "b", stop_timeout_s=0) as s:
        lease = await s.lease("a")
        await s.complete(s.pool.unload("a"))
        assert s.engines.created[0].closed
        assert s.loader.in_memory
        assert s.status("a") is DRAINING
        lease.release()
        await s.run_jobs()
        assert s.loader.in_memory == []


# ---- closing


async def test_close_cancels_loads_and_fails_waiting_requests() -> None:
    async with pool_of("a", "b", models_max=1) as s:
        loading, queued = s.start_acquire("a"), s.start_acquire("b")
        await s.run_until_loading("a")
        closing = asyncio.ensure_future(s.pool.close())
        await spin()
        assert isinstance(loading.exception(), ShuttingDown)
        assert isinstance(queued.exception(), ShuttingDown)
        with pytest.raises(ShuttingDown):
            await s.pool.acquire("a")
        with pytest.raises(ShuttingDown):
            await s.pool.load("a")
        assert not closing.done()
        await s.run_jobs()
        await closing
        assert s.loader.weights == []


async def test_close_shortens_the_timeout_of_a_running_unload() -> None:
    async with pool_of("a", stop_timeout_s=1000, abandon_s=1000) as s:
        lease = await s.lease("a")
        await s.complete(s.pool.unload("a"))
        closing = asyncio.ensure_future(s.pool.close(0))
        await s.run_jobs()
        assert s.engines.created[0].closed
        lease.release()
        await s.run_jobs()
        await closing


async def test_model_with_two_engines_sleeps_when_both_are_idle() -> None:
    async with pool_of(spec("m", embedding=True, sleep_idle_s=5.0)) as s:
        await s.use("m")
        (generator,), (embedder,) = s.engines.created, s.embedders.created
        embedder.busy = True
        await s.advance(10.0)
        assert s.status("m") is READY
        embedder.busy = False
        await s.advance(10.0)
        assert s.status("m") is SLEEPING
        assert generator.closed
        assert embedder.closed


async def test_engine_is_closed_when_the_second_engine_cannot_start() -> None:
    async with pool_of(spec("m", embedding=True)) as s:
        s.embedders.failing = True
        with pytest.raises(ModelFailed, match="no thread"):
            await s.lease("m")
        assert [engine.closed for engine in s.engines.created] == [True]
        assert s.loader.in_memory == []


async def test_contexts_created_before_an_allocation_failure_are_freed() -> None:
    async with pool_of(spec("m", embedding=True, instances=2)) as s:
        s.loader.n_runners_that_fit = 1
        with pytest.raises(ModelFailed, match="out of memory"):
            await s.lease("m")
        assert [len(s.loader.weights[0].runners), len(s.loader.weights[0].embedders)] == [1, 1]
        assert s.loader.in_memory == []


class EmptyFilesFetcher:
    """Create empty files instead of downloading them."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    def check(self, name: str, wanted: Callable[[], bool]) -> None:
        """Accept every name."""

    def fetch(self, spec: ModelSpec, report: Callable[[FileProgress], None], wanted: Callable[[], bool]) -> ModelSpec:
        spec.path.touch()
        return spec

    def remove(self, name: str) -> None:
        self.removed.append(name)


async def test_request_during_a_removal_does_not_load_the_model_again() -> None:
    fetcher = EmptyFilesFetcher()
    async with pool_of(spec("a", origin="cache"), "b", "c", fetcher=fetcher) as s:
        lease = await s.lease("a")
        removing = asyncio.ensure_future(s.pool.remove("a"))
        await s.run_jobs()
        assert s.status("a") is DRAINING
        with pytest.raises(Unavailable, match="is being unloaded"):
            await s.pool.remove("a")
        late = s.start_acquire("a")
        await s.run_jobs()
        assert not late.done()
        lease.release()
        while not (removing.done() and late.done()):
            await s.run_jobs()
        await removing
        with pytest.raises(ModelNotFound):
            await late
        assert s.loader.in_memory == []
        assert len(s.loader.weights) == 1
        assert fetcher.removed == ["a"]
        assert [state.spec.id for state in s.pool.states()] == ["b", "c"]


class BlockedFetcher(EmptyFilesFetcher):
    """Block each download until ``may_end`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def fetch(self, spec: ModelSpec, report: Callable[[FileProgress], None], wanted: Callable[[], bool]) -> ModelSpec:
        assert self.may_end.wait(60)
        return super().fetch(spec, report, wanted) if spec.path.name else spec


async def test_reload_keeps_a_model_that_is_being_downloaded() -> None:
    fetcher = BlockedFetcher()
    async with pool_of("b", "c", fetcher=fetcher) as s:
        await s.pool.download("org/a")
        await s.pool.reload([spec("org/a"), spec("b"), spec("c")])
        assert s.pool.state("org/a").spec.origin == "cache"
        fetcher.may_end.set()
        while s.pool.knows("org/a"):
            await s.run_jobs()


async def test_reload_during_a_download_updates_the_aliases_of_the_model(tmp_path: Path) -> None:
    fetcher, model = BlockedFetcher(), ModelSpec("a", tmp_path / "a.gguf", remote=RemoteFiles(hf="org/a"))
    async with pool_of(model, "b", fetcher=fetcher) as s:
        waiting = s.start_acquire("a")
        await spin()
        await s.pool.reload([replace(model, aliases=("mine",)), spec("b")])
        fetcher.may_end.set()
        while not waiting.done():
            await s.run_jobs()
        waiting.result().release()
        assert s.pool.state("a").spec.aliases == ("mine",)


async def test_subscriber_of_an_api_key_receives_the_removal_of_its_model() -> None:
    async with pool_of(spec("a", aliases=("mine",), origin="cache"), "b", "c", fetcher=EmptyFilesFetcher()) as s:
        seen = s.pool.seen_by(lambda names: "mine" in names)
        with seen.subscribe() as events:
            await s.use("b")
            removing = asyncio.ensure_future(s.pool.remove("a"))
            while not removing.done():
                await s.run_jobs()
            await removing
        assert [event async for event in events] == [ListChanged("a"), ListChanged(EVERY_MODEL)]


async def test_sleeping_model_whose_file_was_deleted_is_fetched_again(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.touch()
    model = ModelSpec("a", path, remote=RemoteFiles(hf="org/a"), sleep_idle_s=60)
    async with pool_of(model, "b", fetcher=EmptyFilesFetcher()) as s:
        await s.use("a")
        await s.advance(60)
        assert s.status("a") is SLEEPING
        path.unlink()
        waiting = s.start_acquire("a")
        while not waiting.done():  # downloads have their own threads
            await s.run_jobs()
        waiting.result().release()


@pytest.mark.parametrize("error", [ValueError("no such tensor"), InvalidRequest("no such tensor")])
async def test_failed_measurement_is_not_repeated(error: Exception) -> None:
    class Unmeasurable(RecordingLoader):
        n_measurements = 0

        def least(self, spec: ModelSpec) -> Footprint:
            self.n_measurements += 1
            if self.n_measurements == 10:
                raise SystemExit("the measurement is repeated without end")
            raise error

        def describe(self, spec: ModelSpec) -> NoReturn:
            raise ValueError("no such key")

    loader = Unmeasurable()
    async with pool_of(spec("a"), loader=loader, budget=Budget(Amount(100))) as s:
        loader.failing["a"] = ModelFailed("a", "no such tensor")
        with pytest.raises(ModelFailed, match="no such tensor"):
            await s.lease("a")
        assert loader.n_measurements == 1


async def test_describe_fails_for_a_broken_template() -> None:
    class DescribingLoader(RecordingLoader):
        def describe(self, spec: ModelSpec) -> ModelInfo:
            return ModelInfo()

    def broken_template(info: ModelInfo, spec: ModelSpec) -> NoReturn:
        raise ConfigError("unexpected '}'")

    async with pool_of("a", "b", loader=DescribingLoader()) as s:
        s.pool._factories = replace(s.factories, template=broken_template)
        with pytest.raises(ModelFailed, match="unexpected '}'"):
            await s.complete(s.pool.describe("a"))
