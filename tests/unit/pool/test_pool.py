"""Loads, places, sleep, unloads and removals of models in the pool."""

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
from tests.unit.pool.fakes import FakeEngine, Loader, Setup, acquiring, loaded, pool_of, spec, spin

UNLOADED, LOADING, READY, DRAINING, SLEEPING, FAILED, _ = Status


# ---- loading


async def test_a_load_goes_on_when_every_caller_has_left() -> None:
    async with pool_of("a", "b") as s:
        task = acquiring(s, "a")
        await s.begun("a")
        task.cancel()
        await s.work()
        assert s.status("a") is READY


async def test_a_caller_cancelled_in_the_moment_of_its_lease_gives_it_back() -> None:
    async with pool_of("a") as s:
        task = acquiring(s, "a")
        await s.begun("a")
        s.threads.run()  # fits it
        await spin()
        s.threads.run()
        with s.pool.subscribe() as events:
            async for event in events:  # the lease is given in the same step as READY, then the caller runs
                if isinstance(event, StatusChanged) and event.status is READY:
                    break
        task.cancel()
        await spin()
        assert task.cancelled()
        assert s.pool.state("a").n_leases == 0


# ---- failing


async def test_after_a_failure_requests_get_the_reason_until_one_may_try_again() -> None:
    async with pool_of("a", "b", retry_failed_s=10) as s:
        s.loader.failing["a"] = ModelFailed("a", "out of memory")
        with pytest.raises(ModelFailed):
            await loaded(s, "a")
        with pytest.raises(ModelFailed, match="out of memory"):
            await s.pool.acquire("a")
        assert not s.threads.jobs
        s.clock.now += 10
        s.loader.failing.clear()
        (await loaded(s, "a")).release()
        assert s.pool.state("a").failure == ""


class PanicException(BaseException):
    """As pyo3's, which is no Exception."""


@pytest.mark.parametrize("from_worker", [False, True])
async def test_a_panic_of_a_rust_library_is_a_failure_like_any_other(from_worker: bool) -> None:
    panic = PanicException("index out of bounds")
    async with pool_of("a") as s:
        s.loader.failing["a"] = unexpected(panic) if from_worker else panic
        with pytest.raises(ModelFailed, match="PanicException: index out of bounds"):
            await loaded(s, "a")


async def test_a_model_that_cannot_be_freed_is_failed_and_can_be_loaded_again() -> None:
    async with pool_of("a", "b") as s:
        (await loaded(s, "a")).release()
        weights = s.loader.weights[0]
        weights.close = lambda: 1 / 0  # type: ignore[method-assign,assignment]
        await s.done(s.pool.unload("a"))
        assert "could not be freed" in s.pool.state("a").failure
        weights.closed = True
        await s.done(s.pool.load("a"))
        assert s.status("a") is READY


# ---- models_max


async def test_a_model_whose_process_ends_is_loaded_again_after_growing_pauses() -> None:
    async with pool_of("a", wait_s=5.0) as s:
        (await loaded(s, "a")).release()
        for pause_s in (0, 1, 2, 4, 8, 16, 32, 60, 60):
            s.end_process("a")
            await s.later(max(pause_s - 0.5, 0.0))
            assert s.status("a") is (Status.FAILED if pause_s else Status.READY)
            assert s.pool.state("a").failed == bool(pause_s)
            await s.later(0.5)
            assert s.status("a") is Status.READY
        s.clock.now += 60
        s.end_process("a")
        await s.work()
        assert s.status("a") is Status.READY


async def lost(s: Setup) -> tuple[Lease, Lease]:
    """End the process of a, whose place b gets. Return a lease on what is lost and one on b."""
    held = await loaded(s, "a")
    waiting = acquiring(s, "b")
    await s.work()
    s.end_process("a")
    await s.work()
    return held, await waiting


async def test_no_model_leaves_for_one_whose_process_has_ended() -> None:
    async with pool_of("a", "b", models_max=1) as s:
        held, of_b = await lost(s)
        of_b.release()
        await s.work()
        assert s.statuses() == {"a": UNLOADED, "b": READY}
        (await loaded(s, "a")).release()  # a request evicts the other
        held.release()


