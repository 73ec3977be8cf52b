"""The last lines of the server's log, for the page's view of models."""

import logging
from collections import deque
from dataclasses import dataclass

MOST_LINES = 500
MOST_CHARS = 2000  # of a line


@dataclass(frozen=True, slots=True)
class Line:
    """``at``: unix seconds. ``number`` goes up by one with each line."""

    number: int
    at: float
    level: str
    origin: str
    text: str


class RecentLog(logging.Handler):
    """Stores recent log records in addition to other handlers. Thread-safe, as `logging` holds its lock."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[Line] = deque(maxlen=MOST_LINES)
        self._n_lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Store a record."""
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - the other handlers report a message that can't be formatted
            text = str(record.msg)
        if record.exc_info and record.exc_info[1] is not None:
            text += f"\n{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        self._n_lines += 1
        origin = record.name.removeprefix("server.")
        self._lines.append(Line(self._n_lines, record.created, record.levelname[0], origin, text[:MOST_CHARS]))

    def after(self, number: int) -> list[Line]:
        """Return the lines with a higher number, the oldest first."""
        self.acquire()
        try:
            return [line for line in self._lines if line.number > number]
        finally:
            self.release()
