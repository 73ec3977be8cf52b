"""Ten models on a budget for three, under any load: no byte is promised twice, and everybody is served."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from server.engine.lora import Adapter
from server.errors import InvalidRequest, LlamapoolError, ModelFailed, NoRoom
from server.pool.memory import HOST, Amount, Budget, Bytes, Fit, Footprint, Memory
from server.pool.model import Lease
from server.pool.protocols import ModelInfo
from server.pool.spec import LoadParams, ModelSpec, Stamps
from server.pool.state import Status
from tests.support.fakes import FakeWeights
from tests.support.pool_integrity import check_pool
from tests.unit.pool.fakes import Loader, Setup, acquiring, loaded, pool_of, spec, spin

BUDGET = 300
LEAST = {f"m{i}": size for i, size in enumerate([100, 100, 90, 80, 60, 60, 50, 40, 150, 10])}
WISHES = {"m4": 200, "m6": 80}  # how much more they would take


class Sized(Loader):
    """Sizes as `LEAST` says; ``wrong`` is how much more a model takes than was measured."""

    def __init__(self, sizes: Mapping[str, int] = LEAST, wishes: Mapping[str, int] = WISHES) -> None:
        super().__init__()
        self.sizes = sizes
        self.wishes = wishes
        self.wrong: dict[str, int] = {}
        self.fitted: list[str] = []

    def least(self, spec: ModelSpec) -> Footprint:
        return {HOST: Bytes(weights=self.sizes[spec.id])}

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        self.fitted.append(spec.id)
        least, room = self.sizes[spec.id], (granted or {})[HOST]
        if least > room:
            raise ModelFailed(spec.id, f"it needs {least}, and {room} are free")
        n_ctx = min(self.wishes.get(spec.id, 0), room - least)
        notes = ("less",) if n_ctx < self.wishes.get(spec.id, 0) else ()
        return Fit(replace(spec, native=replace(spec.native, n_ctx=n_ctx)), {HOST: Bytes(least, n_ctx)}, notes)

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        weights = super().load(spec, progress)
        taken = {HOST: Bytes(self.sizes[spec.id], spec.native.n_ctx, self.wrong.get(spec.id, 0))}
        weights.footprint = lambda: taken  # type: ignore[method-assign]
        return weights

    @property
    def held(self) -> int:
        """Bytes of everything that is in memory now."""
        return sum(weights.footprint()[HOST].total for weights in self.open)


def sized_pool(*models: ModelSpec | str, loader: Sized | None = None, budget: int = BUDGET, **limits: Any) -> Any:
    return pool_of(*models, loader=loader or Sized(), budget=Budget(Amount(budget)), **limits)


async def test_models_of_the_start_that_do_not_fit_together_do_not_evict_one_another() -> None:
    startup = [spec(model, load="startup") for model in ("m0", "m1", "m2", "m8")]
    async with sized_pool(*startup) as s:
        await s.pool.start()
        await s.work()
        assert [s.status(m) for m in ("m0", "m1", "m2", "m8")] == [Status.READY] * 3 + [Status.UNLOADED]
        assert not s.pool.starting
        (await loaded(s, "m8")).release()
        assert s.status("m8") is Status.READY


async def test_a_model_that_is_unloaded_while_it_is_measured_at_the_start_is_measured_and_loaded_again() -> None:
    async with sized_pool(spec("m0", load="startup")) as s:
        await s.pool.start()
        await spin()
        assert s.pool.starting
        await s.pool.unload("m0")
        assert not s.pool.starting
        (await loaded(s, "m0")).release()


async def test_a_model_that_is_unloaded_before_its_measurement_began_is_loaded_by_the_next_request() -> None:
    async with sized_pool("m0") as s:
        await s.pool.load("m0")  # no step of the event loop between the two
        await s.pool.unload("m0")
        (await loaded(s, "m0")).release()


async def test_requests_that_waited_too_long_are_told_when_to_come_back() -> None:
    async with sized_pool("m0", "m1", "m2", "m8", wait_s=60.0, patience_s=1000.0) as s:
        leases = [await loaded(s, model) for model in ("m0", "m1", "m2")]
        waiting = acquiring(s, "m8")
        await s.work()
        await s.later(59)
        assert not waiting.done()
        await s.later(1)
        with pytest.raises(NoRoom, match="waited 60 s for memory") as refused:
            await waiting
        assert refused.value.retry_after_s > 0
        for lease in leases:
            lease.release()


@pytest.mark.parametrize("is_asked_for", [False, True])
async def test_a_restart_waits_for_the_load_of_another_model_however_long_that_takes(is_asked_for: bool) -> None:
    async with sized_pool("m0", "m1", wait_s=5.0) as s:
        (await loaded(s, "m0")).release()
        s.loader.failing["m0"] = ModelFailed("m0", "bad luck")
        s.end_process("m0")
        await s.work()
        s.loader.failing.clear()
        other = acquiring(s, "m1")
        await s.begun("m1")
        for _ in range(3):
            s.clock.now += 4
            s.pool._scheduler.tick()
        late = [acquiring(s, "m0")] if is_asked_for else []  # it has not waited yet
        await spin()
        s.pool._scheduler.tick()
        await s.work()
        assert s.status("m0") is Status.READY
        for asked in (other, *late):
            (await asyncio.wait_for(asked, 60)).release()


async def test_a_model_in_a_pause_before_its_restart_reserves_its_memory() -> None:
    async with sized_pool(spec("m0", load="startup"), "m4") as s:
        (await loaded(s, "m0")).release()
        for _ in range(2):  # the first restart has no pause
            s.end_process("m0")
            await s.work()
        held = await loaded(s, "m4")  # it would take 260
        assert s.loader.held == BUDGET - LEAST["m0"]
        await s.later(1)
        assert s.status("m0") is Status.READY
        held.release()


async def test_a_restart_that_a_request_waits_for_in_vain_ends() -> None:
    async with sized_pool("m0", "m1", "m8", wait_s=5.0) as s:
        (await loaded(s, "m0")).release()
        s.loader.failing["m0"] = ModelFailed("m0", "bad luck")
        s.end_process("m0")
        held = [await loaded(s, "m1"), await loaded(s, "m8")]
        s.loader.failing.clear()
        asked = acquiring(s, "m0")
        await s.later(1)
        await s.later(5)
        with pytest.raises(NoRoom):
            await asked
        assert s.status("m0") is Status.UNLOADED
        for lease in held:
            lease.release()


async def test_a_model_that_took_more_than_was_measured_costs_idle_ones_their_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = Sized()
    loader.wrong = {"m2": 60}
    async with sized_pool("m0", "m1", "m2", loader=loader) as s:
        for model in ("m0", "m1", "m2"):
            (await loaded(s, model)).release()
            s.clock.now += 1
        await s.later(0)
        assert s.status("m0") is Status.UNLOADED
        assert loader.held == 250
    assert "model 'm2' took 150 bytes of CPU, 90 bytes were expected" in caplog.text


async def test_a_model_that_had_all_it_could_have_is_not_measured_again() -> None:
    async with sized_pool("m4", "m0", budget=400) as s:
        for model in ("m0", "m4", "m0"):
            (await loaded(s, model)).release()
            await s.done(s.pool.unload(model))
        assert s.loader.fitted == ["m0", "m4"]
        loader = s.loader
    async with sized_pool("m4", "m0", loader=loader, budget=250) as s:
        for _ in range(2):  # less than it could have: there may be more now
            (await loaded(s, "m4")).release()
            await s.done(s.pool.unload("m4"))
        assert loader.fitted == ["m0", "m4", "m4", "m4"]


class OneUnreadable(Sized):
    """The file of m1 cannot be loaded."""

    def least(self, spec: ModelSpec) -> Footprint:
        self.describe(spec)
        return super().least(spec)

    def describe(self, spec: ModelSpec) -> ModelInfo:
        if spec.id == "m1":
            raise ModelFailed("m1", "truncated")
        return ModelInfo()


async def test_no_model_is_unloaded_for_one_whose_file_cannot_be_loaded() -> None:
    async with sized_pool("m0", "m1", loader=OneUnreadable(), models_max=1) as s:
        (await loaded(s, "m0")).release()
        kept = s.pool.state("m0").loaded
        left = acquiring(s, "m1")
        await spin()
        left.cancel()
        await s.work()
        for _ in range(2):
            with pytest.raises(ModelFailed, match="truncated"):
                await loaded(s, "m1")
            assert (s.status("m1"), s.pool.state("m1").failure) == (Status.FAILED, "truncated")
            await s.later(s.pool.limits.retry_failed_s)
        assert s.pool.state("m0").loaded is kept


async def test_a_model_that_sleeps_and_whose_file_is_damaged_meanwhile_fails() -> None:
    loader = OneUnreadable()
    async with sized_pool(spec("m0", sleep_idle_s=1), loader=loader) as s:
        (await loaded(s, "m0")).release()
        await s.later(1)
        assert s.status("m0") is Status.SLEEPING
        s.pool._entries["m0"].measured = None  # as where it was never measured

        def damaged(spec: ModelSpec) -> Footprint:
            raise ModelFailed(spec.id, "truncated")

        loader.least = loader.describe = damaged  # type: ignore[method-assign, assignment]
        with pytest.raises(ModelFailed, match="truncated"):
            await loaded(s, "m0")
        assert (s.status("m0"), s.pool.state("m0").facts) == (Status.FAILED, None)


async def test_a_model_whose_file_was_replaced_is_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "m4.gguf"
    file.write_bytes(b"GGUF")
    loader = Sized()
    async with sized_pool(replace(spec("m4"), path=file), "m0", loader=loader, budget=400) as s:
        for n_bytes in (100, 200, 200):
            if n_bytes != loader.sizes["m4"]:
                file.write_bytes(bytes(n_bytes))
                loader.sizes = {"m4": n_bytes, "m0": 300}
            if loader.fitted == ["m4"]:
                (await loaded(s, "m0")).release()  # beside which only the former file fits
            (await loaded(s, "m4")).release()
            assert loader.held == n_bytes + min(WISHES["m4"], 400 - n_bytes)
            await s.done(s.pool.unload("m4"))
        assert loader.fitted == ["m4", "m0", "m4"]
        needed = s.pool._entries["m4"].need(s.pool.budget)  # no endpoint shows it; the policy decides by it
        assert needed == {HOST: 200}


async def test_a_file_that_is_replaced_while_its_model_waits_for_a_place_is_fitted(tmp_path: Path) -> None:
    file = tmp_path / "m4.gguf"
    file.write_bytes(b"GGUF")
    loader = Sized()
    async with sized_pool(replace(spec("m4"), path=file), "m0", loader=loader, budget=400, models_max=1) as s:
        (await loaded(s, "m4")).release()
        held = await loaded(s, "m0")
        waiting = acquiring(s, "m4")
        await s.work()
        file.write_bytes(bytes(20))
        loader.sizes = {"m4": 20, "m0": 100}
        held.release()
        await s.work()
        (await waiting).release()
        assert loader.fitted == ["m4", "m0", "m4"]
        assert loader.held == 20 + WISHES["m4"]
        await s.pool.unload("m4")
        (await loaded(s, "m4")).release()
        assert loader.fitted == ["m4", "m0", "m4"]
        assert s.pool._entries["m4"].need(s.pool.budget) == {HOST: 20}  # no endpoint shows it; the policy decides by it


async def test_a_pool_has_not_settled_between_a_measurement_and_its_load() -> None:
    async with sized_pool("m0") as s:
        await s.pool.load("m0")
        sizing = s.pool._entries["m0"].sizing
        assert sizing is not None
        while not sizing.done():  # its callback, which begins the load, comes after this
            if s.threads.jobs:
                s.threads.run()
            await asyncio.sleep(0)
        working = asyncio.create_task(s.work())
        await s.pool.settled()
        assert s.status("m0") is Status.READY
        await working


async def test_the_event_loop_looks_at_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []

    def stamps(paths: object) -> Stamps:
        looked.append(paths)
        return []

    monkeypatch.setattr("server.pool.spec.stamps", stamps)
    async with sized_pool("m0") as s:
        waiting = acquiring(s, "m0")
        await spin()
        assert looked == []  # a mount that hangs would stop all requests
        await s.work()
        (await waiting).release()
        assert looked


@pytest.mark.parametrize("lacking", [0, 1])
async def test_a_model_is_measured_again_when_its_reserve_is_no_longer_free(lacking: int) -> None:
    async with sized_pool("m4", budget=400) as s:
        (await loaded(s, "m4")).release()
        await s.done(s.pool.unload("m4"))
        free = LEAST["m4"] + WISHES["m4"] + (max(LoadParams().fit_target) << 20) - lacking
        s.loader.memory = lambda: {HOST: Memory(1 << 40, free)}
        (await loaded(s, "m4")).release()
        assert s.loader.fitted == ["m4"] * (1 + lacking)


class MemoryMachine(RuleBasedStateMachine):
    """Every blocking job is a step of its own, so that any interleaving can occur."""

    s: Setup

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.waiting: list[asyncio.Task[Lease]] = []
        self.leases: list[Lease] = []
        self.loader = Sized()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 1000))
    def release(self, which: int) -> None:
        lease = self.leases.pop(which % len(self.leases))

        async def released() -> None:
            lease.release()

        self.run(released())

    @rule(seconds=st.sampled_from([0.0, 1.0, 6.0, 11.0, 40.0]))
    def later(self, seconds: float) -> None:
        async def tick() -> None:
            self.s.clock.now += seconds
            self.s.pool._scheduler.tick()

        self.run(tick())

    def collect(self) -> None:
        """Leases that came, and errors, each of which must be one of ours."""
        for task in [t for t in self.waiting if t.done()]:
            self.waiting.remove(task)
            if task.cancelled():
                continue
            error = task.exception()
            if error is None:
                self.leases.append(task.result())
            else:
                assert isinstance(error, LlamapoolError)

    async def nobody_waits(self, rounds: int) -> None:
        """After so many rounds in which every lease is released at once."""
        for _ in range(rounds):
            self.collect()
            while self.leases:
                self.leases.pop().release()
            await self.s.work()
        assert not self.waiting, "somebody waits for ever"

    @initialize(
        models_max=st.sampled_from([0, 4]),
        pinned=st.booleans(),
        patience_s=st.sampled_from([0.0, 10.0]),
        wait_s=st.sampled_from([0.0, 30.0]),
    )
    def begin(self, models_max: int, pinned: bool, patience_s: float, wait_s: float) -> None:
        models = [
            spec(model, pinned=pinned and model == "m3", sleep_idle_s=30 if model == "m5" else -1) for model in LEAST
        ]

        async def made() -> Setup:
            limits: dict[str, Any] = {"models_max": models_max, "patience_s": patience_s, "wait_s": wait_s}
            limits["budget"] = Budget(Amount(BUDGET))
            return Setup(*models, loader=self.loader, **limits)

        self.s = self.run(made())

    @rule(model=st.sampled_from(list(LEAST)), autoload=st.sampled_from([True, True, False]))
    def acquire(self, model: str, autoload: bool) -> None:
        self.waiting.append(self.loop.create_task(self.s.pool.acquire(model, autoload=autoload)))

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 100))
    def cancel(self, which: int) -> None:
        self.waiting[which % len(self.waiting)].cancel()

    @rule(model=st.sampled_from(list(LEAST)))
    def unload(self, model: str) -> None:
        with contextlib.suppress(InvalidRequest):
            self.run(self.s.pool.unload(model))

    @precondition(lambda self: self.s.threads.jobs)
    @rule(which=st.integers(0, 100), failing=st.sampled_from([False, False, False, True]))
    def run_job(self, which: int, failing: bool) -> None:
        self.loader.failing = {m: ModelFailed(m, "bad luck") for m in LEAST} if failing else {}
        self.s.threads.run(which % len(self.s.threads.jobs))

    @rule(model=st.sampled_from(list(LEAST)))
    def end(self, model: str) -> None:
        """A process ends, so its memory is free at once."""
        state = self.s.pool.state(model)

        async def ended() -> None:
            if state.status is Status.READY and state.loaded is not None:
                state.loaded.weights.footprint = lambda: {HOST: Bytes()}  # type: ignore[method-assign]
            self.s.end_process(model)

        self.run(ended())

    @rule(busy=st.booleans(), which=st.integers(0, 100))
    def work(self, busy: bool, which: int) -> None:
        engines = [e for e in self.s.engines.made if not e.closed]
        if engines:
            engines[which % len(engines)].busy = busy

    @invariant()
    def no_byte_is_promised_twice(self) -> None:
        if not hasattr(self, "s"):
            return
        self.run(spin())
        self.collect()
        assert self.loader.held <= BUDGET
        check_pool(self.s.pool)

    def teardown(self) -> None:
        try:
            if hasattr(self, "s"):
                self.run(self.everybody_is_served())
                closing = self.loop.create_task(self.s.pool.close(0))
                self.run(self.s.work())
                self.run(asyncio.wait_for(closing, 60))
                assert self.loader.open == []
        finally:
            self.loop.close()

    async def everybody_is_served(self) -> None:
        self.loader.failing = {}
        for engine in self.s.engines.made:
            engine.busy = False
        await self.s.later(60)
        await self.nobody_waits(40)


MemoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestAnyLoad = MemoryMachine.TestCase


class Sharing(Sized):
    """Models of 240, of which 200 are weights of one file."""

    def least(self, spec: ModelSpec) -> Footprint:
        return {HOST: Bytes(200, 40, shared=200)}

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        return Fit(spec, self.least(spec))

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        weights = Loader.load(self, spec, progress)
        weights.footprint = lambda: self.least(spec)  # type: ignore[method-assign]
        return weights


ENTRIES = [replace(spec(model), path=Path("one.gguf")) for model in "abc"]


def taken(s: Setup) -> int:
    return s.pool._scheduler.memory.taken()[HOST]


async def test_entries_over_one_file_count_its_weights_once_and_until_the_last_is_unloaded() -> None:
    async with sized_pool(*ENTRIES, loader=Sharing()) as s:
        for n, model in enumerate("ab"):
            (await loaded(s, model)).release()
            assert taken(s) == 240 + 40 * n
        (await loaded(s, "c")).release()  # a context has to go, and no weights
        assert [s.status(model) for model in "abc"] == [Status.UNLOADED, Status.READY, Status.READY]
        assert taken(s) == 280
        await s.done(s.pool.unload("b"))
        assert taken(s) == 240
        (await loaded(s, "a")).release()
        assert [s.status(model) for model in "abc"] == [Status.READY, Status.UNLOADED, Status.READY]


async def test_entries_that_load_a_file_differently_share_nothing() -> None:
    other = replace(ENTRIES[1], native=LoadParams(mmap=False))
    async with sized_pool(ENTRIES[0], other, loader=Sharing()) as s:
        for model in "ab":
            (await loaded(s, model)).release()
        assert [s.status(model) for model in "ab"] == [Status.UNLOADED, Status.READY]


async def test_caches_share_what_models_leave() -> None:
    async with pool_of("m0", "m1", loader=Sized(), budget=Budget(Amount(BUDGET), caches=-1)) as s:

        def limits() -> list[int]:
            return [engine.cache_limit for engine in s.engines.made if not engine.closed]

        (await loaded(s, "m0")).release()
        assert limits() == [200]
        (await loaded(s, "m1")).release()
        assert limits() == [50, 50]
        configured, runtime = Adapter(0, "a.gguf", n_bytes=7), Adapter(1, "b.gguf", name="b", n_bytes=20)
        s.engines.made[1].adapters = (configured, runtime)
        s.pool.adapters_changed()
        assert limits() == [40, 40]
        s.engines.made[1].adapters = ()
        s.pool.adapters_changed()
        await s.done(s.pool.unload("m0"))
        assert limits() == [200]


class WithAdapters(Sized):
    """Each adapter of a model takes 10 bytes. ``peak``: the most bytes that were in memory."""

    peak = 0

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        found = super().fit(spec, granted)
        return replace(found, footprint={HOST: Bytes(self.sizes[spec.id] + 10 * len(spec.native.lora))})

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        weights = super().load(spec, progress)
        taken = {HOST: Bytes(self.sizes[spec.id] + 10 * len(spec.native.lora))}
        weights.footprint = lambda: taken  # type: ignore[method-assign]
        self.peak = max(self.peak, self.held)
        return weights


async def test_an_adapter_that_is_loaded_again_after_sleep_counts_once() -> None:
    budget = Budget(Amount(BUDGET), caches=-1)
    async with pool_of(spec("m0", sleep_idle_s=60), "m1", loader=WithAdapters(), budget=budget) as s:
        (await loaded(s, "m0")).release()
        s.engines.made[0].adapters = (Adapter(0, "a.gguf", name="a", n_bytes=10),)
        s.pool.adapters_changed()
        assert s.engines.made[0].cache_limit == 190
        await s.later(61)
        assert s.status("m0") is Status.SLEEPING
        (await loaded(s, "m0")).release()
        woken = s.engines.made[1]
        assert [adapter.name for adapter in woken.adapters] == ["a"]
        assert woken.cache_limit == 190
        woken.adapters = ()
        s.pool.adapters_changed()
        assert woken.cache_limit == 200


async def test_a_model_that_only_exceeds_the_budget_with_its_adapters_wakes_in_the_place_of_another() -> None:
    loader = WithAdapters({"m0": BUDGET - 10, "m1": 60}, {})
    async with pool_of(spec("m0", sleep_idle_s=60), "m1", loader=loader, budget=Budget(Amount(BUDGET))) as s:
        (await loaded(s, "m0")).release()
        s.engines.made[0].adapters = tuple(Adapter(i, f"{i}.gguf", name=f"{i}", n_bytes=10) for i in range(2))
        await s.later(61)
        (await loaded(s, "m1")).release()
        asked = acquiring(s, "m0")
        await spin()
        s.threads.run()  # compares its file
        await spin()
        assert s.status("m1") is Status.DRAINING
        asked.cancel()
        await spin()
        await s.done(s.pool.unload("m0"))


async def test_memory_for_the_adapters_of_a_sleeping_model_is_free_before_it_wakes() -> None:
    loader = WithAdapters()
    async with pool_of(spec("m0", sleep_idle_s=60), "m1", "m2", loader=loader, budget=Budget(Amount(BUDGET))) as s:
        (await loaded(s, "m0")).release()
        s.engines.made[0].adapters = tuple(Adapter(i, f"{i}.gguf", name=f"{i}", n_bytes=10) for i in range(2))
        s.pool.adapters_changed()
        await s.later(61)
        for model in ("m1", "m2", "m0"):
            (await loaded(s, model)).release()
        assert s.status("m0") is Status.READY
        assert loader.peak <= BUDGET