@pytest.mark.parametrize("changes", [{"load": "startup"}, {"pinned": True}])
async def test_a_model_that_is_always_to_be_loaded_is_loaded_again_once_there_is_room(changes: dict[str, Any]) -> None:
    async with pool_of(spec("a", **changes), "b", models_max=1, wait_s=5.0) as s:
        held, busy = await lost(s)
        refused = acquiring(s, "a")
        for _ in range(7):
            await s.later(1)
            assert s.status("a") is FAILED
        with pytest.raises(NoRoom):
            await refused
        for _ in range(2):
            await s.later(60)
            state = s.pool.state("a")
            assert (state.failed, state.failure) == (True, "the other models leave no room")
            assert failed_models(s.pool.states()).keys() == ({"a"} if "load" in changes else set())
        busy.release()
        await s.later(60)
        assert s.statuses() == {"a": FAILED, "b": READY}  # it unloads no other
        await s.done(s.pool.unload("b"))
        await s.later(1)
        assert s.statuses() == {"a": READY, "b": UNLOADED}
        held.release()


async def test_an_explicit_load_unloads_others_for_a_model_that_waits_for_room() -> None:
    async with pool_of(spec("a", load="startup"), "b", models_max=1) as s:
        held, of_b = await lost(s)
        of_b.release()
        await s.later(60)
        assert s.statuses() == {"a": FAILED, "b": READY}
        await s.done(s.pool.load("a"))
        assert s.statuses() == {"a": READY, "b": UNLOADED}
        held.release()


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_request_that_may_load_no_model_unloads_none(is_lost: bool) -> None:
    async with pool_of(spec("a", load="startup", sleep_idle_s=60), "b", models_max=1) as s:
        if is_lost:
            leases = await lost(s)
        else:
            (await loaded(s, "a")).release()
            await s.later(60)
            leases = (await loaded(s, "b"),) * 2
        for lease in leases:
            lease.release()
        waiting = acquiring(s, "a", autoload=False)
        await spin()
        await s.later(1)
        with pytest.raises(ModelFailed, match="the other models leave no room"):
            await waiting
        assert s.statuses() == {"a": FAILED if is_lost else SLEEPING, "b": READY}
        may_load = acquiring(s, "a")
        waiting = acquiring(s, "a", autoload=False)
        await spin()
        await s.later(1)
        for each in (waiting, may_load):
            (await each).release()
        assert s.statuses() == {"a": READY, "b": UNLOADED}


async def test_a_model_that_fails_every_reload_evicts_nobody() -> None:
    async with pool_of("a", "b", models_max=1) as s:
        (await loaded(s, "a")).release()
        s.loader.failing["a"] = ModelFailed("a", "bad luck")
        s.end_process("a")
        await s.work()
        assert s.status("a") is FAILED
        (await loaded(s, "b")).release()
        for _ in range(3):
            await s.later(60)
            assert s.statuses() == {"a": UNLOADED, "b": READY}


async def test_an_unload_of_a_restart_under_way_ends_it() -> None:
    async with pool_of("a", "b", models_max=1) as s:
        (await loaded(s, "a")).release()
        s.end_process("a")
        await s.begun("a")
        await s.pool.unload("a")
        waiting = acquiring(s, "b")
        await spin()
        await s.done(s.pool.load("a"))
        (await waiting).release()
        await s.work()
        assert s.statuses() == {"a": READY, "b": UNLOADED}


async def test_a_model_that_is_unloaded_during_a_pause_forgets_adapters_and_can_be_loaded_at_once() -> None:
    async with pool_of("a", "b") as s:
        (await loaded(s, "a")).release()
        s.engines.made[0].adapters = (Adapter(0, "0.gguf", name="0"),)
        s.loader.failing["a"] = ModelFailed("a", "bad luck")
        s.end_process("a")
        await s.work()
        assert s.pool.names_adapter("0")
        await s.pool.unload("a")
        assert not s.pool.names_adapter("0")
        s.loader.failing.clear()
        (await loaded(s, "a")).release()


async def test_who_was_held_back_is_served_when_the_other_gives_up() -> None:
    async with pool_of("a", "b", models_max=1, patience_s=10) as s:
        held = await loaded(s, "a")
        waiting = acquiring(s, "b")
        await s.work()
        await s.later(10)
        late = acquiring(s, "a")
        await s.work()
        waiting.cancel()
        await s.work()
        late.result().release()
        held.release()


