"""Yield server-sent events from bytes (WHATWG HTML, 9.2.6 "Interpreting an event stream").

Lines end with LF, CR or CRLF and with nothing else: the line separators of Unicode, which a model's text may contain,
do not end one.
"""

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its type, ``message`` unless the server names another, and its data."""

    name: str
    data: str


class SseDecoder:
    """Feed it chunks cut anywhere; comments (pings), ``id`` and ``retry`` give nothing."""

    def __init__(self) -> None:
        self._cut: list[bytes] = []  # pieces of an incomplete line
        self._after_cr = False  # the next LF belongs to a CR that has ended its line
        self._at_start = True
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """Yield the events that `chunk` completes."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        first, *others = _LINE_END.split(chunk)
        self._cut.append(first)
        if not others:
            return []
        self._after_cr = chunk.endswith(b"\r")
        lines = [b"".join(self._cut), *others[:-1]]
        self._cut = [others[-1]]
        return [event for line in lines if (event := self._line(line)) is not None]

    def finish(self) -> list[Event]:
        """Yield the last event, whose blank line some servers omit."""
        last = self._line(b"".join(self._cut))
        self._cut = []
        event = last or self._dispatch()
        return [] if event is None else [event]

    def _line(self, line: bytes) -> Event | None:
        """Yield the event that this line completes."""
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
        elif field == "error":  # llama-server before 2025 wrote "error: {...}" where others have an event
            self._name = "error"
            self._data.append(value)
        return None

    def _dispatch(self) -> Event | None:
        """Yield the collected event, if it has data."""
        event = Event(self._name or "message", "\n".join(self._data)) if self._data else None
        self._name, self._data = "", []
        return event
