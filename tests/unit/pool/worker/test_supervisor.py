"""When the supervisor considers a worker process as hanging."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.pool.worker import parent
from tests.support.fakes import FakeLoader


class Silent:
    """A process that sends nothing. ``killed``: the reasons."""

    def __init__(self, now: float) -> None:
        self.kill_reason, self.killed = "", list[str]()
        self.heard_at = self.advanced_at = now
        self._effort: tuple[int, ...] = ()
        self.ended = asyncio.get_running_loop().create_future()

    def notify(self, function: str, *arguments: object) -> None:
        assert function == "check_progress"

    def kill(self, reason: str, *, stacks: bool = False) -> None:
        assert stacks
        self.kill_reason = reason
        self.killed.append(reason)


class Watched:
    """A supervisor with its own clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, loads: bool) -> None:
        self.now = 1000.0
        monkeypatch.setattr(parent, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.supervisor = parent.WorkerSupervisor("demo", FakeLoader, asyncio.get_running_loop(), FakeLoader())
        self.process = cast(Any, Silent(self.now))
        self.supervisor._process = self.process
        if not loads:
            self.supervisor._restarts = asyncio.get_running_loop().create_task(asyncio.sleep(0))

    def check(self, after_s: float, limit_s: float) -> list[str]:
        self.now += after_s
        self.supervisor.check_progress(limit_s)
        return list(self.process.killed)


@pytest.mark.parametrize(
    ("loads", "limit_s", "least_s", "said"),
    [
        (False, 1.0, parent.SILENT_S, "been silent for 11 s"),
        (False, 100.0, 100.0, "been silent for 101 s"),
        (True, 1.0, parent.STUCK_S, "load has not advanced for 61 s"),
        (True, 100.0, 100.0, "load has not advanced for 101 s"),
    ],
)
async def test_a_hanging_process_is_killed_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    loads: bool,
    limit_s: float,
    least_s: float,
    said: str,
) -> None:
    watched = Watched(monkeypatch, loads=loads)
    assert not watched.check(least_s, limit_s)
    assert not watched.check(0.5, limit_s), "its messages may not have been read yet"
    assert [said in reason for reason in watched.check(0.5, limit_s)] == [True]
    assert len(watched.check(0.5, limit_s)) == 1
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


async def test_a_slow_load_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, loads=True)
    for effort in range(5):
        parent.WorkerProcess.loads(watched.process, (effort, 0, 0))
        assert not watched.check(parent.STUCK_S, 1.0)
    parent.WorkerProcess.loads(watched.process, (4, 0, 0))
    watched.check(1.0, 1.0)
    assert watched.check(1.0, 1.0)
