"""Run commands on a pseudoterminal, so that they print what users see on a terminal."""

import os
import pty
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.real_server import ROOT

ROWS, COLUMNS = 40, 120
TIMEOUT_S = 180.0


class Terminal:
    """A process on a new terminal. Use it as a context manager, which kills it at the end."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None, cwd: Path = ROOT) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (ROWS, COLUMNS))
        self.process = subprocess.Popen(
            list(command), cwd=cwd, env={**os.environ, **(environment or {})}, stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)
        self._changed = threading.Condition()
        self._shown = b""
        self._ended = False
        self._reader = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # Linux: the last process that had it open has exited
                data = b""
            with self._changed:
                self._shown += data
                self._ended = not data
                self._changed.notify_all()
            if not data:
                return

    @property
    def shown(self) -> str:
        """The output so far, with the carriage returns that overwrite lines."""
        return self._shown.decode(errors="replace")

    def wait_for(self, text: str) -> None:
        """Return when the output contains `text`. Raises AssertionError if it does not when the process exits."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or text in self.shown, TIMEOUT_S)
        assert text in self.shown, self.shown[-4000:]

    def write(self, text: str) -> None:
        os.write(self._master, text.encode())

    def status(self) -> int:
        """Wait for the process and return its exit status."""
        found = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(TIMEOUT_S)
        os.close(self._master)