# ---- sleeping


async def test_an_idle_model_sleeps_until_the_next_request_or_an_unload() -> None:
    async with pool_of(spec("a", sleep_idle_s=60), "b") as s:
        (await loaded(s, "a")).release()
        await s.later(59)
        assert s.status("a") is READY
        await s.later(1)
        assert s.status("a") is SLEEPING
        assert s.loader.open == []
        assert s.pool.state("a").info is not None
        assert s.status("a") is SLEEPING
        (await loaded(s, "a")).release()
        assert s.status("a") is READY
        await s.later(60)
        await s.pool.unload("a")
        assert (s.status("a"), s.pool.state("a").info) == (UNLOADED, None)


async def test_the_next_tick_is_when_the_first_of_several_models_may_sleep() -> None:
    async with pool_of(spec("a", sleep_idle_s=60), spec("b", sleep_idle_s=20)) as s:
        (await loaded(s, "a")).release()
        held = await loaded(s, "b")
        s.clock.now += 30
        assert s.pool._scheduler.tick() == pytest.approx(20)  # as if b were released now; a may sleep in 30 s
        held.release()
        s.clock.now += 5
        assert s.pool._scheduler.tick() == pytest.approx(15)


async def test_a_lease_may_say_how_long_the_model_stays_behind_it() -> None:
    async with pool_of("a", spec("b", sleep_idle_s=60)) as s:
        lease = await loaded(s, "a")
        lease.keep_alive_s = 30
        lease.release()
        assert s.pool.state("a").sleeps_in_s == pytest.approx(30)
        await s.later(29)
        assert s.status("a") is READY
        await s.later(1)
        assert s.status("a") is SLEEPING
        (await loaded(s, "a")).release()
        assert s.pool.state("a").sleeps_in_s is None  # it held as long as the model was in memory
        held = await loaded(s, "b")
        for_ever = await loaded(s, "b")
        for_ever.keep_alive_s = -1
        for_ever.release()
        held.release()
        await s.later(1000)
        assert s.status("b") is READY


async def test_a_model_that_nobody_wants_to_keep_goes_when_its_last_lease_does() -> None:
    async with pool_of("a") as s:
        held, last = await loaded(s, "a"), await loaded(s, "a")
        last.keep_alive_s = 0
        last.release()
        await s.later(1)
        assert s.status("a") is READY
        held.release()
        await s.later(0)
        assert s.status("a") is SLEEPING


# ---- reload


async def test_a_reload_loads_changed_and_new_startup_models_and_unloads_no_other_for_them() -> None:
    async with pool_of(spec("a", load="startup"), spec("b", load="startup"), "c", models_max=3) as s:
        await s.pool.start()
        (await loaded(s, "c")).release()
        kept, changed = s.pool.state("b").loaded, spec("a", load="startup", pinned=True)
        configured = [changed, *(state.spec for state in s.pool.states()[1:]), spec("d", load="startup")]
        await s.done(s.pool.reload(configured))
        await s.work()
        assert s.statuses() == {"a": READY, "b": READY, "c": READY, "d": UNLOADED}
        assert s.pool.state("b").loaded is kept


async def test_requests_wait_for_the_only_model_while_a_reload_loads_it() -> None:
    async with pool_of("a") as s:
        (await loaded(s, "a")).release()
        reloading = asyncio.ensure_future(s.pool.reload([spec("a", load="startup", pinned=True)]))
        await s.begun("a")
        waiting = acquiring(s, "a")
        await s.work()
        (await waiting).release()
        await reloading


async def test_a_reload_while_a_model_loads_cancels_the_load_of_what_has_changed() -> None:
    async with pool_of(spec("a", load="startup"), "b") as s:
        await s.pool.start()
        waiting = acquiring(s, "a")
        await s.begun("a")
        await s.done(s.pool.reload([spec("a", load="startup", pinned=True), spec("b")]))
        await s.work()
        assert (s.status("a"), len(s.loader.open), s.pool.state("a").pinned) == (READY, 1, True)
        with await waiting as lease:
            assert lease.model.spec.pinned


