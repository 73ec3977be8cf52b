"""When the server's side of a model's process takes it for one that does not go on."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.pool.worker import supervisor
from server.pool.worker.child import _effort
from tests.support.fakes import FakeLoader


class Silent:
    """A process that only hears. ``killed``: why."""

    def __init__(self, now: float) -> None:
        self.reason, self.killed = "", list[str]()
        self.heard_at = self.moved_at = now
        self._effort: object = None
        self.ended = asyncio.get_running_loop().create_future()

    def kill(self, reason: str, *, stacks: bool = False) -> None:
        assert stacks
        self.reason = reason
        self.killed.append(reason)


class Watched:
    """A `core.Core` with a clock of its own, of which nobody says anything."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, loads: bool) -> None:
        self.now = 1000.0
        monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.supervisor = supervisor.WorkerSupervisor("demo", FakeLoader, asyncio.get_running_loop())
        self.child = cast(Any, Silent(self.now))
        self.supervisor._child = self.child
        if not loads:
            self.supervisor._keeper = asyncio.get_running_loop().create_task(asyncio.sleep(0))

    def look(self, after_s: float, limit_s: float) -> list[str]:
        self.now += after_s
        self.supervisor.check_progress(limit_s)
        return list(self.child.killed)


@pytest.mark.parametrize(
    ("loads", "limit_s", "least_s", "said"),
    [
        (False, 1.0, supervisor.SILENT_S, "said nothing for 11 s"),
        (False, 100.0, 100.0, "said nothing for 101 s"),
        (True, 1.0, supervisor.STUCK_S, "load has not gone on for 61 s"),
        (True, 100.0, 100.0, "load has not gone on for 101 s"),
    ],
)
async def test_a_process_that_stands_still_is_ended_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    loads: bool,
    limit_s: float,
    least_s: float,
    said: str,
) -> None:
    watched = Watched(monkeypatch, loads=loads)
    assert not watched.look(least_s, limit_s)
    assert not watched.look(0.5, limit_s), "it is looked at again: what it has said may not be read yet"
    assert [said in reason for reason in watched.look(0.5, limit_s)] == [True]
    assert len(watched.look(0.5, limit_s)) == 1
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


async def test_a_load_that_goes_on_however_slowly_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, loads=True)
    for effort in range(5):
        supervisor.Child.at_work(watched.child, (effort, 0, 0))
        assert not watched.look(supervisor.STUCK_S, 1.0)
    supervisor.Child.at_work(watched.child, (4, 0, 0))
    watched.look(1.0, 1.0)
    assert watched.look(1.0, 1.0)


def test_what_a_thread_computes_is_seen() -> None:
    before, ended = _effort(), threading.Event()

    def compute() -> None:
        while not ended.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    while _effort()[2] == before[2]:
        thread.join(0.01)
    ended.set()
    thread.join()
