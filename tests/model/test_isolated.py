"""A real model in a worker process: what passes the process border, and what remains when either process is killed."""

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


def worker(server: RealServer) -> int:
    """Return the process id of the model's worker."""
    task = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    (pid,) = [int(pid) for pid in task.split() if "worker.child" in Path(f"/proc/{pid}/cmdline").read_text()]
    return pid


def is_gone(pid: int) -> bool:
    """Whether a process has ended. A zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True


def test_slots_adapters_and_replies_survive_a_killed_worker_and_no_worker_a_killed_server(tmp_path: Path) -> None:
    flags = ("--isolation", "process", "-c", 4096, "-np", 2, "-t", 1, "--slot-save-path", tmp_path, "--no-warmup")
    lora = ("--lora", PIRATE, "--lora-init-without-apply", "--metrics")
    with llamapool(DEMO, *map(str, (*flags, *lora, *EXACT))) as server:
        plain = server.post(CHATS, {**CHAT, "id_slot": 0})
        saved: dict[str, Any] = server.post("/slots/0?action=save", {"filename": "a.slot"})
        assert saved["n_saved"] > 10
        server.request("POST", "/lora-adapters", [{"id": 0, "scale": 1.0}])
        pirate = server.post(CHATS, CHAT)["choices"][0]["message"]["content"]
        assert pirate != plain["choices"][0]["message"]["content"]

        os.kill(worker(server), signal.SIGTERM)  # as to a process group: the server decides
        assert server.get("/health")
        _kill_during_a_reply(server)
        again = server.post(CHATS, CHAT)  # the scales are those of before the kill
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
        assert float(predicted.split()[1]) >= sum(counted)  # of both workers

        last = worker(server)
        server.ends_with = -signal.SIGKILL
        server.process.kill()
        server.process.wait(DEADLINE_S)
        wait_until(lambda: is_gone(last), "the worker's end")


def test_adapters_of_the_runtime_survive_a_killed_worker(tmp_path: Path) -> None:
    shutil.copy(PIRATE, tmp_path / "pirate.gguf")
    flags = ("--isolation", "process", "-c", "2048", "-np", "1", "-t", "1", "--no-warmup", *EXACT)
    with llamapool(DEMO, *flags, "--lora-dir", str(tmp_path)) as server:
        plain = server.post(CHATS, CHAT)["choices"][0]["message"]["content"]
        for name in ("first", "pirate"):
            server.request("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": "pirate.gguf"})
        server.request("POST", "/v1/unload_lora_adapter", {"lora_name": "first"})
        ask = {**CHAT, "lora": [{"id": 1, "scale": 1.0}]}
        pirate = server.post(CHATS, ask)["choices"][0]["message"]["content"]
        assert pirate != plain
        os.kill(worker(server), signal.SIGKILL)
        assert server.post(CHATS, ask)["choices"][0]["message"]["content"] == pirate
        assert server.request("POST", CHATS, {**CHAT, "lora": [{"id": 0, "scale": 1.0}]}).status == 400
        server.request("POST", "/v1/unload_lora_adapter", {"lora_name": "pirate"})
        assert json.loads(server.request("GET", "/lora-adapters").body) == []


def _kill_during_a_reply(server: RealServer) -> None:
    """Kill the worker while it computes a whole reply, which then comes from the next worker."""
    first, replies, began = worker(server), list[dict[str, Any]](), False
    long = {**CHAT, "max_tokens": 900, "ignore_eos": True}
    while not began:
        asking = threading.Thread(target=lambda: replies.append(server.post(CHATS, long)))
        asking.start()
        while not began and asking.is_alive():
            began = any(slot["is_processing"] and slot["next_token"][0]["n_decoded"] for slot in server.get("/slots"))
        if began:
            os.kill(first, signal.SIGKILL)
        asking.join(DEADLINE_S)
    assert worker(server) != first
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
def test_the_native_side_of_the_servers_process_does_not_look_at_a_devices_memory(
    monkeypatch: pytest.MonkeyPatch, native: LoadParams
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("it would open a context")

    for name in ("_memory", "_buffer_type"):
        monkeypatch.setattr(devices, name, refused)
    here, spec = open_loader(), ModelSpec("demo", ROOT / "models" / "demo.gguf", native=native)
    assert here.describe(spec).n_vocab
    assert not here.media_kinds(spec)
    here.uses_devices(spec)
    vocabulary = here.vocabulary(spec)
    assert vocabulary.vocab.tokenize("Hi", add_special=False, parse_special=False)
    vocabulary.close()
