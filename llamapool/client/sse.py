"""Decode server-sent events from bytes (WHATWG HTML, 9.2.6 "Interpreting an event stream").

Only LF, CR and CRLF end a line. Unicode's line separators, which a model's text may contain, do not.
"""

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """An event. ``name``: its type, by default ``message``."""

    name: str
    data: str


class SseDecoder:
    """An incremental decoder. Chunks may be split anywhere. Comments (pings), ``id`` and ``retry`` are ignored."""

    def __init__(self) -> None:
        self._incomplete: list[bytes] = []  # parts of an incomplete line
        self._after_cr = False  # whether an LF that follows belongs to the last line end
        self._at_start = True
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that `chunk` completes."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        first, *others = _LINE_END.split(chunk)
        self._incomplete.append(first)
        if not others:
            return []
        self._after_cr = chunk.endswith(b"\r")
        lines = [b"".join(self._incomplete), *others[:-1]]
        self._incomplete = [others[-1]]
        return [event for line in lines if (event := self._line(line)) is not None]

    def finish(self) -> list[Event]:
        """Return the last event, after which some servers omit the blank line."""
        last = self._line(b"".join(self._incomplete))
        self._incomplete = []
        event = last or self._dispatch()
        return [] if event is None else [event]

    def _line(self, line: bytes) -> Event | None:
        """Return the event that this line completes, or None."""
        if self._at_start:
            line = line.removeprefix(_BOM)
            self._at_start = False
        if not line:
            return self._dispatch()
        field, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        elif field == "error":  # llama-server before 2025 sends "error: {...}" instead of an event
            self._name = "error"
            self._data.append(value)
        return None

    def _dispatch(self) -> Event | None:
        """Return the collected event, or None if it has no data."""
        event = Event(self._name or "message", "\n".join(self._data)) if self._data else None
        self._name, self._data = "", []
        return event
