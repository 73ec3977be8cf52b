"""Reads text that arrives in chunks: generators ``yield`` when they need more.

So a parser has the structure of its format, and every character is examined a constant number of times. A reader
immediately consumes the text that it has examined, except a prefix of a marker; so the buffered text is never longer
than a marker. A long chunk is read in pieces of `MAX_PIECE`, because consuming text copies the rest.
"""

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
Emit = Callable[[str], None]

MAX_WORD = 256  # maximum characters of a name or a header; longer text is no markup
MIN_CUT_MARKER = 4  # minimum characters of a truncated marker; fewer are more likely text
MAX_PIECE = 1024  # maximum characters per piece, because consuming text copies the rest


def pieces_of(text: str) -> Sequence[str]:
    """Split a chunk into pieces for a reader; "" is one piece."""
    if len(text) <= MAX_PIECE:
        return (text,)
    return [text[start : start + MAX_PIECE] for start in range(0, len(text), MAX_PIECE)]


class EndOfText(Exception):
    """A reader needs more text, but the text is complete."""


class NotMarkup(Exception):
    """Text that looked like markup is content."""


@dataclass(frozen=True, slots=True)
class _Markers:
    pattern: re.Pattern[str]
    prefixes: frozenset[str]
    first: frozenset[str]
    longest: int

    def n_prefix_chars(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that is a proper prefix of a marker."""
        tail = text[-(self.longest - 1) :] if self.longest > 1 else ""
        if self.first.isdisjoint(tail):
            return 0
        return next((len(tail) - at for at in range(len(tail)) if tail[at:] in self.prefixes), 0)


@lru_cache(maxsize=512)
def _markers(markers: tuple[str, ...]) -> _Markers:
    longest_first = sorted(markers, key=len, reverse=True)
    prefixes = frozenset(marker[:n] for marker in markers for n in range(1, len(marker)))
    pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
    return _Markers(pattern, prefixes, frozenset(marker[0] for marker in markers), max(map(len, markers), default=0))


@dataclass(slots=True)
class Reader:
    """Reads text that arrives in chunks."""

    text: str = ""  # not yet consumed
    final: bool = False  # the text is complete
    cut: bool = False  # the output was truncated, such as by a token limit
    raw: list[str] = field(default_factory=list)  # consumed since `settle`, to return it

    def consume(self, n: int) -> str:
        taken, self.text = self.text[:n], self.text[n:]
        if taken:
            self.raw.append(taken)
        return taken

    def back(self, text: str) -> None:
        self.text = text + self.text
        self.raw[:] = ["".join(self.raw).removesuffix(text)]

    def settle(self) -> str:
        """Return the text consumed since the last call, which is markup."""
        raw = "".join(self.raw)
        self.raw.clear()
        return raw

    def more(self) -> Steps[None]:
        """Wait for text. Raises `EndOfText` at the end."""
        if self.final:
            raise EndOfText
        yield

    def peek(self) -> Steps[str]:
        """Return the next character; "" at the end."""
        while not self.text and not self.final:
            yield
        return self.text[:1]

    def take(self, *markers: str) -> Steps[str]:
        """Consume and return the next marker; "" if there is none. Raises `EndOfText` if it is truncated."""
        compiled = _markers(markers)
        while not self.final and (not self.text or self.text in compiled.prefixes):
            yield
        if self.cut and len(self.text) >= MIN_CUT_MARKER and self.text in compiled.prefixes:
            raise EndOfText
        found = compiled.pattern.match(self.text)
        return self.consume(found.end()) if found else ""

    def expect(self, *markers: str) -> Steps[str]:
        """Consume and return the marker at this position. Raises `NotMarkup` if there is none."""
        taken = yield from self.take(*markers)
        if not taken:
            raise NotMarkup
        return taken

    def skip(self, *markers: str) -> Steps[str]:
        """Consume white space and the next marker, which are markup. Return the marker; "" if there is none."""
        yield from self.spaces()
        taken = yield from self.take(*markers)
        if taken:
            self.settle()
        return taken

    def spaces(self) -> Steps[None]:
        while True:
            self.consume(len(self.text) - len(self.text.lstrip()))
            if self.text or self.final:
                return
            yield

    def until(self, markers: tuple[str, ...], emit: Emit) -> Steps[str]:
        """Emit the text before the first marker and return the marker.

        Raises `EndOfText` if there is none. A truncated marker stays unread.
        """
        compiled = _markers(markers)
        while True:
            n_sure, marker = self._next(compiled)
            if n_sure:
                emit(self.consume(n_sure))
            if marker:
                return self.consume(len(marker))
            yield from self.more()

    def _next(self, markers: _Markers) -> tuple[int, str]:
        """Return the number of characters that certainly precede any marker, and the marker if it is present."""
        found = markers.pattern.search(self.text)
        n_held = markers.n_prefix_chars(self.text) if self.cut or not self.final else 0
        if self.cut and n_held < MIN_CUT_MARKER:
            n_held = 0
        n_sure = len(self.text) - n_held
        if found is None or (n_held and n_sure <= found.start()):  # a longer marker may start before it
            return n_sure, ""
        return found.start(), found[0]

    def run(self, steps: Steps[T]) -> T:
        """Return the result of a generator over complete text. Raises `EndOfText` if the generator needs more."""
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

    def word(self, *ends: str) -> Steps[tuple[str, str]]:
        """Return a short text and the marker after it. Raises `NotMarkup` if the text is longer than `MAX_WORD`."""
        parts: list[str] = []

        def take(text: str) -> None:
            parts.append(text)
            if sum(map(len, parts)) > MAX_WORD:
                raise NotMarkup

        end = yield from self.until(ends, take)
        return "".join(parts), end

    def match(self, pattern: re.Pattern[str], *, limit: int | None = MAX_WORD) -> Steps[str]:
        """Return the longest match of `pattern`, a character class with a ``*``. Raises `NotMarkup` if it is longer
        than `limit`.
        """
        parts: list[str] = []
        while True:
            found = pattern.match(self.text)
            parts.append(self.consume(found.end() if found else 0))
            if limit is not None and sum(map(len, parts)) > limit:
                raise NotMarkup
            if self.text or self.final:
                return "".join(parts)
            yield
