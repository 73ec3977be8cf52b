"""Saved slots and the disk cache across restarts, and files of earlier versions, with native models."""

import contextlib
import ctypes
import json
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from server.engine.cache.prefix_cache import CacheEntry
from server.engine.lora import NO_ADAPTERS
from server.llama.library import C
from server.pool.saved.format import STATE_MAGIC, STATE_VERSION, Description, encode
from tests.model.formats import FACTS, FOLDER, SLOT, complete, library, serve
from tests.model.native_fixtures import open_runner, prefill, prompt_tokens
from tests.support.ggufs import MODELS, gguf_file
from tests.support.real_server import EXACT, ROOT, RealServer, llamapool
from tests.support.waiting import wait_until

DEMO, PIRATE = ROOT / "models" / "demo.gguf", ROOT / "models" / "demo-lora.gguf"
QUESTION = "What is the capital of France?"
Start = Callable[..., AbstractContextManager[RealServer]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """``start(*flags, model=DEMO)``: start a server that saves its slots to `tmp_path`."""

    def start_server(*flags: object, model: Path = DEMO) -> AbstractContextManager[RealServer]:
        fixed = ("-c", 1024, "-np", 2, "-t", 1, "--slot-save-path", tmp_path, "--no-warmup", "--cache-ram", 0)
        return llamapool(model, *map(str, (*fixed, *flags)))

    return start_server


CHAT = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 40}


def post_chat(server: RealServer, **fields: Any) -> tuple[str, int]:
    """Return the reply to `QUESTION`, and the number of cached tokens."""
    reply = server.post("/v1/chat/completions", CHAT | fields)
    return reply["choices"][0]["message"]["content"], reply["timings"]["cache_n"]


def post_slot(server: RealServer, slot: int, action: str) -> dict[str, Any]:
    reply: dict[str, Any] = server.post(f"/slots/{slot}?action={action}", {"filename": "a.slot"})
    return reply


def test_a_saved_slot_is_restored_after_a_restart_with_its_lora_scales(start: Start, tmp_path: Path) -> None:
    with start("--lora", PIRATE) as server:
        content, cached = post_chat(server, id_slot=0)
        assert content.startswith("Arr!")
        saved = post_slot(server, 0, "save")
        assert (cached, saved["n_written"]) == (0, (tmp_path / "a.slot").stat().st_size)
        with server.open_stream("/v1/chat/completions", CHAT) as stream:  # continues with the scales of its start
            server.post("/lora-adapters", [{"id": 0, "scale": 0}])
            plain, _ = post_chat(server)
            rest = stream.read().decode()
        events = [json.loads(line[6:]) for line in rest.splitlines() if line.startswith("data: {")]
        text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
        assert "Arr" not in plain
        assert content.endswith(text)
    with start("--lora", PIRATE) as server:
        restored = post_slot(server, 1, "restore")
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        again, cached = post_chat(server, id_slot=1)
        assert (again, cached >= 10) == (content, True)
        post_slot(server, 0, "restore")
        assert post_chat(server, id_slot=0, lora=[{"id": 0, "scale": 0}]) == (plain, 0)


@pytest.mark.parametrize(
    ("kind", "unified"),
    [("recurrent", "--kv-unified"), ("hybrid", "--no-kv-unified"), ("sliding-window", "--no-kv-unified")],
)
def test_restores_slots_of_every_kind_of_memory(start: Start, gguf_folder: Path, kind: str, unified: str) -> None:
    model = gguf_file(gguf_folder, MODELS[kind])
    prompt = {"prompt": [list(range(5, 65))], "temperature": 0, "ignore_eos": True}
    longer = {"prompt": [list(range(5, 75))], "temperature": 0, "n_predict": 12, "ignore_eos": True}
    with start(unified, model=model) as server:
        server.post("/completion", prompt | {"n_predict": 0, "id_slot": 0})
        assert post_slot(server, 0, "save")["n_saved"] == 60
        expected = server.post("/completion", longer | {"id_slot": 1, "cache_prompt": False, "return_tokens": True})
        for slot in (0, 1):
            post_slot(server, slot, "erase")
        assert post_slot(server, 1, "restore")["n_restored"] == 60
        reply = server.post("/completion", longer | {"id_slot": 1, "return_tokens": True})
        assert reply["timings"]["cache_n"] == 60
        assert reply["tokens"] == expected["tokens"]


def test_slot_files_start_with_the_librarys_own_format(tiny_path: Path, tmp_path: Path) -> None:
    """The library writes the same bytes, and reads our file although more bytes follow its state."""
    path = tmp_path / "library.slot"
    with open_runner(tiny_path) as runner:
        tokens = prompt_tokens(runner.vocab)
        prefill(runner, 1, tokens)
        packed = [-1, 1, len(tokens), *tokens, 0]
        words = (C.llama_token * len(packed))(*packed)
        n_bytes = C.llama_state_seq_save_file(runner._context, str(path).encode(), 1, words, len(words))
        state = runner.seq_save(1)
    description = Description({}, (), None, (), len(tokens), None, (), "", "")
    ours = b"".join(encode(CacheEntry(tokens, NO_ADAPTERS, 0, state=state), description))
    assert ours[:n_bytes] == path.read_bytes()
    path.write_bytes(ours)
    with open_runner(tiny_path) as runner:
        found, n_found = (C.llama_token * len(packed))(), ctypes.c_size_t()
        n_read = C.llama_state_seq_load_file(
            runner._context, str(path).encode(), 1, found, len(found), ctypes.byref(n_found)
        )
        assert (n_read, list(found), n_found.value) == (n_bytes, packed, len(packed))
        assert runner.seq_save(1)[8:] == state[8:]
    assert (C.LLAMA_STATE_SEQ_MAGIC, C.LLAMA_STATE_SEQ_VERSION) == (STATE_MAGIC, STATE_VERSION)


