"""A worker process as the server sees it: hangs, slow loads, its environment and its start."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from server.pool.spec import ModelSpec
from server.pool.worker import loaders, parent
from tests.support.fakes import FakeLoader
from tests.support.real_server import ROOT


class SilentProcess(parent.WorkerProcess):
    """A process that sends nothing and has a clock. ``n_killed``: how often it was killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, loads: bool) -> None:
        self.now, self.n_killed = 1000.0, 0
        monkeypatch.setattr(parent, "time", SimpleNamespace(monotonic=lambda: self.now))
        super().__init__("demo", FakeLoader, FakeLoader())
        self.received_at = self.now
        self.is_loaded = not loads
        self._process = cast(Any, SimpleNamespace(send_signal=self._killed, kill=lambda: None))

    def _killed(self, _: int) -> None:
        self.n_killed += 1

    def notify(self, function: str, *arguments: object) -> None:
        assert function == "check_progress"

    def check(self, after_s: float, limit_s: float) -> int:
        self.now += after_s
        self.check_progress(limit_s)
        return self.n_killed


@pytest.mark.parametrize(
    ("loads", "limit_s", "silent_s", "reason"),
    [
        (False, 1.0, parent.SILENT_S, "been silent for 11 s"),
        (False, 100.0, 100.0, "been silent for 101 s"),
        (True, 1.0, parent.STUCK_S, "load has not advanced for 61 s"),
        (True, 100.0, 100.0, "load has not advanced for 101 s"),
    ],
)
async def test_hanging_process_is_killed_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    loads: bool,
    limit_s: float,
    silent_s: float,
    reason: str,
) -> None:
    process = SilentProcess(monkeypatch, loads=loads)
    assert not process.check(silent_s, limit_s)
    assert not process.check(0.5, limit_s), "its messages may not have been read yet"
    assert process.check(0.5, limit_s) == 1
    assert reason in process.kill_reason
    assert process.check(0.5, limit_s) == 1
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


async def test_process_that_survives_sigkill_counts_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits for a driver ignores SIGKILL."""
    for name in ("STACKS_S", "EXIT_S"):
        monkeypatch.setattr(parent, name, 0.0)

    def wait(timeout_s: float) -> NoReturn:
        raise subprocess.TimeoutExpired("model", timeout_s)

    process = SilentProcess(monkeypatch, loads=False)
    process._process = cast(Any, SimpleNamespace(send_signal=process._killed, kill=lambda: None, wait=wait))
    process.kill("it has been silent", stacks=True)
    assert await asyncio.wait_for(process.ended, 5) == "it has been silent"


async def test_process_whose_load_advances_slowly_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SilentProcess(monkeypatch, loads=True)
    for progress in range(5):
        process.loads((progress, 0, 0))
        assert not process.check(parent.STUCK_S, 1.0)
    process.loads((4, 0, 0))
    process.check(1.0, 1.0)
    assert process.check(1.0, 1.0)


async def test_process_that_waits_too_long_for_its_load_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "WAIT_FOR_LOAD_S", 0.0)
    made, spec = loaders.Loaders(FakeLoader(), FakeLoader), ModelSpec("demo", Path(), isolation="process")
    made.keep(spec, process := made.of(spec))
    used: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.0, lambda: used.set_result(made.of(spec)))  # before it is killed
    assert await used is not process


async def test_process_environment_contains_no_secrets_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "LLAMA_SET_ROWS": "1", "AWS_PROFILE": "p", "OTEL_LOG": "x"}
    secrets = ("LLAMA_API_KEY", "LLAMA_ARG_API_KEY", "LLAMAPOOL_SERVER__API_KEYS", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    headers = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
    popen_options: dict[str, Any] = {}
    monkeypatch.setattr(os, "environ", {**needed, **dict.fromkeys((*secrets, *headers), "secret")})
    popen = SimpleNamespace(Popen=lambda command, **options: popen_options.update(options), DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(parent, "subprocess", popen)
    monkeypatch.setattr(parent.WorkerProcess, "connect", lambda self, end: end.close())
    parent.WorkerProcess("demo", FakeLoader, FakeLoader())._start()
    assert popen_options["env"] == needed


_PING = """
import asyncio
from server.pool.worker.parent import WorkerProcess
from tests.support.fakes import FakeLoader

async def main():
    process = WorkerProcess("demo", FakeLoader, FakeLoader())
    await process.call("ping")
    await process.end()

asyncio.run(main())
"""


@pytest.mark.slow
def test_server_with_closed_stderr_starts_processes() -> None:
    shell = 'exec "$0" -c "$1" 2>&-'
    ended = subprocess.run(["sh", "-c", shell, sys.executable, _PING], cwd=ROOT, timeout=60, check=False)
    assert ended.returncode == 0
