"""Tool calls as Hermes 2 Pro and Qwen 2.5/3 write them::

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Several calls stand one behind the other. A call is streamed: its name as soon as it is complete, then the arguments as
they come. What turns out not to be a call is content, tags and all.
"""

import json
import re
import secrets
from dataclasses import dataclass, field

from server.chat.pieces import Content, Piece, ToolCallArguments, ToolCallBegin, held_back

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


def new_call_id() -> str:
    """An id that no other call has."""
    return "call_" + secrets.token_hex(12)


@dataclass(slots=True)
class _Value:
    """Follows one JSON object through its text, to find its end."""

    depth: int = 0
    quoted: bool = False
    escaped: bool = False

    def end(self, text: str) -> int:
        """Index behind the object's last character, or -1 when it goes on."""
        for at, char in enumerate(text):
            if self.quoted:
                if self.escaped:
                    self.escaped = False
                elif char == "\\":
                    self.escaped = True
                elif char == '"':
                    self.quoted = False
            elif char == '"':
                self.quoted = True
            elif char in "{[":
                self.depth += 1
            elif char in "}]":
                self.depth -= 1
                if self.depth == 0:
                    return at + 1
        return -1


@dataclass(slots=True)
class HermesParser:
    """``parallel=False`` keeps the first call only, as the client asked for."""

    parallel: bool = True
    _held: str = ""
    _inside: bool = False
    _value: _Value | None = None
    _streamed: bool = False
    _n_calls: int = 0
    _pieces: list[Piece] = field(default_factory=list)

    def feed(self, text: str) -> list[Piece]:
        """What is certain now."""
        self._held += text
        while self._advance():
            pass
        return self._take()

    def finish(self) -> list[Piece]:
        """An unfinished call that was not shown yet is read as a whole, or is content."""
        if self._inside and self._value is None and not self._streamed:
            self._whole(self._held, closing="")
        elif not self._inside:
            self._content(self._held)
        self._held = ""
        return self._take()

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _advance(self) -> bool:
        """One step through the held text; False when more text is needed."""
        if not self._inside:
            return self._outside()
        if self._value is not None:
            return self._arguments()
        if not self._streamed:
            head = _HEAD.match(self._held)
            if head is not None:
                self._begin(json.loads(head[1]))
                self._held = self._held[head.end() :]
                self._value, self._streamed = _Value(), True
                return True
        end = self._held.find(CLOSE)
        if end < 0:
            return False
        body, self._held = self._held[:end], self._held[end + len(CLOSE) :]
        self._inside = False
        if not self._streamed:
            self._whole(body, closing=CLOSE)
        self._streamed = False
        return True

    def _outside(self) -> bool:
        at = self._held.find(OPEN)
        if at >= 0:
            before, self._held = self._held[:at], self._held[at + len(OPEN) :]
            self._content(before.rstrip())
            self._inside = True
            return True
        # White space is held back as well: in front of a call it is dropped.
        sure = self._held[: len(self._held) - held_back(self._held, OPEN)].rstrip()
        if sure:
            self._content(sure)
            self._held = self._held[len(sure) :]
        return False

    def _arguments(self) -> bool:
        assert self._value is not None
        end = self._value.end(self._held)
        text = self._held if end < 0 else self._held[:end]
        if text:
            self._emit(ToolCallArguments(self._n_calls - 1, text))
        self._held = self._held[len(text) :]
        if end >= 0:
            self._value = None
        return end >= 0

    def _begin(self, name: str) -> None:
        self._emit(ToolCallBegin(self._n_calls, new_call_id(), name), first=True)
        self._n_calls += 1

    def _emit(self, piece: Piece, *, first: bool = False) -> None:
        n_before = self._n_calls if first else self._n_calls - 1
        if self.parallel or n_before == 0:
            self._pieces.append(piece)

    def _whole(self, body: str, *, closing: str) -> None:
        """A call in another order of keys, or with its arguments as a string; else it is content."""
        try:
            call = json.loads(body)
            name, arguments = call["name"], call.get("arguments", call.get("parameters", {}))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self._content(OPEN + body + closing)
            return
        if not isinstance(name, str) or not isinstance(arguments, dict | str):
            self._content(OPEN + body + closing)
            return
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        self._begin(name)
        self._emit(ToolCallArguments(self._n_calls - 1, text))

    def _content(self, text: str) -> None:
        if text and not (self._n_calls and text.isspace()):
            self._pieces.append(Content(text))
