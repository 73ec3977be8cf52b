"""The usage ledger of a real server that is killed."""

import signal
import sqlite3
import time
from pathlib import Path

from tests.support.real_server import ROOT, llamapool

DEMO = ROOT / "models" / "demo.gguf"
DEADLINE_S = 60.0
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 5}


def wait_written(path: Path, n_requests: int) -> None:
    """Wait until the file has this many requests, as another process sees it."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with sqlite3.connect(path) as connection:
            if connection.execute("SELECT sum(requests) FROM token_usage").fetchone()[0] == n_requests:
                return
        time.sleep(0.01)
    raise AssertionError("the usage was not written")


def test_usage_survives_a_kill(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite3"
    flags = ("--state", str(state), "-c", "512", "-np", "1", "-t", "1", "--no-warmup")
    with llamapool(DEMO, *flags) as server:
        server.ends_with = -signal.SIGKILL
        usage = server.post("/v1/chat/completions", CHAT)["usage"]
        wait_written(state, 1)
        server.process.kill()
        server.process.wait(DEADLINE_S)
    with llamapool(DEMO, *flags) as server:
        (row,) = server.get("/v1/usage")["data"]
        assert (row["requests"], row["prompt_tokens"]) == (1, usage["prompt_tokens"])
        assert row["completion_tokens"] == usage["completion_tokens"]
        server.post("/v1/chat/completions", CHAT)
        assert server.get("/v1/usage")["data"][0]["requests"] == 2
