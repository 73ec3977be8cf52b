"""With ``cpu_range``, the compute threads of each instance stay on its processors."""

import asyncio
import os
from pathlib import Path

import pytest

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.llama.loader import LlamaLoader
from server.pool.spec import LoadParams, ModelSpec
from tests.unit.engine.builders import request, run

CPUS = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="one processor only: nothing to keep apart")


def threads() -> dict[str, str]:
    """The processors of each thread of this process, by its id."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        found[task.name] = lines["Cpus_allowed_list"]
    return found


async def test_compute_threads_inherit_the_processors_of_their_instance(tiny_path: Path) -> None:
    params = EngineParams(cpus=(frozenset({CPUS[0]}), frozenset({CPUS[1]})))
    native = LoadParams(n_ctx=1024, n_parallel=2, n_threads=2, warmup=False)
    spec = ModelSpec("tiny", tiny_path, native=native, engine=params)
    weights = LlamaLoader().load(spec, lambda _: True)
    before = threads()
    engine = Engine([weights.runner(), weights.runner()], params, asyncio.get_running_loop())
    try:
        replies = await run(engine, *(request("a prompt of some length", id_slot=i) for i in range(4)))
        assert [reply.error for reply in replies] == [None] * 4
        new = [cpus for thread, cpus in threads().items() if thread not in before]
        assert sorted(new) == [str(CPUS[0])] * 2 + [str(CPUS[1])] * 2  # a step thread and a worker each
    finally:
        await engine.close()
        weights.close()