PROMPT = "the quick brown fox jumps over the lazy dog and then the other animals of the forest come together " * 12
FLAGS = ("-c", "2048", "-np", "2", "-t", "1", *EXACT, "--no-warmup", "--metrics")


def complete_tokens(server: RealServer, prompt: list[int], **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0, "ignore_eos": True, "return_tokens": True, **fields}
    reply: dict[str, Any] = server.post("/completion", body)
    return reply


@pytest.mark.parametrize("kind", ["hybrid", "sliding-window"])
def test_the_disk_cache_is_reused_after_a_restart(kind: str, gguf_folder: Path, tmp_path: Path) -> None:
    path = gguf_file(gguf_folder, MODELS[kind])
    disk = ("--cache-disk", "100", "--cache-disk-path", str(tmp_path))
    with llamapool(path, *FLAGS, *disk) as server:
        prompt = server.post("/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
        first = complete_tokens(server, prompt)
    longer = [*prompt, *first["tokens"], *range(300, 310)]
    with llamapool(path, *FLAGS, *disk, "-c", "3072") as server:  # the automatic fit may choose another context
        reply = complete_tokens(server, longer)
        assert reply["timings"]["cache_n"] == len(prompt) + 7
        assert reply["tokens"] == complete_tokens(server, longer, cache_prompt=False)["tokens"]


def test_servers_share_the_disk_cache_and_saved_slots(gguf_folder: Path, tmp_path: Path) -> None:
    model, secret = gguf_file(gguf_folder, MODELS["no-template"]), tmp_path / "secret"
    secret.write_text("thirty-two bytes of no great secret")
    (tmp_path / "slots").mkdir()
    config = tmp_path / "shared.yaml"
    config.write_text(f"server: {{slot_save_path: slots, slot_save_secret_file: {secret}}}\n")
    shared = ("--cache-disk", "100", "--cache-disk-path", str(tmp_path / "states"), "--cache-disk-shared")
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(llamapool(model, *FLAGS, *shared, "--config", str(config))) for _ in range(2)
        )
        prompt = first.post("/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
        reply = complete_tokens(first, prompt)
        longer = [*prompt, *reply["tokens"], *range(300, 310)]
        states = re.compile(rb"^llamapool_cache_disk_states\{[^}]*\} [1-9]", re.M)
        wait_until(lambda: states.search(second.request("GET", "/metrics").body), "a state of the first server")
        reply = complete_tokens(second, longer)
        assert reply["timings"]["cache_n"] >= len(prompt)
        assert reply["tokens"] == complete_tokens(first, longer, cache_prompt=False)["tokens"]

        saved = first.post("/slots/0?action=save", {"filename": "fox.bin"})
        restored = second.post("/slots/1?action=restore", {"filename": "fox.bin"})
        assert restored["n_restored"] == saved["n_saved"] > 0
        (tmp_path / "slots" / "fox.bin").write_bytes(b"forged")
        assert second.request("POST", "/slots/1?action=restore", {"filename": "fox.bin"}).status == 400


VERSIONS = sorted(path.parent.name for path in FOLDER.glob(f"*/{FACTS}"))
MAX_BYTES = 200_000  # of a version's folder, which stays in the history of the repository


@pytest.mark.parametrize("version", VERSIONS)
def test_reads_files_of_earlier_versions_or_rejects_them_with_a_reason(version: str, tmp_path: Path) -> None:
    folder = tmp_path / version
    shutil.copytree(FOLDER / version, folder)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < MAX_BYTES
    facts = json.loads((folder / FACTS).read_text())
    with serve(folder) as server:
        reply = complete(server)
        assert reply["content"] == facts["content"]
        assert (reply["timings"]["cache_n"] > 50) is (facts["library"] == library())
        assert server.get(f"/v1/responses/{facts['response']['id']}") == facts["response"]
        (item,) = server.get(f"/v1/conversations/{facts['conversation']}/items")["data"]
        assert item["content"][0]["text"] == "Remember me."
        usage = server.get("/v1/usage?start=2026-01-01")["data"]
        assert sum(row["requests"] for row in usage) == facts["n_requests"] + 1
        restored = server.request("POST", "/slots/0?action=restore", {"filename": SLOT})
        if restored.status == 200:
            assert restored.json()["n_restored"] == facts["n_saved"]
            assert complete(server)["timings"]["cache_n"] > 50
        else:
            assert facts["library"] != library()
            assert "its state has the version" in restored.json()["error"]["message"]


def test_the_repository_has_files_of_an_earlier_version() -> None:
    assert VERSIONS
