"""Any order of requests, cancels, loads, failures, sleep: the records stay true, and nobody waits for ever."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from server.errors import InvalidRequest, ModelFailed
from tests.support.fakes import FakeWeights
from tests.unit.pool.fakes import Setup, spec, spin
from tests.unit.pool.machine import Leases

MODELS = st.sampled_from("abc")
ANY = st.integers(0, 1000)


class PoolMachine(Leases):
    """Every blocking job and every tick is a step of its own, so that any interleaving can come up."""

    @initialize(
        models_max=st.integers(0, 2),
        stop_timeout_s=st.sampled_from([0.0, 1000.0]),
        patience_s=st.sampled_from([0.0, 10.0]),
        autoload=st.booleans(),
    )
    def begin(self, models_max: int, stop_timeout_s: float, patience_s: float, autoload: bool) -> None:
        self.models_max = models_max

        async def made() -> Setup:
            return Setup(
                spec("a", sleep_idle_s=30),
                spec("b", instances=2),
                spec("c", sleep_idle_s=5),
                models_max=models_max,
                stop_timeout_s=stop_timeout_s,
                patience_s=patience_s,
                autoload=autoload,
            )

        self.s = self.run(made())

    # ---- steps

    @rule(model=MODELS)
    def acquire(self, model: str) -> None:
        self.waiting.append(self.loop.create_task(self.s.pool.acquire(model)))

    @precondition(lambda self: self.waiting)
    @rule(which=ANY, settle=st.booleans())
    def cancel(self, which: int, settle: bool) -> None:
        self.waiting[which % len(self.waiting)].cancel()
        if settle:
            self.run(spin())

    @rule(model=MODELS)
    def load(self, model: str) -> None:
        self.try_to(self.s.pool.load(model))

    @rule(model=MODELS)
    def unload(self, model: str) -> None:
        self.try_to(self.s.pool.unload(model))

    def try_to(self, work: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(InvalidRequest):  # is, or is not, running
            self.run(work)

    @precondition(lambda self: self.s.threads.jobs)
    @rule(which=ANY, failing=st.booleans(), meanwhile=st.none() | MODELS)
    def run_job(self, which: int, failing: bool, meanwhile: str | None) -> None:
        self.s.loader.failing = {m: ModelFailed(m, "bad luck") for m in "abc"} if failing else {}
        self.s.threads.run(which % len(self.s.threads.jobs))
        if meanwhile is not None:  # the job's result is there, the loop hasn't seen it yet
            self.unload(meanwhile)

    @rule(busy=st.booleans(), which=ANY)
    def work(self, busy: bool, which: int) -> None:
        engines = [e for e in self.s.engines.made if not e.closed]
        if engines:
            engines[which % len(engines)].busy = busy

    # ---- what always holds

    @invariant()
    def records_are_true(self) -> None:
        if not hasattr(self, "s"):
            return
        self.run(spin())
        self.collect()
        self.s.pool.check_integrity()
        assert sum(state.n_leases for state in self.s.pool.states()) == len(self.leases)
        for lease in self.leases:
            weights = lease.model.weights
            assert isinstance(weights, FakeWeights)
            assert not weights.closed, "weights were freed under a lease"
        if self.models_max:
            assert len(self.s.loader.open) <= self.models_max

    # ---- and in the end

    def teardown(self) -> None:
        try:
            if hasattr(self, "s"):
                self.run(self.everybody_is_served())
                self.run(self.everything_is_freed())
        finally:
            self.loop.close()

    async def everybody_is_served(self) -> None:
        self.s.loader.failing = {}
        for engine in self.s.engines.made:
            engine.busy = False
        await self.s.later(1)  # from here on releases alone must do
        await self.nobody_waits(20)

    async def everything_is_freed(self) -> None:
        closing = asyncio.ensure_future(self.s.pool.close(0))
        await self.s.work()
        await asyncio.wait_for(closing, 60)
        assert self.s.loader.open == []
        assert all(engine.closed for engine in self.s.engines.made)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestAnyOrderOfOperations = PoolMachine.TestCase
