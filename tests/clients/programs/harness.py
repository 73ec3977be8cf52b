"""Processes of a run: the server over a script, and programs in an empty home of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.clients.programs.scripted_model import Line
from tests.support.real_server import ROOT, RealServer, free_port

MODEL = ROOT / "models" / "demo.gguf"  # only its name counts
LIMIT_S = 600.0  # of one client's whole loop, which takes one minute at most on two free cores
STEP_S = 180.0  # opencode takes ten to begin there, and a minute where the machine is busy
AGAIN_S = 5.0  # Ctrl-C is pressed again: Python loses one that comes in a destructor
MOST_TOKENS = "6000"  # of a reply: a script that a constraint keeps from its end ends here
PATHS = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Ended:
    """A program that has ended, or was stopped at its limit."""

    status: int | None  # None: stopped
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err


@dataclass
class Workplace:
    """An empty home, a folder to work in, and an environment that holds nothing but what is given."""

    root: Path
    environment: Mapping[str, str]
    deadline: float
    step_s: float = STEP_S

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def work(self) -> Path:
        return self.root / "work"

    def run(self, command: Sequence[str | Path], *, limit_s: float | None = None, stop_when: Any = None) -> Ended:
        """Run `command` to its end, or until `stop_when()` holds or time is up; then its whole group is ended."""
        out, err = self.root / "out.txt", self.root / "err.txt"
        until = min(self.deadline, time.monotonic() + (self.step_s if limit_s is None else limit_s))
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
            interrupted = 0.0
            try:
                while time.monotonic() < until and (status := process.poll()) is None:
                    again = interrupted and time.monotonic() > interrupted + AGAIN_S
                    if again or (not interrupted and stop_when is not None and stop_when()):
                        os.killpg(process.pid, signal.SIGINT)
                        interrupted = time.monotonic()
                    time.sleep(0.05)
            finally:
                for number in (signal.SIGTERM, signal.SIGKILL):
                    _end_group(process, number)
        return Ended(status, _text(out), _text(err))

    def _environment(self) -> dict[str, str]:
        base = {"HOME": str(self.home), "PATH": PATHS, "LANG": "C.UTF-8", "TERM": "dumb", "NO_PROXY": "*"}
        return {**base, "TMPDIR": str(self.root / "tmp"), **self.environment}


def _end_group(process: "subprocess.Popen[bytes]", number: int) -> None:
    try:
        os.killpg(process.pid, number)
        process.wait(5)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def workplace(root: Path, deadline: float, **environment: str) -> Workplace:
    place = Workplace(root, environment, deadline)
    for folder in (place.home, place.work, root / "tmp"):
        folder.mkdir(parents=True)
    return place


@dataclass(frozen=True)
class Server:
    """A running server, and what it was asked."""

    process: RealServer
    record: Path

    @property
    def url(self) -> str:
        return self.process.base_url

    def asked(self) -> list[dict[str, Any]]:
        """Every request that has ended: see `recording`."""
        if not self.record.exists():
            return []
        return [json.loads(line) for line in self.record.read_text(encoding="utf-8").splitlines()]

    def busy(self) -> int:
        return sum(bool(slot["is_processing"]) for slot in self.process.get("/slots"))


@contextmanager
def scripted(
    folder: Path, family: str, templates: Path, lines: Sequence[Line], *flags: str, context: int = 1 << 17
) -> Iterator[Server]:
    """The server over `lines`; its files go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "script.json"
    script.write_text(json.dumps([asdict(line) for line in lines]), encoding="utf-8")
    own = ["--family", family, "--templates", str(templates), "--script", str(script), "--context", str(context)]
    with _server(folder, [*own, "-m", str(MODEL), "-n", MOST_TOKENS, *flags]) as server:
        yield server


@contextmanager
def real(folder: Path, model: Path, *flags: str) -> Iterator[Server]:
    folder.mkdir(parents=True, exist_ok=True)
    with _server(folder, ["-m", str(model), *flags]) as server:
        yield server


@contextmanager
def _server(folder: Path, words: Sequence[str]) -> Iterator[Server]:
    port, record = free_port(), folder / "record.jsonl"
    listen = ["--host", "127.0.0.1", "--port", str(port), "-a", "scripted", "--slots", "--metrics"]
    command = [sys.executable, "-m", "tests.clients.programs.scripted_server", "--record", str(record), *listen, *words]
    with RealServer(command, port, {"PYTHONPATH": str(ROOT)}) as process:
        yield Server(process, record)
