"""A native model in a worker process: slots, adapters and replies over IPC, and recovery when a process is killed."""

import json
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from server.llama import devices
from server.llama.loader import open_loader
from server.pool.spec import LoadParams, ModelSpec
from tests.support.real_server import EXACT, ROOT, RealServer, llamapool
from tests.support.waiting import wait_until

DEMO, PIRATE = ROOT / "models" / "demo.gguf", ROOT / "models" / "demo-lora.gguf"
DEADLINE_S = 60.0
CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 30}
CHATS = "/v1/chat/completions"


def worker_pid(server: RealServer) -> int:
    task = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    (pid,) = [int(pid) for pid in task.split() if "worker.child" in Path(f"/proc/{pid}/cmdline").read_text()]
    return pid


def has_ended(pid: int) -> bool:
    """Return whether a process has ended. A zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True


def test_slots_adapters_and_replies_survive_a_killed_worker(tmp_path: Path) -> None:
    """At the end the server is killed, after which its worker must end, too."""
    flags = ("--isolation", "process", "-c", 4096, "-np", 2, "-t", 1, "--slot-save-path", tmp_path, "--no-warmup")
    lora = ("--lora", PIRATE, "--lora-init-without-apply", "--metrics")
    with llamapool(DEMO, *map(str, (*flags, *lora, *EXACT))) as server:
        plain = server.post(CHATS, {**CHAT, "id_slot": 0})
        saved: dict[str, Any] = server.post("/slots/0?action=save", {"filename": "a.slot"})
        assert saved["n_saved"] > 10
        server.request("POST", "/lora-adapters", [{"id": 0, "scale": 1.0}])
        pirate = server.post(CHATS, CHAT)["choices"][0]["message"]["content"]
        assert pirate != plain["choices"][0]["message"]["content"]

        os.kill(worker_pid(server), signal.SIGTERM)  # ignored, because a terminal signals the whole process group
        assert server.get("/health")
        _kill_during_a_reply(server)
        again = server.post(CHATS, CHAT)  # with the scales that were set before the kill
        assert again["choices"][0]["message"]["content"] == pirate
        server.request("POST", "/lora-adapters", [{"id": 0, "scale": 0.0}])
        server.post("/slots/0?action=restore", {"filename": "a.slot"})
        third = server.post(CHATS, {**CHAT, "id_slot": 0})
        assert third["timings"]["cache_n"] > 10
        assert third["choices"] == plain["choices"]

        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
        constrained = server.post("/completion", {"prompt": "JSON:", "n_predict": 40, "json_schema": schema})
        assert json.loads(constrained["content"])["a"] in (1, 2)
        assert server.request("POST", "/completion", {"prompt": "x", "grammar": "root ::= nothing"}).status == 400
        lines = server.request("GET", "/metrics").body.decode().splitlines()
        predicted = next(line for line in lines if line.startswith("llamacpp:tokens_predicted_total"))
        counted = [each["usage"]["completion_tokens"] for each in (plain, again, third)]
        assert float(predicted.split()[1]) >= sum(counted)  # counts both workers

        last = worker_pid(server)
        server.ends_with = -signal.SIGKILL
        server.process.kill()
        server.process.wait(DEADLINE_S)
        wait_until(lambda: has_ended(last), "the end of the worker")


def test_adapters_loaded_at_runtime_survive_a_killed_worker(tmp_path: Path) -> None:
    shutil.copy(PIRATE, tmp_path / "pirate.gguf")
    flags = ("--isolation", "process", "-c", "2048", "-np", "1", "-t", "1", "--no-warmup", *EXACT)
    with llamapool(DEMO, *flags, "--lora-dir", str(tmp_path)) as server:
        plain = server.post(CHATS, CHAT)["choices"][0]["message"]["content"]
        for name in ("first", "pirate"):
            server.request("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": "pirate.gguf"})
        server.request("POST", "/v1/unload_lora_adapter", {"lora_name": "first"})
        body = {**CHAT, "lora": [{"id": 1, "scale": 1.0}]}
        pirate = server.post(CHATS, body)["choices"][0]["message"]["content"]
        assert pirate != plain
        os.kill(worker_pid(server), signal.SIGKILL)
        assert server.post(CHATS, body)["choices"][0]["message"]["content"] == pirate
        assert server.request("POST", CHATS, {**CHAT, "lora": [{"id": 0, "scale": 1.0}]}).status == 400
        server.request("POST", "/v1/unload_lora_adapter", {"lora_name": "pirate"})
        assert json.loads(server.request("GET", "/lora-adapters").body) == []


def _kill_during_a_reply(server: RealServer) -> None:
    """Kill the worker while it computes a reply without a stream, which the next worker then computes again."""
    first, replies, decoding = worker_pid(server), list[dict[str, Any]](), False
    long = {**CHAT, "max_tokens": 900, "ignore_eos": True}
    while not decoding:
        client = threading.Thread(target=lambda: replies.append(server.post(CHATS, long)))
        client.start()
        while not decoding and client.is_alive():
            slots = server.get("/slots")
            decoding = any(slot["is_processing"] and slot["next_token"][0]["n_decoded"] for slot in slots)
        if decoding:
            os.kill(first, signal.SIGKILL)
        client.join(DEADLINE_S)
    assert worker_pid(server) != first
    assert replies[-1]["usage"]["completion_tokens"] == 900


@pytest.mark.parametrize(
    "native",
    [
        LoadParams(),
        LoadParams(cpu_moe=True),
        LoadParams(n_cpu_moe=1),
        LoadParams(n_cpu_ffn=1),
        LoadParams(split_mode="tensor"),
    ],
    ids=["default", "cpu_moe", "n_cpu_moe", "n_cpu_ffn", "tensor split"],
)
def test_the_server_process_does_not_query_the_memory_of_devices(
    monkeypatch: pytest.MonkeyPatch, native: LoadParams
) -> None:
    """A query would create a device context in the server's process."""

    def fail(*_: object) -> None:
        raise AssertionError("this creates a device context")

    for name in ("_memory", "_buffer_type"):
        monkeypatch.setattr(devices, name, fail)
    loader, spec = open_loader(), ModelSpec("demo", DEMO, native=native)
    assert loader.describe(spec).n_vocab
    assert not loader.media_kinds(spec)
    loader.uses_devices(spec)
    vocabulary = loader.vocabulary(spec)
    assert vocabulary.vocab.tokenize("Hi", add_special=False, parse_special=False)
    vocabulary.close()
