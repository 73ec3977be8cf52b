"""Devices over the real library. There is no GPU where the tests run, so sets of devices that differ are names that
`no_devices` has the library take for none: it loads the file for each of them all the same."""

import asyncio
import ctypes
from pathlib import Path

import pytest

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.errors import ConfigError, ModelFailed
from server.llama.devices import add_remote_devices
from server.llama.library import C
from server.llama.loader import LlamaLoader
from server.llama.weights import params as loading
from server.pool.protocols import Weights
from server.pool.spec import DraftFile, LoadParams, ModelSpec
from tests.model.native_fixtures import load
from tests.unit.engine.builders import request, run

NATIVE = LoadParams(n_ctx=1024, n_parallel=2, n_threads=1, warmup=False)
Names = tuple[str, ...]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that the library opens."""
    opened: list[str] = []
    load_file = C.llama_model_load_from_file

    def count(path: bytes, params: ctypes.Structure) -> object:
        opened.append(Path(path.decode()).name)
        return load_file(path, params)

    monkeypatch.setattr(C, "llama_model_load_from_file", count)
    return opened


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Names]:
    """Sets of names that were looked for; the library gets an empty list for each."""
    seen: list[Names] = []

    def no_devices(names: Names) -> object:
        seen.append(tuple(names))
        return (ctypes.c_void_p * 1)(None)

    monkeypatch.setattr(loading, "device_array", no_devices)
    return seen


def load_on(path: Path, *sets: Names | None, draft: DraftFile | None = None) -> Weights:
    native = LoadParams(n_ctx=1024, n_parallel=2, n_threads=1, warmup=False, instances=len(sets), devices=sets)
    params = EngineParams(spec_type="draft-simple") if draft else EngineParams()
    return LlamaLoader().load(ModelSpec("tiny", path, native=native, draft=draft, engine=params), lambda _: True)


def test_machines_elsewhere_need_a_library_that_can_reach_them() -> None:
    with pytest.raises(ConfigError, match=r"of llama\.cpp has no RPC backend"):
        add_remote_devices(["127.0.0.1:1"])


@pytest.mark.parametrize(("name", "problem"), [("CUDA77", "is no device"), ("CPU", "is the CPU")])
def test_a_device_that_cannot_be_is_named(tiny_path: Path, name: str, problem: str) -> None:
    with pytest.raises(ModelFailed, match=f"device: '{name}' {problem}"):
        load(tiny_path, devices=((name,),))


async def test_instances_on_different_sets_answer_alike_from_weights_of_their_own(
    tiny_path: Path, loads: list[str], asked: list[Names]
) -> None:
    weights = load_on(tiny_path, ("A",), ("B", "C"))
    assert (loads, asked) == ([tiny_path.name] * 2, [("A",), ("B", "C")])
    engine = Engine([weights.runner(), weights.runner()], EngineParams(), asyncio.get_running_loop())
    try:
        replies = await run(engine, *(request("the quick brown fox", id_slot=i) for i in range(4)))
        assert [reply.error for reply in replies] == [None] * 4
        assert len({reply.text for reply in replies}) == 1
    finally:
        await engine.close()
        weights.close()


def test_a_draft_model_is_loaded_where_its_target_is(tiny_path: Path, loads: list[str], asked: list[Names]) -> None:
    weights = load_on(tiny_path, ("A",), ("B",), draft=DraftFile(tiny_path, NATIVE))
    assert (len(loads), asked) == (4, [("A",), ("A",), ("B",), ("B",)])
    runners = [weights.runner(), weights.runner()]
    assert all(runner.draft is not None for runner in runners)
    for runner in runners:
        runner.close()
    weights.close()


def test_a_second_load_that_fails_leaves_nothing_of_the_first(
    tiny_path: Path, asked: list[Names], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    freed: list[object] = []
    load_file, free = C.llama_model_load_from_file, C.llama_model_free

    def fail_second(path: bytes, params: ctypes.Structure) -> object:
        if made:
            return None
        made.append(load_file(path, params))
        return made[0]

    monkeypatch.setattr(C, "llama_model_load_from_file", fail_second)
    monkeypatch.setattr(C, "llama_model_free", lambda model: (freed.append(model), free(model))[1])  # type: ignore[func-returns-value]
    with pytest.raises(ModelFailed, match="gave no reason"):
        load_on(tiny_path, ("A",), ("B",))
    assert freed == made != []
