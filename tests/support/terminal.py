"""Commands on a terminal: their streams are a pseudoterminal, so that they draw what people see."""

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
SHOWN_S = 180.0  # how long a failure takes


class Terminal:
    """A process on a terminal of its own. Use it as a context manager, which ends it."""

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
            except OSError:  # Linux: the last process that had it open has ended
                data = b""
            with self._changed:
                self._shown += data
                self._ended = not data
                self._changed.notify_all()
            if not data:
                return

    @property
    def shown(self) -> str:
        """All that was written, with the carriage returns that draw a line anew."""
        return self._shown.decode(errors="replace")

    def wait_for(self, text: str) -> None:
        """Return once `text` was written; raises AssertionError where the process ends before, or never writes it."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or text in self.shown, SHOWN_S)
        assert text in self.shown, self.shown[-4000:]

    def write(self, text: str) -> None:
        os.write(self._master, text.encode())

    def status(self) -> int:
        """How it ended; waits for it."""
        found = self.process.wait(SHOWN_S)
        self._reader.join(SHOWN_S)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(SHOWN_S)
        os.close(self._master)
