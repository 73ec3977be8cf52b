"""Processes of a run: the server with a scripted or a real model, and programs with an empty home directory."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.clients.programs.scripted_model import ScriptLine
from tests.support.real_server import ROOT, RealServer, free_port

MODEL = ROOT / "models" / "demo.gguf"  # the scripted model has its name
LOOP_LIMIT_S = 600.0  # for the loop of one program, which takes at most a minute on two idle cores
STEP_LIMIT_S = 180.0  # opencode starts in ten seconds on idle cores, and in a minute on a busy machine
SIGINT_INTERVAL_S = 5.0  # SIGINT is sent again, because Python loses one that arrives in a destructor
MAX_TOKENS = "6000"  # of a reply; ends a scripted reply whose end a constraint forbids
PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class ProcessResult:
    """Exit status and output of a program."""

    status: int | None  # None: killed at its limit
    out: str
    err: str

    @property
    def output(self) -> str:
        return self.out + self.err


@dataclass
class Workspace:
    """An empty home directory, a working directory, and an environment with only the given variables."""

    root: Path
    environment: Mapping[str, str]
    deadline: float
    step_limit_s: float = STEP_LIMIT_S

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def work(self) -> Path:
        return self.root / "work"

    def run(
        self,
        command: Sequence[str | Path],
        *,
        limit_s: float | None = None,
        stop_when: Callable[[], bool] = lambda: False,
    ) -> ProcessResult:
        """Run `command`; interrupt it when `stop_when()` is true, and kill its process group at the limit."""
        out, err = self.root / "out.txt", self.root / "err.txt"
        deadline = min(self.deadline, time.monotonic() + (self.step_limit_s if limit_s is None else limit_s))
        with out.open("wb") as output, err.open("wb") as errors:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=self.work,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
            status: int | None = None
            interrupted_at = 0.0
            try:
                while time.monotonic() < deadline and (status := process.poll()) is None:
                    again = interrupted_at and time.monotonic() > interrupted_at + SIGINT_INTERVAL_S
                    if again or (not interrupted_at and stop_when()):
                        os.killpg(process.pid, signal.SIGINT)
                        interrupted_at = time.monotonic()
                    time.sleep(0.05)
            finally:
                for number in (signal.SIGTERM, signal.SIGKILL):
                    _end_group(process, number)
        return ProcessResult(status, _text(out), _text(err))

    def _environment(self) -> dict[str, str]:
        base = {"HOME": str(self.home), "PATH": PATH, "LANG": "C.UTF-8", "TERM": "dumb", "NO_PROXY": "*"}
        return {**base, "TMPDIR": str(self.root / "tmp"), **self.environment}


def _end_group(process: "subprocess.Popen[bytes]", number: int) -> None:
    try:
        os.killpg(process.pid, number)
        process.wait(5)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def create_workspace(root: Path, deadline: float) -> Workspace:
    workspace = Workspace(root, {}, deadline)
    for folder in (workspace.home, workspace.work, root / "tmp"):
        folder.mkdir(parents=True)
    return workspace


@dataclass(frozen=True)
class Server:
    """A running server, and its record of requests."""

    process: RealServer
    record: Path

    @property
    def url(self) -> str:
        return self.process.base_url

    def requests(self) -> list[dict[str, Any]]:
        """Return the finished requests, in the format of `recording`."""
        if not self.record.exists():
            return []
        return [json.loads(line) for line in self.record.read_text(encoding="utf-8").splitlines()]

    def n_busy_slots(self) -> int:
        return sum(bool(slot["is_processing"]) for slot in self.process.get("/slots"))


@contextmanager
def scripted_server(
    folder: Path, family: str, templates: Path, script: Sequence[ScriptLine], *flags: str, context: int = 1 << 17
) -> Iterator[Server]:
    """Serve a model that follows `script`; write the server's files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "script.json"
    file.write_text(json.dumps([asdict(line) for line in script]), encoding="utf-8")
    own = ["--family", family, "--templates", str(templates), "--script", str(file), "--context", str(context)]
    with _recorded_server(folder, [*own, "-m", str(MODEL), "-n", MAX_TOKENS, *flags]) as server:
        yield server


@contextmanager
def real_server(folder: Path, model: Path, *flags: str) -> Iterator[Server]:
    folder.mkdir(parents=True, exist_ok=True)
    with _recorded_server(folder, ["-m", str(model), *flags]) as server:
        yield server


@contextmanager
def _recorded_server(folder: Path, flags: Sequence[str]) -> Iterator[Server]:
    port, record = free_port(), folder / "record.jsonl"
    listen = ["--host", "127.0.0.1", "--port", str(port), "-a", "scripted", "--slots", "--metrics"]
    command = [sys.executable, "-m", "tests.clients.programs.scripted_server", "--record", str(record), *listen, *flags]
    with RealServer(command, port, {"PYTHONPATH": str(ROOT)}) as process:
        yield Server(process, record)
