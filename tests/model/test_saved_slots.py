"""Slots and LoRA sets of a real process: saved, ended, started again, restored, and never under another set."""

import ctypes
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from server.engine.lora import NO_ADAPTERS
from server.engine.prefix_cache import SlotState
from server.llama.library import C
from server.pool.saved.format import STATE_MAGIC, STATE_VERSION, Description, encode
from tests.model.native_fixtures import open_runner, prefill, prompt_tokens
from tests.support.ggufs import MODELS, gguf_file
from tests.support.real_server import ROOT, RealServer, llamapool
from tests.support.sampling import sample

DEMO, PIRATE = ROOT / "models" / "demo.gguf", ROOT / "models" / "demo-lora.gguf"
KINDS = [
    (kind, unified)
    for kind in ("plain", "recurrent", "hybrid", "sliding-window")
    for unified in ("--kv-unified", "--no-kv-unified")
]
QUESTION = "What is the capital of France?"
Start = Callable[..., AbstractContextManager[RealServer]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """``start(*flags, model=DEMO)``: a server that saves its slots to `tmp_path`."""

    def begin(*flags: object, model: Path = DEMO) -> AbstractContextManager[RealServer]:
        fixed = ("-c", 1024, "-np", 2, "-t", 1, "--slot-save-path", tmp_path, "--no-warmup", "--cache-ram", 0)
        return llamapool(model, *map(str, (*fixed, *flags)))

    return begin


def ask(server: RealServer, **more: Any) -> tuple[str, int]:
    """The answer to `QUESTION`, and how many tokens of the prompt were reused."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 40}
    reply = server.post("/v1/chat/completions", body | more)
    return reply["choices"][0]["message"]["content"], reply["timings"]["cache_n"]


def act(server: RealServer, slot: int, action: str, name: str = "a.slot") -> dict[str, Any]:
    reply: dict[str, Any] = server.post(f"/slots/{slot}?action={action}", {"filename": name})
    return reply


def refusal(server: RealServer, name: str = "a.slot", slot: int = 0) -> str:
    reply = server.request("POST", f"/slots/{slot}?action=restore", {"filename": name})
    assert reply.status == 400, reply
    return str(reply.json()["error"]["message"])


def test_a_slot_outlives_its_process(start: Start, tmp_path: Path) -> None:
    with start() as server:
        answer, cached = ask(server, id_slot=0)
        saved = act(server, 0, "save")
        assert (cached, saved["n_written"]) == (0, (tmp_path / "a.slot").stat().st_size)
        assert saved["timings"]["save_ms"] > 0
    with start() as server:
        assert ask(server, id_slot=0)[1] == 0
        restored = act(server, 1, "restore")
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        again, cached = ask(server, id_slot=1)
        assert again == answer
        assert cached >= 10


@pytest.mark.parametrize(("kind", "unified"), sample(KINDS, 3))
def test_every_kind_of_memory_comes_back(start: Start, gguf_folder: Path, kind: str, unified: str) -> None:
    model = gguf_file(gguf_folder, MODELS[kind])
    prompt = {"prompt": [list(range(5, 65))] * 1, "temperature": 0, "ignore_eos": True}
    more = {"prompt": [list(range(5, 75))], "temperature": 0, "n_predict": 12, "ignore_eos": True}
    with start(unified, model=model) as server:
        server.post("/completion", prompt | {"n_predict": 0, "id_slot": 0})
        assert act(server, 0, "save")["n_saved"] == 60
        expected = server.post("/completion", more | {"id_slot": 1, "cache_prompt": False, "return_tokens": True})
        for slot in (0, 1):
            act(server, slot, "erase")
        assert act(server, 1, "restore")["n_restored"] == 60
        reply = server.post("/completion", more | {"id_slot": 1, "return_tokens": True})
        assert reply["timings"]["cache_n"] == 60
        assert reply["tokens"] == expected["tokens"]


def test_a_file_as_llama_server_writes_it_comes_back_and_no_part_of_it(start: Start, tmp_path: Path) -> None:
    with start() as server:
        expected, _ = ask(server, id_slot=0)
        act(server, 0, "save")
        content = (tmp_path / "a.slot").read_bytes()
        whole = content[: content.rindex(b'{"blake2b"')]
        for n_bytes in {*range(0, 100, 7), *range(100, len(whole), len(whole) // 40), len(whole) - 1}:
            (tmp_path / "part").write_bytes(whole[:n_bytes])
            assert refusal(server, "part", slot=1).startswith("Unable to restore slot: ")
        (tmp_path / "theirs").write_bytes(whole)
        assert act(server, 1, "restore", "theirs")["n_read"] == len(whole)
        act(server, 0, "erase")
        again, cached = ask(server, id_slot=1)
        assert again == expected
        assert cached > 10


def test_a_damaged_file_never_reaches_the_library(start: Start, tmp_path: Path) -> None:
    with start() as server:
        ask(server, id_slot=0)
        act(server, 0, "save")
        content = (tmp_path / "a.slot").read_bytes()
        for n, bad in enumerate((content[:12], b"", b"\0" * 5000)):
            (tmp_path / f"{n}").write_bytes(bad)
            assert refusal(server, f"{n}").startswith("Unable to restore slot: it is ")
        for at in range(0, len(content), len(content) // 40):
            (tmp_path / "changed").write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
            assert refusal(server, "changed").startswith("Unable to restore slot: it is ")
        assert ask(server, id_slot=0)[1] > 10


def test_the_pirate_speaks_for_who_asked_for_him_only(start: Start) -> None:
    with start("--lora", PIRATE) as server:
        assert [adapter["scale"] for adapter in server.get("/lora-adapters")] == [1.0]
        pirate, _ = ask(server, id_slot=0)
        assert pirate.startswith("Arr!")
        again, cached = ask(server, id_slot=0)
        assert (again, cached > 10) == (pirate, True)  # the same set: its cells are reused
        off = [{"id": 0, "scale": 0}]
        plain, cached = ask(server, id_slot=0, lora=off)
        assert cached == 0
        assert "Arr" not in plain
        assert server.post("/lora-adapters", []) == {"success": True}
        assert ask(server, id_slot=0)[0] == plain
        again, cached = ask(server, id_slot=0, lora=[{"id": 0, "scale": 1.0}])
        assert (again, cached) == (pirate, 0)


def test_new_scales_leave_a_running_request_its_manner(start: Start) -> None:
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 40}
    with start("--lora", PIRATE) as server:
        pirate, _ = ask(server)
        with server.open_stream("/v1/chat/completions", body) as stream:
            server.post("/lora-adapters", [{"id": 0, "scale": 0}])
            plain, _ = ask(server)
            rest = stream.read().decode()
        events = [json.loads(line[6:]) for line in rest.splitlines() if line.startswith("data: {")]
        text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    assert "Arr" not in plain
    assert pirate.endswith(text)
    assert "be Paris" in text


def test_a_saved_slot_remembers_who_spoke(start: Start) -> None:
    with start("--lora", PIRATE) as server:
        pirate, _ = ask(server, id_slot=0)
        act(server, 0, "save")
    with start("--lora", PIRATE) as server:
        act(server, 0, "restore")
        answer, cached = ask(server, id_slot=0)
        assert (answer, cached > 10) == (pirate, True)
        act(server, 1, "restore")
        plain, cached = ask(server, id_slot=1, lora=[{"id": 0, "scale": 0}])
        assert ("Arr" in plain, cached) == (False, 0)


def test_the_file_is_what_the_library_itself_writes(tiny_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    with open_runner(tiny_path) as runner:
        tokens = prompt_tokens(runner.vocab)
        prefill(runner, 1, tokens)
        packed = [-1, 1, len(tokens), *tokens, 0]
        words = (C.llama_token * len(packed))(*packed)
        n_bytes = C.llama_state_seq_save_file(runner._context, str(path).encode(), 1, words, len(words))
        state = runner.seq_save(1)
    description = Description({}, (), None, (), len(tokens), None)
    ours = b"".join(encode(SlotState(tokens, state, NO_ADAPTERS, 0), description))
    assert ours[:n_bytes] == path.read_bytes()
    path.write_bytes(ours)  # what comes behind the state does not trouble it
    with open_runner(tiny_path) as runner:
        found, n_found = (C.llama_token * len(packed))(), ctypes.c_size_t()
        n_read = C.llama_state_seq_load_file(
            runner._context, str(path).encode(), 1, found, len(found), ctypes.byref(n_found)
        )
        assert (n_read, list(found), n_found.value) == (n_bytes, packed, len(packed))
        assert runner.seq_save(1)[8:] == state[8:]
    assert (C.LLAMA_STATE_SEQ_MAGIC, C.LLAMA_STATE_SEQ_VERSION) == (STATE_MAGIC, STATE_VERSION)
