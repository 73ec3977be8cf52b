"""The cost of requests that wait for a prefix, as a part of `budget`.

Requests with the same long prompt arrive together at an engine with a fake model. The first prefills the prompt. The
others wait in the queue, and the scheduler checks them in every step. The figure is the CPU time of the step thread per
waiting request and step. The goal is 50 us.
"""

import asyncio
import random
from dataclasses import dataclass

from benchmarks.budget.parts import TOKEN_PARTS, Threads
from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.engine.request import Event, Failed, Finished, Request, SamplingParams
from tests.support.fakes import FakeRunner

N_TOKENS, N_WAITERS, N_BATCH = 100_000, 63, 512
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class WaitCost:
    """Microseconds per waiting request and step, and the number of steps."""

    us: float
    n_steps: int


async def measure(n_tokens: int, n_waiters: int) -> WaitCost:
    """Measure until the last request has its first token."""
    rng = random.Random(1)
    prompt = [rng.randrange(256) for _ in range(n_tokens)]
    (place,) = [part for part in TOKEN_PARTS if part.name == "place"]
    runner = FakeRunner(n_seq=n_waiters + 1, n_ctx_seq=n_tokens + 64, n_batch=N_BATCH)
    engine = Engine([runner], EngineParams(), asyncio.get_running_loop())
    try:
        with Threads([place]) as threads:
            await asyncio.gather(*(_run_request(engine, [*prompt, *f" {i}".encode()]) for i in range(n_waiters + 1)))
            return WaitCost(1e6 * threads.seconds()["place"] / threads.n_steps / n_waiters, threads.n_steps)
    finally:
        await engine.close()


async def _run_request(engine: Engine, prompt: list[int]) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def sink(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Failed):
                done.set_exception(event.error)
            elif isinstance(event, Finished):
                done.set_result(None)

    engine.submit(Request("waiter", prompt, sampling=GREEDY, max_tokens=1), sink)
    await done
