"""A real model in a process of its own: what goes through its border, and what is left when a side is killed."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from tests.support.real_server import EXACT, ROOT, RealServer, llamapool

DEMO, PIRATE = ROOT / "models" / "demo.gguf", ROOT / "models" / "demo-lora.gguf"
DEADLINE_S = 60.0
CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 30}


def model_process(server: RealServer) -> int:
    """The number of the model's process."""
    task = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    found = [int(pid) for pid in task.split() if "worker.child" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(found) == 1
    return found[0]


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_gone(pid):
        assert time.monotonic() < deadline, "it did not end"
        time.sleep(0.01)


def test_slots_adapters_grammars_and_counts_pass_the_border_and_survive_a_kill(tmp_path: Path) -> None:
    flags = (
        "--isolation",
        "process",
        "-c",
        1024,
        "-np",
        2,
        "-t",
        1,
        "--slot-save-path",
        tmp_path,
        "--no-warmup",
        *EXACT,
    )
    with llamapool(DEMO, *map(str, (*flags, "--lora", PIRATE, "--lora-init-without-apply", "--metrics"))) as server:
        plain = server.post("/v1/chat/completions", {**CHAT, "id_slot": 0})
        assert plain["timings"]["prompt_n"] > 10
        saved: dict[str, Any] = server.post("/slots/0?action=save", {"filename": "a.slot"})
        assert saved["n_saved"] > 10
        server.request("POST", "/lora-adapters", [{"id": 0, "scale": 1.0}])
        arrr = server.post("/v1/chat/completions", CHAT)["choices"][0]["message"]["content"]
        assert arrr != plain["choices"][0]["message"]["content"]

        os.kill(model_process(server), signal.SIGTERM)  # as when all of a group get one: the server decides
        assert server.get("/health")
        os.kill(model_process(server), signal.SIGKILL)
        again = server.post("/v1/chat/completions", CHAT)  # waits, and finds the scales as they were
        assert again["choices"][0]["message"]["content"] == arrr
        server.request("POST", "/lora-adapters", [{"id": 0, "scale": 0.0}])
        server.post("/slots/0?action=restore", {"filename": "a.slot"})
        third = server.post("/v1/chat/completions", {**CHAT, "id_slot": 0})
        assert third["timings"]["cache_n"] > 10
        assert third["choices"] == plain["choices"]

        schema = {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}},
            "required": ["a"],
            "additionalProperties": False,
        }
        held = server.post("/completion", {"prompt": "JSON:", "n_predict": 40, "json_schema": schema})
        assert json.loads(held["content"])["a"] in (1, 2)
        refused = server.request("POST", "/completion", {"prompt": "x", "grammar": "root ::= nothing"})
        assert refused.status == 400
        predicted = next(
            float(line.split()[1])
            for line in server.request("GET", "/metrics").body.decode().splitlines()
            if line.startswith("llamacpp:tokens_predicted_total")
        )
        counted = [each["usage"]["completion_tokens"] for each in (plain, again, third)]
        assert predicted >= sum(counted)  # of both processes
        last = model_process(server)
    assert is_gone(last)


def test_a_whole_reply_of_a_process_that_is_killed_comes_from_the_next_one() -> None:
    flags = ("--isolation", "process", "-c", "2048", "-np", "2", "-t", "1", "--no-warmup")
    long = {**CHAT, "max_tokens": 900, "ignore_eos": True}
    with llamapool(DEMO, *flags) as server:
        last, deadline = model_process(server), time.monotonic() + DEADLINE_S
        began = False
        while not began:
            replies: list[dict[str, Any]] = []
            asking = threading.Thread(target=lambda: replies.append(server.post("/v1/chat/completions", long)))  # noqa: B023
            asking.start()
            while not began and asking.is_alive():
                assert time.monotonic() < deadline, "it does not begin"
                began = any(
                    slot["is_processing"] and slot["next_token"][0]["n_decoded"] for slot in server.get("/slots")
                )
            if began:
                os.kill(last, signal.SIGKILL)
            asking.join(DEADLINE_S)
        assert model_process(server) != last
    assert [reply["usage"]["completion_tokens"] for reply in replies] == [900]


def test_no_process_is_left_when_the_server_is_killed() -> None:
    with llamapool(DEMO, "--isolation", "process", "-c", "512", "-np", "1", "-t", "1", "--no-warmup") as server:
        server.ends_with = -signal.SIGKILL
        pid = model_process(server)
        server.process.kill()
        server.process.wait(DEADLINE_S)
        wait_gone(pid)