async def test_a_model_that_a_reload_removes_while_it_finds_its_saved_states_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_read = asyncio.Event()

    async def use_disk(self: FakeEngine, files: object) -> None:
        await is_read.wait()

    monkeypatch.setattr(FakeEngine, "use_disk", use_disk, raising=False)
    monkeypatch.setattr("server.pool.loading.StateFolder", lambda *args, **options: None)
    cached = EngineParams(cache_disk=1, cache_disk_path="http://127.0.0.1/states")
    async with pool_of(spec("a", engine=cached), "b", "c") as s:
        waiting = acquiring(s, "a")
        await s.work()
        assert (s.status("a"), len(s.engines.made)) == (LOADING, 1)
        reloading = asyncio.ensure_future(s.pool.reload([spec("b"), spec("c")]))
        await spin()
        is_read.set()
        await s.work()
        await reloading
        assert s.loader.open == []
        with pytest.raises(ModelNotFound):
            await waiting


async def test_a_reload_ends_while_requests_arrive_which_get_the_model_as_it_is_configured_now() -> None:
    async with pool_of("a", "b") as s:
        held = await loaded(s, "a")
        reloading = asyncio.ensure_future(s.pool.reload([spec("a", tags=("new",)), spec("b")]))
        await spin()
        assert s.status("a") is DRAINING
        with pytest.raises(Unavailable, match="configured again"):
            await s.pool.load("a")
        waiting = acquiring(s, "a")
        await s.work()
        assert s.pool.state("a").n_waiting == 1
        held.release()
        late = []
        while not reloading.done():
            late.append(acquiring(s, "a"))  # one more whenever something has happened
            await spin(1)
            while s.threads.jobs:
                s.threads.run()
        await s.work()
        for lease in await asyncio.gather(waiting, *late):
            assert lease.model.spec.tags == ("new",)
            lease.release()
        assert [one.closed for one in s.loader.weights] == [True, False]


async def test_a_request_does_not_wait_longer_for_a_reload_than_for_a_place() -> None:
    async with pool_of("a", "b", wait_s=0.01) as s:
        held = await loaded(s, "a")
        reloading = asyncio.ensure_future(s.pool.reload([spec("a", tags=("new",)), spec("b")]))
        await spin()
        with pytest.raises(Unavailable, match="still being unloaded"):
            await asyncio.wait_for(s.pool.acquire("a"), 10)
        held.release()
        await s.work()
        await reloading


async def test_an_unload_during_a_reload_refuses_no_request_that_waits_for_the_new_model() -> None:
    async with pool_of("a", "b") as s:
        held = await loaded(s, "a")
        reloading = asyncio.ensure_future(s.pool.reload([spec("a", tags=("new",)), spec("b")]))
        await spin()
        waiting = acquiring(s, "a")
        await spin()
        await s.pool.unload("a")
        held.release()
        await s.work()
        await reloading
        lease = await waiting
        assert lease.model.spec.tags == ("new",)
        lease.release()


async def test_a_request_that_waits_for_a_model_that_a_reload_removes_is_refused() -> None:
    async with pool_of("a", "b", "c") as s:
        held = await loaded(s, "a")
        reloading = asyncio.ensure_future(s.pool.reload([spec("b"), spec("c")]))
        await spin()
        waiting = acquiring(s, "a")
        await s.work()
        held.release()
        await s.work()
        await reloading
        with pytest.raises(ModelNotFound):
            await waiting


async def test_a_reload_keeps_pins_and_takes_what_does_not_define_a_model() -> None:
    async with pool_of("a", "b") as s:
        s.pool.pin("a", pinned=True)
        s.pool.pin("b", pinned=True)
        (await loaded(s, "a")).release()
        (await loaded(s, "b")).release()
        kept = s.pool.state("b").loaded
        changed = spec("b", aliases=("other",), args=("llamapool", "-m", "b"))
        await s.done(s.pool.reload([spec("a", tags=("new",)), changed]))
        a, b = s.pool.states()
        assert (a.pinned, a.spec.tags, b.pinned, b.loaded is kept) == (True, ("new",), True, True)
        assert (b.spec.aliases, b.spec.args) == (("other",), ("llamapool", "-m", "b"))


