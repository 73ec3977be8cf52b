"""The memory budget of a pool of fakes: measurement, eviction, shared weights, adapters, and random operations."""

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
from tests.unit.pool.fakes import PoolHarness, RecordingLoader, pool_of, spec, spin

BUDGET = 300
"""Bytes, enough for about three of the ten models."""
WEIGHT_BYTES = {f"m{i}": size for i, size in enumerate([100, 100, 90, 80, 60, 60, 50, 40, 150, 10])}
CONTEXT_BYTES = {"m4": 200, "m6": 80}
"""Sizes of contexts, which shrink to the bytes that are free."""


class SizedLoader(RecordingLoader):
    """Load models of the given sizes. ``excess``: bytes that a model takes beyond its measured size."""

    def __init__(
        self, sizes: Mapping[str, int] = WEIGHT_BYTES, context_bytes: Mapping[str, int] = CONTEXT_BYTES
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.context_bytes = context_bytes
        self.excess: dict[str, int] = {}
        self.fitted: list[str] = []

    def least(self, spec: ModelSpec) -> Footprint:
        return {HOST: Bytes(weights=self.sizes[spec.id])}

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        self.fitted.append(spec.id)
        n_bytes, free = self.sizes[spec.id], (granted or {})[HOST]
        if n_bytes > free:
            raise ModelFailed(spec.id, f"it needs {n_bytes}, and {free} are free")
        n_ctx = min(self.context_bytes.get(spec.id, 0), free - n_bytes)
        notes = ("less",) if n_ctx < self.context_bytes.get(spec.id, 0) else ()
        return Fit(replace(spec, native=replace(spec.native, n_ctx=n_ctx)), {HOST: Bytes(n_bytes, n_ctx)}, notes)

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        weights = super().load(spec, progress)
        taken = {HOST: Bytes(self.sizes[spec.id], spec.native.n_ctx, self.excess.get(spec.id, 0))}
        weights.footprint = lambda: taken  # type: ignore[method-assign]
        return weights

    @property
    def used_bytes(self) -> int:
        """Bytes of all models in memory."""
        return sum(weights.footprint()[HOST].total for weights in self.in_memory)


def sized_pool(*models: ModelSpec | str, loader: SizedLoader | None = None, budget: int = BUDGET, **limits: Any) -> Any:
    return pool_of(*models, loader=loader or SizedLoader(), budget=Budget(Amount(budget)), **limits)


async def test_startup_models_that_do_not_fit_together_do_not_evict_one_another() -> None:
    startup = [spec(model, load="startup") for model in ("m0", "m1", "m2", "m8")]
    async with sized_pool(*startup) as s:
        await s.pool.start()
        await s.run_jobs()
        assert [s.status(m) for m in ("m0", "m1", "m2", "m8")] == [Status.READY] * 3 + [Status.UNLOADED]
        assert not s.pool.starting
        await s.use("m8")
        assert s.status("m8") is Status.READY


@pytest.mark.parametrize("has_started", [True, False])
async def test_model_unloaded_during_or_before_its_measurement_can_be_loaded(has_started: bool) -> None:
    async with sized_pool(spec("m0", load="startup")) as s:
        await s.pool.start()
        if has_started:  # otherwise, the event loop does not run before `unload`
            await spin()
        assert s.pool.starting
        await s.pool.unload("m0")
        assert not s.pool.starting
        await s.use("m0")


async def test_requests_refused_after_wait_s_have_a_retry_after() -> None:
    async with sized_pool("m0", "m1", "m2", "m8", wait_s=60.0, patience_s=1000.0) as s:
        leases = [await s.lease(model) for model in ("m0", "m1", "m2")]
        waiting = s.start_acquire("m8")
        await s.run_jobs()
        await s.advance(59)
        assert not waiting.done()
        await s.advance(1)
        with pytest.raises(NoRoom, match="waited 60 s for memory") as refused:
            await waiting
        assert refused.value.retry_after_s > 0
        for lease in leases:
            lease.release()


async def test_request_that_names_a_startup_model_during_the_start_waits_at_most_wait_s_for_memory() -> None:
    startup = [spec(model, load="startup") for model in ("m0", "m1", "m2", "m8")]
    async with sized_pool(*startup, wait_s=60.0, patience_s=1000.0) as s:
        await s.pool.start()
        *others, waiting = [s.start_acquire(each.id) for each in startup]
        await s.run_until_loading("m0")
        await spin()
        s.clock.now += 100
        s.pool._scheduler.tick()
        assert not waiting.done()  # as long as models are loaded
        await s.run_jobs()
        await s.advance(60)
        with pytest.raises(NoRoom):
            await asyncio.wait_for(waiting, 10)
        assert not s.pool.starting
        for task in others:
            (await task).release()
        await s.use("m8")


async def test_request_late_in_the_start_waits_wait_s_from_its_arrival() -> None:
    startup = [spec(model, load="startup") for model in ("m0", "m1", "m2", "m8")]
    async with sized_pool(*startup, wait_s=60.0, patience_s=1000.0) as s:
        await s.pool.start()
        others = [s.start_acquire(each.id) for each in startup[:3]]
        await s.run_until_loading("m0")
        s.clock.now += 100
        waiting = s.start_acquire("m8")
        await s.run_jobs()
        await s.advance(59)
        assert not waiting.done()
        await s.advance(1)
        with pytest.raises(NoRoom):
            await asyncio.wait_for(waiting, 10)
        for task in others:
            (await task).release()


@pytest.mark.parametrize("has_request", [False, True])
async def test_restart_waits_for_the_load_of_another_model_longer_than_wait_s(has_request: bool) -> None:
    async with sized_pool("m0", "m1", wait_s=5.0) as s:
        await s.use("m0")
        s.loader.failing["m0"] = ModelFailed("m0", "bad luck")
        s.end_process("m0")
        await s.run_jobs()
        s.loader.failing.clear()
        other = s.start_acquire("m1")
        await s.run_until_loading("m1")
        for _ in range(3):
            s.clock.now += 4
            s.pool._scheduler.tick()
        late = [s.start_acquire("m0")] if has_request else []
        await spin()
        s.pool._scheduler.tick()
        await s.run_jobs()
        assert s.status("m0") is Status.READY
        for task in (other, *late):
            (await asyncio.wait_for(task, 60)).release()


async def test_model_reserves_its_memory_during_a_pause_before_its_restart() -> None:
    async with sized_pool(spec("m0", load="startup"), "m4") as s:
        await s.use("m0")
        for _ in range(2):  # the first restart has no pause
            s.end_process("m0")
            await s.run_jobs()
        lease = await s.lease("m4")  # takes 260 if they are free
        assert s.loader.used_bytes == BUDGET - WEIGHT_BYTES["m0"]
        await s.advance(1)
        assert s.status("m0") is Status.READY
        lease.release()


async def test_restart_is_given_up_when_the_request_that_waits_for_it_is_refused() -> None:
    async with sized_pool("m0", "m1", "m8", wait_s=5.0) as s:
        await s.use("m0")
        s.loader.failing["m0"] = ModelFailed("m0", "bad luck")
        s.end_process("m0")
        leases = [await s.lease("m1"), await s.lease("m8")]
        s.loader.failing.clear()
        waiting = s.start_acquire("m0")
        await s.advance(1)
        await s.advance(5)
        with pytest.raises(NoRoom):
            await waiting
        assert s.status("m0") is Status.UNLOADED
        for lease in leases:
            lease.release()


async def test_idle_model_is_evicted_when_another_takes_more_than_measured(caplog: pytest.LogCaptureFixture) -> None:
    loader = SizedLoader()
    loader.excess = {"m2": 60}
    async with sized_pool("m0", "m1", "m2", loader=loader) as s:
        for model in ("m0", "m1", "m2"):
            await s.use(model)
            s.clock.now += 1
        await s.advance(0)
        assert s.status("m0") is Status.UNLOADED
        assert loader.used_bytes == 250
    assert "model 'm2' took 150 bytes of CPU, 90 bytes were expected" in caplog.text


@pytest.mark.parametrize("pinned", [False, True])
async def test_no_model_is_evicted_while_one_that_never_fits_is_fitted(pinned: bool) -> None:
    loader = SizedLoader({"m0": 100, "m1": 60, "m2": 50, "big": BUDGET - 50 if pinned else BUDGET + 50})
    async with sized_pool(spec("m0", pinned=pinned), "m1", "m2", "big", loader=loader) as s:
        for model in ("m0", "m1", "m2"):
            await s.use(model)
        waiting = s.start_acquire("big")
        await s.run_until_loading("big")
        await s.advance(0)
        with pytest.raises(ModelFailed, match="are free"):
            await waiting
        assert [s.status(model) for model in ("m0", "m1", "m2")] == [Status.READY] * 3


async def test_model_is_fitted_again_only_if_its_context_was_reduced() -> None:
    async with sized_pool("m4", "m0", budget=400) as s:
        for model in ("m0", "m4", "m0"):
            await s.use(model)
            await s.complete(s.pool.unload(model))
        assert s.loader.fitted == ["m0", "m4"]
        loader = s.loader
    async with sized_pool("m4", "m0", loader=loader, budget=250) as s:
        for _ in range(2):  # its context was reduced, and more bytes may be free now
            await s.use("m4")
            await s.complete(s.pool.unload("m4"))
        assert loader.fitted == ["m0", "m4", "m4", "m4"]


class DamagedFileLoader(SizedLoader):
    """Fail for the file of m1."""

    def least(self, spec: ModelSpec) -> Footprint:
        self.describe(spec)
        return super().least(spec)

    def describe(self, spec: ModelSpec) -> ModelInfo:
        if spec.id == "m1":
            raise ModelFailed("m1", "truncated")
        return ModelInfo()


async def test_no_model_is_evicted_for_one_whose_file_is_damaged() -> None:
    async with sized_pool("m0", "m1", loader=DamagedFileLoader(), models_max=1) as s:
        await s.use("m0")
        loaded = s.pool.state("m0").loaded
        cancelled = s.start_acquire("m1")
        await spin()
        cancelled.cancel()
        await s.run_jobs()
        for _ in range(2):
            with pytest.raises(ModelFailed, match="truncated"):
                await s.lease("m1")
            assert (s.status("m1"), s.pool.state("m1").failure) == (Status.FAILED, "truncated")
            await s.advance(s.pool.limits.retry_failed_s)
        assert s.pool.state("m0").loaded is loaded


async def test_sleeping_model_whose_file_was_damaged_fails_to_wake() -> None:
    loader = DamagedFileLoader()
    async with sized_pool(spec("m0", sleep_idle_s=1), loader=loader) as s:
        await s.use("m0")
        await s.advance(1)
        assert s.status("m0") is Status.SLEEPING
        s.pool._entries["m0"].measured = None

        def damaged(spec: ModelSpec) -> Footprint:
            raise ModelFailed(spec.id, "truncated")

        loader.least = loader.describe = damaged  # type: ignore[method-assign, assignment]
        with pytest.raises(ModelFailed, match="truncated"):
            await s.lease("m0")
        assert (s.status("m0"), s.pool.state("m0").facts) == (Status.FAILED, None)


async def test_model_whose_file_was_replaced_is_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "m4.gguf"
    file.write_bytes(b"GGUF")
    loader = SizedLoader()
    async with sized_pool(replace(spec("m4"), path=file), "m0", loader=loader, budget=400) as s:
        for n_bytes in (100, 200, 200):
            if n_bytes != loader.sizes["m4"]:
                file.write_bytes(bytes(n_bytes))
                loader.sizes = {"m4": n_bytes, "m0": 300}
            if loader.fitted == ["m4"]:
                await s.use("m0")  # besides it, only the former file fits
            await s.use("m4")
            assert loader.used_bytes == n_bytes + min(CONTEXT_BYTES["m4"], 400 - n_bytes)
            await s.complete(s.pool.unload("m4"))
        assert loader.fitted == ["m4", "m0", "m4"]
        needed = s.pool._entries["m4"].need(s.pool.budget)  # private: an input of the policy that no endpoint shows
        assert needed == {HOST: 200}


async def test_file_replaced_while_its_model_waits_for_a_place_is_fitted(tmp_path: Path) -> None:
    file = tmp_path / "m4.gguf"
    file.write_bytes(b"GGUF")
    loader = SizedLoader()
    async with sized_pool(replace(spec("m4"), path=file), "m0", loader=loader, budget=400, models_max=1) as s:
        await s.use("m4")
        lease = await s.lease("m0")
        waiting = s.start_acquire("m4")
        await s.run_jobs()
        file.write_bytes(bytes(20))
        loader.sizes = {"m4": 20, "m0": 100}
        lease.release()
        await s.run_jobs()
        (await waiting).release()
        assert loader.fitted == ["m4", "m0", "m4"]
        assert loader.used_bytes == 20 + CONTEXT_BYTES["m4"]
        await s.pool.unload("m4")
        await s.use("m4")
        assert loader.fitted == ["m4", "m0", "m4"]
        assert s.pool._entries["m4"].need(s.pool.budget) == {HOST: 20}  # private: no endpoint shows it


async def test_settled_waits_for_a_load_whose_measurement_has_just_ended() -> None:
    async with sized_pool("m0") as s:
        await s.pool.load("m0")
        sizing = s.pool._entries["m0"].sizing
        assert sizing is not None
        while not sizing.done():  # its callback, which starts the load, has not run yet
            if s.threads.jobs:
                s.threads.run_job()
            await asyncio.sleep(0)
        jobs = asyncio.create_task(s.run_jobs())
        await s.pool.settled()
        assert s.status("m0") is Status.READY
        await jobs


async def test_event_loop_reads_no_file_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that hangs would block all requests."""
    calls: list[object] = []

    def stamps(paths: object) -> Stamps:
        calls.append(paths)
        return []

    monkeypatch.setattr("server.pool.spec.stamps", stamps)
    async with sized_pool("m0") as s:
        waiting = s.start_acquire("m0")
        await spin()
        assert calls == []
        await s.run_jobs()
        (await waiting).release()
        assert calls


@pytest.mark.parametrize("n_missing", [0, 1])
async def test_model_is_fitted_again_when_its_fit_target_is_no_longer_free(n_missing: int) -> None:
    async with sized_pool("m4", budget=400) as s:
        await s.use("m4")
        await s.complete(s.pool.unload("m4"))
        free = WEIGHT_BYTES["m4"] + CONTEXT_BYTES["m4"] + (max(LoadParams().fit_target) << 20) - n_missing
        s.loader.memory = lambda: {HOST: Memory(1 << 40, free)}
        await s.use("m4")
        assert s.loader.fitted == ["m4"] * (1 + n_missing)


class MemoryMachine(RuleBasedStateMachine):
    """Random operations on the pool. Each blocking job is a separate step, so that any interleaving can occur."""

    s: PoolHarness

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.waiting: list[asyncio.Task[Lease]] = []
        self.leases: list[Lease] = []
        self.loader = SizedLoader()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 1000))
    def release(self, which: int) -> None:
        lease = self.leases.pop(which % len(self.leases))

        async def release() -> None:
            lease.release()

        self.run(release())

    @rule(seconds=st.sampled_from([0.0, 1.0, 6.0, 11.0, 40.0]))
    def advance(self, seconds: float) -> None:
        async def tick() -> None:
            self.s.clock.now += seconds
            self.s.pool._scheduler.tick()

        self.run(tick())

    def collect(self) -> None:
        """Move granted leases to `leases`; any error must be a `LlamapoolError`."""
        for task in [t for t in self.waiting if t.done()]:
            self.waiting.remove(task)
            if task.cancelled():
                continue
            error = task.exception()
            if error is None:
                self.leases.append(task.result())
            else:
                assert isinstance(error, LlamapoolError)

    async def check_all_served(self) -> None:
        """Release every lease immediately, and check that no request waits for ever."""
        self.loader.failing = {}
        for engine in self.s.engines.created:
            engine.busy = False
        await self.s.advance(60)
        for _ in range(40):
            self.collect()
            while self.leases:
                self.leases.pop().release()
            await self.s.run_jobs()
        assert not self.waiting, "a request waits for ever"

    @initialize(
        models_max=st.sampled_from([0, 4]),
        pinned=st.booleans(),
        patience_s=st.sampled_from([0.0, 10.0]),
        wait_s=st.sampled_from([0.0, 30.0]),
    )
    def open_pool(self, models_max: int, pinned: bool, patience_s: float, wait_s: float) -> None:
        models = [
            spec(model, pinned=pinned and model == "m3", sleep_idle_s=30 if model == "m5" else -1)
            for model in WEIGHT_BYTES
        ]

        async def create() -> PoolHarness:
            limits: dict[str, Any] = {"models_max": models_max, "patience_s": patience_s, "wait_s": wait_s}
            limits["budget"] = Budget(Amount(BUDGET))
            return PoolHarness(*models, loader=self.loader, **limits)

        self.s = self.run(create())

    @rule(model=st.sampled_from(list(WEIGHT_BYTES)), autoload=st.sampled_from([True, True, False]))
    def acquire(self, model: str, autoload: bool) -> None:
        self.waiting.append(self.loop.create_task(self.s.pool.acquire(model, autoload=autoload)))

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 100))
    def cancel(self, which: int) -> None:
        self.waiting[which % len(self.waiting)].cancel()

    @rule(model=st.sampled_from(list(WEIGHT_BYTES)))
    def unload(self, model: str) -> None:
        with contextlib.suppress(InvalidRequest):
            self.run(self.s.pool.unload(model))

    @precondition(lambda self: self.s.threads.jobs)
    @rule(which=st.integers(0, 100), failing=st.sampled_from([False, False, False, True]))
    def run_job(self, which: int, failing: bool) -> None:
        self.loader.failing = {m: ModelFailed(m, "bad luck") for m in WEIGHT_BYTES} if failing else {}
        self.s.threads.run_job(which % len(self.s.threads.jobs))

    @rule(model=st.sampled_from(list(WEIGHT_BYTES)))
    def end_process(self, model: str) -> None:
        """End a model's process, which frees its memory immediately."""
        state = self.s.pool.state(model)

        async def end() -> None:
            if state.status is Status.READY and state.loaded is not None:
                state.loaded.weights.footprint = lambda: {HOST: Bytes()}  # type: ignore[method-assign]
            self.s.end_process(model)

        self.run(end())

    @rule(busy=st.booleans(), which=st.integers(0, 100))
    def set_busy(self, busy: bool, which: int) -> None:
        engines = [e for e in self.s.engines.created if not e.closed]
        if engines:
            engines[which % len(engines)].busy = busy

    @invariant()
    def budget_is_kept(self) -> None:
        if not hasattr(self, "s"):
            return
        self.run(spin())
        self.collect()
        assert self.loader.used_bytes <= BUDGET
        check_pool(self.s.pool)

    def teardown(self) -> None:
        try:
            if hasattr(self, "s"):
                self.run(self.check_all_served())
                closing = self.loop.create_task(self.s.pool.close(0))
                self.run(self.s.run_jobs())
                self.run(asyncio.wait_for(closing, 60))
                assert self.loader.in_memory == []
        finally:
            self.loop.close()


MemoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestRandomOperations = MemoryMachine.TestCase


class SharedWeightsLoader(SizedLoader):
    """Load models of 240 bytes, of which 200 are weights in a shared file."""

    def least(self, spec: ModelSpec) -> Footprint:
        return {HOST: Bytes(200, 40, shared=200)}

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        return Fit(spec, self.least(spec))

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        weights = RecordingLoader.load(self, spec, progress)
        weights.footprint = lambda: self.least(spec)  # type: ignore[method-assign]
        return weights


ENTRIES_OF_ONE_FILE = [replace(spec(model), path=Path("one.gguf")) for model in "abc"]


def taken(s: PoolHarness) -> int:
    """Return the bytes that the pool counts as used."""
    return s.pool._scheduler.memory.taken()[HOST]


async def test_weights_of_a_file_count_once_until_its_last_model_is_unloaded() -> None:
    async with sized_pool(*ENTRIES_OF_ONE_FILE, loader=SharedWeightsLoader()) as s:
        for n, model in enumerate("ab"):
            await s.use(model)
            assert taken(s) == 240 + 40 * n
        await s.use("c")  # evicts one model, which frees its context and no weights
        assert [s.status(model) for model in "abc"] == [Status.UNLOADED, Status.READY, Status.READY]
        assert taken(s) == 280
        await s.complete(s.pool.unload("b"))
        assert taken(s) == 240
        await s.use("a")
        assert [s.status(model) for model in "abc"] == [Status.READY, Status.UNLOADED, Status.READY]


async def test_weights_of_a_file_and_a_link_to_it_count_once(tmp_path: Path) -> None:
    file, link = tmp_path / "file.gguf", tmp_path / "link.gguf"
    file.write_bytes(b"GGUF")
    link.symlink_to(file)
    models = [replace(spec(model), path=path) for model, path in (("a", file), ("b", link))]
    async with sized_pool(*models, loader=SharedWeightsLoader()) as s:
        for model in "ab":
            await s.use(model)
        assert [s.status(model) for model in "ab"] == [Status.READY] * 2
        assert taken(s) == 280


async def test_models_that_load_a_file_with_different_params_share_no_weights() -> None:
    other = replace(ENTRIES_OF_ONE_FILE[1], native=LoadParams(mmap=False))
    async with sized_pool(ENTRIES_OF_ONE_FILE[0], other, loader=SharedWeightsLoader()) as s:
        for model in "ab":
            await s.use(model)
        assert [s.status(model) for model in "ab"] == [Status.UNLOADED, Status.READY]


async def test_prompt_caches_share_the_bytes_that_models_leave_free() -> None:
    async with pool_of("m0", "m1", loader=SizedLoader(), budget=Budget(Amount(BUDGET), caches=-1)) as s:

        def limits() -> list[int]:
            return [engine.cache_limit for engine in s.engines.created if not engine.closed]

        await s.use("m0")
        assert limits() == [200]
        await s.use("m1")
        assert limits() == [50, 50]
        configured, runtime = Adapter(0, "a.gguf", n_bytes=7), Adapter(1, "b.gguf", name="b", n_bytes=20)
        s.engines.created[1].adapters = (configured, runtime)
        s.pool.adapters_changed()
        assert limits() == [40, 40]
        s.engines.created[1].adapters = ()
        s.pool.adapters_changed()
        await s.complete(s.pool.unload("m0"))
        assert limits() == [200]


class AdapterLoader(SizedLoader):
    """Load models whose adapters take 10 bytes each. ``peak``: the highest `used_bytes`."""

    peak = 0

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        found = super().fit(spec, granted)
        return replace(found, footprint={HOST: Bytes(self.sizes[spec.id] + 10 * len(spec.native.lora))})

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        weights = super().load(spec, progress)
        taken = {HOST: Bytes(self.sizes[spec.id] + 10 * len(spec.native.lora))}
        weights.footprint = lambda: taken  # type: ignore[method-assign]
        self.peak = max(self.peak, self.used_bytes)
        return weights


async def test_adapter_that_is_loaded_again_after_sleep_counts_once() -> None:
    budget = Budget(Amount(BUDGET), caches=-1)
    async with pool_of(spec("m0", sleep_idle_s=60), "m1", loader=AdapterLoader(), budget=budget) as s:
        await s.use("m0")
        s.engines.created[0].adapters = (Adapter(0, "a.gguf", name="a", n_bytes=10),)
        s.pool.adapters_changed()
        assert s.engines.created[0].cache_limit == 190
        await s.advance(61)
        assert s.status("m0") is Status.SLEEPING
        await s.use("m0")
        engine = s.engines.created[1]
        assert [adapter.name for adapter in engine.adapters] == ["a"]
        assert engine.cache_limit == 190
        engine.adapters = ()
        s.pool.adapters_changed()
        assert engine.cache_limit == 200


async def test_sleeping_model_that_exceeds_the_budget_with_its_adapters_evicts_others() -> None:
    loader = AdapterLoader({"m0": BUDGET - 10, "m1": 60}, {})
    async with pool_of(spec("m0", sleep_idle_s=60), "m1", loader=loader, budget=Budget(Amount(BUDGET))) as s:
        await s.use("m0")
        s.engines.created[0].adapters = tuple(Adapter(i, f"{i}.gguf", name=f"{i}", n_bytes=10) for i in range(2))
        await s.advance(61)
        await s.use("m1")
        waiting = s.start_acquire("m0")
        await spin()
        s.threads.run_job()  # compares its file
        await spin()
        assert s.status("m1") is Status.DRAINING
        waiting.cancel()
        await spin()
        await s.complete(s.pool.unload("m0"))


async def test_memory_for_the_adapters_of_a_sleeping_model_is_freed_before_it_wakes() -> None:
    loader = AdapterLoader()
    async with pool_of(spec("m0", sleep_idle_s=60), "m1", "m2", loader=loader, budget=Budget(Amount(BUDGET))) as s:
        await s.use("m0")
        s.engines.created[0].adapters = tuple(Adapter(i, f"{i}.gguf", name=f"{i}", n_bytes=10) for i in range(2))
        s.pool.adapters_changed()
        await s.advance(61)
        for model in ("m1", "m2", "m0"):
            await s.use(model)
        assert s.status("m0") is Status.READY
        assert loader.peak <= BUDGET
