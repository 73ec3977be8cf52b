"""Text that comes in pieces, read by generators: they ``yield`` where they need more, so that a format reads as it is
written, and every character is looked at a constant number of times.

Whatever a reader has looked at is consumed at once, but for the beginning of a marker; what is held back is never
longer than a marker. Text that comes all at once is read in pieces of `MAX_PIECE`, since what is consumed is cut off
the text in front of the reader.
"""

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
Emit = Callable[[str], None]

MAX_WORD = 256  # characters of a name or a header; what is longer is no markup
MIN_CUT_MARKER = 4  # characters of a marker that make it one where a text is cut off; less is more likely text
MAX_PIECE = 1024  # characters that a reader is given at once: what it consumes copies the rest of them


def pieces_of(text: str) -> Sequence[str]:
    """What a reader is given one after the other; "" is one piece."""
    if len(text) <= MAX_PIECE:
        return (text,)
    return [text[start : start + MAX_PIECE] for start in range(0, len(text), MAX_PIECE)]


class EndOfText(Exception):
    """The text is complete, and the reader wanted more."""


class NotMarkup(Exception):
    """What looked like markup is content."""


@dataclass(frozen=True, slots=True)
class _Markers:
    found: re.Pattern[str]
    beginnings: frozenset[str]
    first: frozenset[str]
    longest: int

    def held(self, text: str) -> int:
        """Length of the longest end of `text` that a marker begins with, less than a whole marker."""
        tail = text[-(self.longest - 1) :] if self.longest > 1 else ""
        if self.first.isdisjoint(tail):
            return 0
        return next((len(tail) - at for at in range(len(tail)) if tail[at:] in self.beginnings), 0)


@lru_cache(maxsize=512)
def _markers(markers: tuple[str, ...]) -> _Markers:
    longest_first = sorted(markers, key=len, reverse=True)
    beginnings = frozenset(marker[:n] for marker in markers for n in range(1, len(marker)))
    found = re.compile("|".join(map(re.escape, longest_first)))
    return _Markers(found, beginnings, frozenset(marker[0] for marker in markers), len(longest_first[0]))


@dataclass(slots=True)
class Reader:
    """``text`` is what no generator has consumed. ``raw`` keeps what was consumed since `mark`, to give it back.

    ``final``: no more will come; ``cut``: though the model would have said more.
    """

    text: str = ""
    final: bool = False
    cut: bool = False
    raw: list[str] | None = None

    def consume(self, n: int) -> str:
        """The next `n` characters."""
        taken, self.text = self.text[:n], self.text[n:]
        if self.raw is not None and taken:
            self.raw.append(taken)
        return taken

    def back(self, text: str) -> None:
        """Undo the consumption of `text`."""
        self.text = text + self.text
        if self.raw is not None:
            self.raw[:] = ["".join(self.raw).removesuffix(text)]

    def mark(self) -> None:
        """From here on what is consumed may turn out to be content."""
        self.raw = []

    def settle(self) -> str:
        """What was consumed since `mark`; nothing is kept any longer."""
        raw, self.raw = "".join(self.raw or ()), None
        return raw

    def more(self) -> Steps[None]:
        """Wait for text. Raises `EndOfText` when none will come."""
        if self.final:
            raise EndOfText
        yield

    def peek(self) -> Steps[str]:
        """The next character; "" at the end."""
        while not self.text and not self.final:
            yield
        return self.text[:1]

    def take(self, *markers: str) -> Steps[str]:
        """The marker that comes next, consumed; "" when none does. Raises `EndOfText` where it is cut off."""
        wanted = _markers(markers)
        while not self.final and (not self.text or self.text in wanted.beginnings):
            yield
        if self.cut and len(self.text) >= MIN_CUT_MARKER and self.text in wanted.beginnings:
            raise EndOfText
        found = wanted.found.match(self.text)
        return self.consume(found.end()) if found else ""

    def expect(self, *markers: str) -> Steps[str]:
        """The marker that comes next. Raises `NotMarkup` when none does."""
        taken = yield from self.take(*markers)
        if not taken:
            raise NotMarkup
        return taken

    def spaces(self) -> Steps[None]:
        """Consume white space."""
        while True:
            self.consume(len(self.text) - len(self.text.lstrip()))
            if self.text or self.final:
                return
            yield

    def until(self, markers: tuple[str, ...], emit: Emit) -> Steps[str]:
        """Emit the text in front of the first marker as it comes; the marker. Raises `EndOfText` without one.

        Where a text is cut off inside of a marker, that is left.
        """
        wanted = _markers(markers)
        while True:
            n_sure, marker = self._next(wanted)
            if n_sure:
                emit(self.consume(n_sure))
            if marker:
                return self.consume(len(marker))
            yield from self.more()

    def _next(self, wanted: _Markers) -> tuple[int, str]:
        """How many characters are in front of any marker for sure, and the marker, if it is there."""
        found = wanted.found.search(self.text)
        held = wanted.held(self.text) if self.cut or not self.final else 0
        if self.cut and held < MIN_CUT_MARKER:
            held = 0
        n_sure = len(self.text) - held
        if found is None or (held and n_sure <= found.start()):  # another, longer marker may begin there
            return n_sure, ""
        return found.start(), found[0]

    def run(self, steps: Steps[T]) -> T:
        """The result of a generator over text that is complete. Raises `EndOfText` when it wanted more."""
        pieces, self.text = pieces_of(self.text), ""
        for n, piece in enumerate(pieces, 1):
            self.text += piece
            self.final = n == len(pieces)
            try:
                next(steps)
            except StopIteration as stop:
                self.text += "".join(pieces[n:])
                return stop.value  # type: ignore[no-any-return]
        raise EndOfText

    def word(self, *ends: str, limit: int = MAX_WORD) -> Steps[tuple[str, str]]:
        """A short text and the marker behind it. Raises `NotMarkup` when it is longer than `limit`."""
        wanted = _markers(ends)
        parts: list[str] = []
        room = limit
        while True:
            n_sure, end = self._next(wanted)
            parts.append(self.consume(min(n_sure, room)))
            room -= n_sure
            if room < 0:
                raise NotMarkup
            if end:
                return "".join(parts), self.consume(len(end))
            yield from self.more()

    def match(self, pattern: re.Pattern[str], *, limit: int | None = MAX_WORD) -> Steps[str]:
        """The longest run of what `pattern`, a class of characters with a ``*``, takes.

        Raises `NotMarkup` when it is longer than `limit`.
        """
        parts: list[str] = []
        room = limit
        while True:
            found = pattern.match(self.text)
            n_found = found.end() if found else 0
            parts.append(self.consume(n_found if room is None else min(n_found, room)))
            if room is not None:
                room -= n_found
                if room < 0:
                    raise NotMarkup
            if self.text or self.final:
                return "".join(parts)
            yield
