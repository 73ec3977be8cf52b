"""Tool calls in the output, whatever stands around them: `hermes`, `llama3` and `mistral` say what does.

A call is a JSON object with a name and arguments. It is streamed: its name as soon as it is complete, then the text of
the arguments exactly as it comes. What turns out not to be a call is content, tags and all.
"""

import json
import re
import secrets
import string
from dataclasses import dataclass, field
from enum import Enum

from server.chat.pieces import Content, Piece, ToolCallArguments, ToolCallBegin, held_back

_NAME = r'"name"\s*:\s*("(?:[^"\\]|\\.)+")'
_HEAD = re.compile(
    r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?' + _NAME + r'\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a template's model writes calls.

    ``open`` and ``close`` stand around each call, or (``listed``) around a JSON list of them. ``bare``: a message that
    begins with ``{`` is a call, with or without ``open`` in front. ``arguments`` is the key that the model was taught.
    """

    open: str
    close: str = ""
    listed: bool = False
    bare: bool = False
    separator: str = ""
    arguments: str = "arguments"
    id_length: int = 32


class _State(Enum):
    OUTSIDE = 0
    OPENED = 1
    CALL = 2
    BEHIND = 3


@dataclass(slots=True)
class JsonScan:
    """Follows one JSON object through its text, to find its end."""

    depth: int = 0
    quoted: bool = False
    escaped: bool = False

    def end(self, text: str, start: int = 0) -> int:
        """Index behind the object's last character, or -1 when it goes on."""
        for at in range(start, len(text)):
            char = text[at]
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
                if self.depth <= 0:
                    return at + 1
        return -1


@dataclass(slots=True)
class CallParser:
    """``parallel=False`` keeps the first call only, as the client asked for."""

    format: CallFormat
    parallel: bool = True
    _held: str = ""
    _raw: str = ""  # what to give back as content when this is no call
    _state: _State = _State.OUTSIDE
    _whole: JsonScan = field(default_factory=JsonScan)
    _scanned: int = 0
    _arguments: JsonScan | None = None
    _tail: bool = False
    _n_calls: int = 0
    _said: bool = False
    _pieces: list[Piece] = field(default_factory=list)

    def feed(self, text: str) -> list[Piece]:
        """What is certain now."""
        self._held += text
        while self._advance(final=False):
            pass
        return self._take()

    def finish(self) -> list[Piece]:
        """What was held back: an unfinished call that was not shown yet is content."""
        while self._held and self._advance(final=True):
            pass
        self._content(self._raw + self._held)
        self._held = self._raw = ""
        return self._take()

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _advance(self, *, final: bool) -> bool:
        """One step through the held text; False when more text is needed."""
        match self._state:
            case _State.OUTSIDE:
                return self._outside()
            case _State.OPENED:
                return self._opened(final)
            case _State.CALL if self._arguments is not None:
                return self._stream()
            case _State.CALL if self._tail:
                return self._skip_tail(final)
            case _State.CALL:
                return self._call()
        return self._behind(final)

    def _outside(self) -> bool:
        if self.format.bare and not self._said:
            text = self._held.lstrip()
            if text.startswith("{"):
                self._begin_call("")
                return True
            if not text:
                return False
        at = self._held.find(self.format.open)
        if at >= 0:
            before, self._held = self._held[:at], self._held[at + len(self.format.open) :]
            self._content(before.rstrip())
            self._begin_call(self.format.open)
            if self.format.listed:
                self._state = _State.OPENED
            return True
        # White space is held back as well: in front of a call it is dropped.
        sure = self._held[: len(self._held) - held_back(self._held, self.format.open)].rstrip()
        if sure:
            self._content(sure)
            self._held = self._held[len(sure) :]
        return False

    def _begin_call(self, raw: str) -> None:
        self._state = _State.CALL
        self._raw = raw
        self._whole, self._scanned, self._tail = JsonScan(), 0, False

    def _opened(self, final: bool) -> bool:
        """Behind the tag of a list: its bracket."""
        text = self._held.lstrip()
        if text.startswith("["):
            raw = self._raw + self._held[: len(self._held) - len(text) + 1]
            self._held = text[1:]
            self._begin_call(raw)
            return True
        return self._not_a_call() if text or final else False

    def _call(self) -> bool:
        """In front of the arguments: begin to stream when the usual beginning is complete, or read it as a whole."""
        head = _HEAD.match(self._held)
        if head is not None:
            self._begin(json.loads(head[1]))
            self._held = self._held[head.end() :]
            self._arguments = JsonScan()
            return True
        text = self._held.lstrip()
        if text and not text.startswith("{"):
            return self._not_a_call()
        start = len(self._held) - len(text) if not self._scanned else self._scanned
        end = self._whole.end(self._held, start)
        self._scanned = len(self._held)
        return end >= 0 and self._read(end)

    def _read(self, end: int) -> bool:
        """A call in another order of keys, or with its arguments as a string."""
        try:
            call = json.loads(self._held[:end])
            name, arguments = call["name"], call.get("arguments", call.get("parameters", {}))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return self._not_a_call()
        if not isinstance(name, str) or not name or not isinstance(arguments, dict | str):
            return self._not_a_call()
        self._begin(name)
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        self._emit(ToolCallArguments(self._n_calls - 1, text))
        self._held = self._held[end:]
        self._state = _State.BEHIND
        return True

    def _stream(self) -> bool:
        assert self._arguments is not None
        end = self._arguments.end(self._held)
        text = self._held if end < 0 else self._held[:end]
        if text:
            self._emit(ToolCallArguments(self._n_calls - 1, text))
        self._held = self._held[len(text) :]
        if end >= 0:
            self._arguments, self._tail = None, True
            self._whole, self._scanned = JsonScan(depth=1), 0
        return end >= 0

    def _skip_tail(self, final: bool) -> bool:
        """Behind the arguments: the object's end, and keys that mean nothing here."""
        text = self._held.lstrip()
        if not text and not final:
            return False
        if text[:1] in ("}", ","):
            end = self._whole.end(self._held, self._scanned)
            self._scanned = len(self._held)
            if end < 0 and not final:
                return False
            self._held = self._held[end:] if end >= 0 else ""
        self._tail = False
        self._state = _State.BEHIND
        return True

    def _behind(self, final: bool) -> bool:
        """Behind a call: its closing tag, or the next one of a list."""
        text = self._held.lstrip()
        if not text and not final:
            return False
        self._state = _State.OUTSIDE
        form = self.format
        if form.listed:
            if text[:1] == ",":
                self._held = text[1:]
                self._begin_call("")
            elif text[:1] == "]":
                self._held = text[1:]
            return True
        if form.separator and text.startswith(form.separator):
            self._held = text[len(form.separator) :]
        elif form.close and text.startswith(form.close):
            self._held = text[len(form.close) :]
        elif form.close and form.close.startswith(text) and not final:
            self._state = _State.BEHIND
            return False
        return True

    def _not_a_call(self) -> bool:
        """The opening is content; what stands behind it is looked at again."""
        self._content(self._raw)
        if not self._raw:  # bare: the brace itself must not be tried again
            text = self._held.lstrip()
            self._content(self._held[: len(self._held) - len(text) + 1])
            self._held = text[1:]
        self._raw = ""
        self._state = _State.OUTSIDE
        return True

    def _begin(self, name: str) -> None:
        self._raw = ""
        new_id = "".join(secrets.choice(_ALPHABET) for _ in range(self.format.id_length))
        self._n_calls += 1
        self._emit(ToolCallBegin(self._n_calls - 1, new_id, name))

    def _emit(self, piece: Piece) -> None:
        if self.parallel or self._n_calls == 1:
            self._pieces.append(piece)

    def _content(self, text: str) -> None:
        if text and not (self._n_calls and text.isspace()):
            self._said = self._said or not text.isspace()
            self._pieces.append(Content(text))