async def test_the_pool_of_a_key_follows_a_reload() -> None:
    async with pool_of("a", "b") as s:
        seen = s.pool.seen_by(lambda names: "b" not in names)
        await s.done(s.pool.reload([spec("b"), spec("c"), spec("d", aliases=("a",))]))
        assert [state.spec.id for state in seen.states()] == ["c", "d"]
        with await s.done(seen.acquire("a")) as lease:  # of a request that came before
            assert lease.model.spec.id == "d"
        with pytest.raises(ModelNotFound):
            await seen.acquire("b")


# ---- load and unload


async def test_an_unload_can_be_waited_for() -> None:
    async with pool_of("a", "b") as s:
        await s.done(s.pool.load("a"))
        assert (s.status("a"), s.pool.state("a").n_leases) == (READY, 0)
        task = asyncio.ensure_future(s.pool.unload("a", wait=True))
        await spin()
        assert not task.done()
        await s.work()
        assert task.done()


async def test_after_the_grace_requests_are_cut_off_and_weights_wait_for_the_last_lease() -> None:
    async with pool_of("a", "b", stop_timeout_s=0) as s:
        lease = await loaded(s, "a")
        await s.done(s.pool.unload("a"))
        assert s.engines.made[0].closed
        assert s.loader.open
        assert s.status("a") is DRAINING
        lease.release()
        await s.work()
        assert s.loader.open == []


# ---- closing


async def test_closing_cancels_loads_and_tells_those_who_wait() -> None:
    async with pool_of("a", "b", models_max=1) as s:
        loading, queued = acquiring(s, "a"), acquiring(s, "b")
        await s.begun("a")
        closing = asyncio.ensure_future(s.pool.close())
        await spin()
        assert isinstance(loading.exception(), ShuttingDown)
        assert isinstance(queued.exception(), ShuttingDown)
        with pytest.raises(ShuttingDown):
            await s.pool.acquire("a")
        with pytest.raises(ShuttingDown):
            await s.pool.load("a")
        assert not closing.done()
        await s.work()
        await closing
        assert s.loader.weights == []


async def test_closing_shortens_the_grace_of_an_unload_under_way() -> None:
    async with pool_of("a", stop_timeout_s=1000, abandon_s=1000) as s:
        lease = await loaded(s, "a")
        await s.done(s.pool.unload("a"))
        closing = asyncio.ensure_future(s.pool.close(0))
        await s.work()
        assert s.engines.made[0].closed
        lease.release()
        await s.work()
        await closing


def engines(s: Setup) -> tuple[int, int]:
    return len(s.engines.made), len(s.embedders.made)


async def test_a_model_that_does_both_is_busy_while_either_engine_is() -> None:
    async with pool_of(spec("m", embedding=True, sleep_idle_s=5.0)) as s:
        (await loaded(s, "m")).release()
        assert engines(s) == (1, 1)
        s.embedders.made[0].busy = True
        await s.later(10.0)
        assert s.status("m") == "ready"
        s.embedders.made[0].busy = False
        await s.later(10.0)
        assert s.status("m") == "sleeping"
        assert s.engines.made[0].closed
        assert s.embedders.made[0].closed


async def test_when_one_of_two_engines_cannot_start_the_other_is_freed_too() -> None:
    async with pool_of(spec("m", embedding=True)) as s:
        s.embedders.failing = True
        with pytest.raises(ModelFailed, match="no thread"):
            await loaded(s, "m")
        assert engines(s) == (1, 0)
        assert s.engines.made[0].closed
        assert s.loader.open == []


async def test_contexts_that_were_made_before_one_that_does_not_fit_are_freed() -> None:
    async with pool_of(spec("m", embedding=True, instances=2)) as s:
        s.loader.n_runners_that_fit = 1
        with pytest.raises(ModelFailed, match="out of memory"):
            await loaded(s, "m")
        assert [len(s.loader.weights[0].runners), len(s.loader.weights[0].embedders)] == [1, 1]
        assert s.loader.open == []


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
    async with pool_of(spec("a", origin="cache"), "b", "c", fetcher=files) as s:

        async def use() -> None:
            with pytest.raises(ModelNotFound):
                await s.pool.acquire("a")

        held = await loaded(s, "a")
        removing = asyncio.ensure_future(s.pool.remove("a"))
        await s.work()
        assert s.status("a") is DRAINING
        with pytest.raises(Unavailable, match="is being unloaded"):
            await s.pool.remove("a")
        late = asyncio.ensure_future(use())  # it waits for the end of the removal
        await s.work()
        held.release()
        while not (removing.done() and late.done()):
            await s.work()
        await removing
        assert s.loader.open == []
        assert len(s.loader.weights) == 1
        assert files.removed == ["a"]
        assert [state.spec.id for state in s.pool.states()] == ["b", "c"]


