"""With ``cpu_range``, the compute threads of each instance stay on its processors; with ``prio`` they are as urgent."""

import asyncio
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from server.engine.engine import Engine
from server.engine.instances import bind
from server.engine.params import EngineParams
from server.errors import ModelFailed
from server.llama.context.batch import Run
from server.llama.loader import LlamaLoader
from server.llama.threads import ComputeThreads, bound
from server.pool.spec import LoadParams, ModelSpec, ThreadPlacement
from tests.unit.engine.builders import request, run

CPUS = sorted(os.sched_getaffinity(0))
two_processors = pytest.mark.skipif(len(CPUS) < 2, reason="one processor only: nothing to keep apart")


def threads() -> dict[str, str]:
    """The processors of each thread of this process, by its id; one that ends meanwhile is left out."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # when opened, when read
            lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
            found[task.name] = lines["Cpus_allowed_list"]
    return found


@two_processors
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


@two_processors
@pytest.mark.parametrize("strict", [False, True])
def test_prompts_are_computed_elsewhere_and_the_thread_that_decodes_comes_back(
    tiny_path: Path, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ComputeThreads, "change", lambda self: None)  # whatever else is at work here
    alone, batch = frozenset({CPUS[0]}), frozenset({CPUS[1]} if not strict else CPUS[:2])
    placement = ThreadPlacement(cpus_batch=batch, strict_batch=strict)
    native = LoadParams(n_ctx=1024, n_parallel=2, n_threads=2, n_threads_batch=2, warmup=False, placement=placement)
    weights = LlamaLoader().load(ModelSpec("tiny", tiny_path, native=native), lambda _: True)
    runner = weights.runner()
    before = threads()

    def where_after(tokens: range) -> list[str]:
        assert runner.decode([Run(0, tokens.start, list(tokens), n_outputs=1)])
        return sorted(cpus for thread, cpus in threads().items() if thread not in before)

    with ThreadPoolExecutor(1, "step", initializer=bind, initargs=(alone,)) as step:
        try:
            assert step.submit(where_after, range(5)).result() == [str(CPUS[0]), str(CPUS[1])]  # itself, a worker
            assert step.submit(where_after, range(5, 6)).result() == [str(CPUS[0])] * 2
        finally:
            step.submit(runner.close).result()
    weights.close()


def test_processors_that_are_not_here_are_refused(tiny_path: Path) -> None:
    placement = ThreadPlacement(cpus_batch=frozenset({max(CPUS) + 1}))
    with pytest.raises(ModelFailed, match="cpu_mask_batch, cpu_range_batch: there are only CPUs"):
        bound(ModelSpec("tiny", tiny_path, native=LoadParams(placement=placement)))
