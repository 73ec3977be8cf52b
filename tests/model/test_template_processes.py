"""A real server with a hostile template: the request is refused, the others are served, no process is left."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ggufs import CHATML, TinyModel, gguf_file
from tests.support.real_server import RealServer, llamapool

HOSTILE = (
    "{% if grow is defined %}{% set n = namespace(a=[1], b=[1]) %}{% for i in range(40) %}"
    "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}{% endif %}"
    "{% if no is defined %}{{ raise_exception('not ' ~ no) }}{% endif %}"
)
USER = {"role": "user", "content": "hi"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    running = llamapool(gguf_file(tmp_path, TinyModel(chat_template=HOSTILE + CHATML)), "-t", "1")
    running.wait_until_ready()
    yield running
    running.stop()


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends meanwhile
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def lives(pid: int) -> bool:
    """Not a process that only waits for who takes its exit status: where nobody does, it waits for ever."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_a_template_can_hold_up_nobody_else_and_outlives_nothing(server: RealServer) -> None:
    asked = server.request("POST", "/apply-template", {"messages": [USER], "chat_template_kwargs": {"no": "today"}})
    assert asked.status == 400
    assert asked.json()["error"]["message"] == "messages: the chat template refused them: not today"
    endless = server.request("POST", "/apply-template", {"messages": [USER], "chat_template_kwargs": {"grow": True}})
    assert endless.status == 400
    # of a processor, or in all where others have it
    assert "the chat template failed on them: it took more than" in endless.json()["error"]["message"]
    reply = server.post("/v1/chat/completions", {"messages": [USER], "max_tokens": 2})
    assert reply["usage"]["completion_tokens"] == 2
    renderers = children(server.process.pid)
    assert renderers
    server.process.kill()
    server.ends_with = -signal.SIGKILL
    server.process.wait()
    deadline = time.monotonic() + 100
    while any(map(lives, renderers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in renderers if lives(pid)]
