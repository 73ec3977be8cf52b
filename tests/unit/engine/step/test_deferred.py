"""The measured prefill rate on a device that still computes after a decode without outputs has returned."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from server.engine.runner_api import BatchEntry
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run

TOKEN_S, CALL_S = 0.001, 0.0001


class Device(FakeRunner):
    """Computes a token in `TOKEN_S`. If `deferred`, only decodes with outputs wait until the device is done."""

    def __init__(self, *, deferred: bool) -> None:
        super().__init__(n_seq=2, n_ctx_seq=2048, n_batch=128)
        self.info = replace(self.info, deferred=deferred)
        self.now = self.busy_until = 0.0

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        decoded = super().decode(entries)
        self.now += CALL_S
        self.busy_until = max(self.busy_until, self.now) + sum(len(e.tokens) for e in entries) * TOKEN_S
        if self.outputs or not self.info.deferred:
            self.now = self.busy_until
        return decoded


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("n_tokens", [200, 1000])
async def test_measured_prefill_rate_is_that_of_the_device(deferred: bool, n_tokens: int) -> None:
    runner = Device(deferred=deferred)
    async with engine_over(runner, clock=lambda: runner.now) as engine:
        await run(engine, *(request(letter * n_tokens, max_tokens=1) for letter in "ab"))
        (instance,) = engine._instances
        cost = instance.scheduler.move_budget
        assert cost.prefill_rate * TOKEN_S == pytest.approx(1, rel=0.1)
