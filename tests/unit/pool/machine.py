"""What state machines over the pool share: requests that wait, leases that are held, and that all of them end."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from server.errors import LlamapoolError
from server.pool.model import Lease
from tests.unit.pool.fakes import Setup


class Leases(RuleBasedStateMachine):
    """``s`` is made by the machine's own ``initialize``."""

    s: Setup

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.waiting: list[asyncio.Task[Lease]] = []
        self.leases: list[Lease] = []

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
            self.s.pool.tick()

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