class Gated(Files):
    """A hub whose downloads wait."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def fetch(self, spec: ModelSpec, report: Callable[[FileProgress], None], wanted: Callable[[], bool]) -> ModelSpec:
        assert self.may_end.wait(60)
        return super().fetch(spec, report, wanted) if spec.path.name else spec


async def test_a_reload_leaves_a_model_alone_that_is_being_downloaded() -> None:
    files = Gated()
    async with pool_of("b", "c", fetcher=files) as s:
        await s.pool.download("org/a")
        await s.pool.reload([spec("org/a"), spec("b"), spec("c")])
        assert s.pool.state("org/a").spec.origin == "cache"
        files.may_end.set()
        while s.pool.knows("org/a"):
            await s.work()


async def test_a_model_that_was_reloaded_while_it_was_downloaded_has_its_new_names(tmp_path: Path) -> None:
    files, model = Gated(), ModelSpec("a", tmp_path / "a.gguf", remote=RemoteFiles(hf="org/a"))
    async with pool_of(model, "b", fetcher=files) as s:
        waiting = acquiring(s, "a")
        await spin()
        await s.pool.reload([replace(model, aliases=("mine",)), spec("b")])
        files.may_end.set()
        while not waiting.done():
            await s.work()
        waiting.result().release()
        assert s.pool.state("a").spec.aliases == ("mine",)


async def test_a_key_hears_that_its_model_was_removed() -> None:
    async with pool_of(spec("a", aliases=("mine",), origin="cache"), "b", "c", fetcher=Files()) as s:
        seen = s.pool.seen_by(lambda names: "mine" in names)
        with seen.subscribe() as events:
            (await loaded(s, "b")).release()
            removing = asyncio.ensure_future(s.pool.remove("a"))
            while not removing.done():
                await s.work()
            await removing
        assert [event async for event in events] == [ListChanged("a"), ListChanged(EVERY_MODEL)]


async def test_a_model_whose_file_goes_while_it_sleeps_is_fetched_again(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.touch()
    model = ModelSpec("a", path, remote=RemoteFiles(hf="org/a"), sleep_idle_s=60)
    async with pool_of(model, "b", fetcher=Files()) as s:
        (await loaded(s, "a")).release()
        await s.later(60)
        assert s.status("a") is SLEEPING
        path.unlink()
        waiting = acquiring(s, "a")
        while not waiting.done():  # the fetcher has a thread of its own
            await s.work()
        waiting.result().release()


@pytest.mark.parametrize("fault", [ValueError("no such tensor"), InvalidRequest("no such tensor")])
async def test_a_model_that_can_not_be_measured_is_tried_once(fault: Exception) -> None:
    class Broken(Loader):
        n_asked = 0

        def least(self, spec: ModelSpec) -> Footprint:
            self.n_asked += 1
            if self.n_asked == 10:
                raise SystemExit("it is measured again and again")
            raise fault

        def describe(self, spec: ModelSpec) -> NoReturn:
            raise ValueError("no such key")

    loader = Broken()
    async with pool_of(spec("a"), loader=loader, budget=Budget(Amount(100))) as s:
        loader.failing["a"] = ModelFailed("a", "no such tensor")
        with pytest.raises(ModelFailed, match="no such tensor"):
            await loaded(s, "a")
        assert loader.n_asked == 1


async def test_a_model_whose_template_is_broken_is_not_described() -> None:
    class Described(Loader):
        def describe(self, spec: ModelSpec) -> ModelInfo:
            return ModelInfo()

    def broken(info: ModelInfo, spec: ModelSpec) -> NoReturn:
        raise ConfigError("unexpected '}'")

    async with pool_of("a", "b", loader=Described()) as s:
        s.pool._factories = replace(s.factories, template=broken)
        with pytest.raises(ModelFailed, match="unexpected '}'"):
            await s.done(s.pool.describe("a"))
