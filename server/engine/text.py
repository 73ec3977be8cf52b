"""Incremental detokenization: whole characters, never a part of a stop string."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from server.engine.request import Text, TokenLogprob

_BLANKS = " \t"


@dataclass(slots=True)
class TextStream:
    """Incremental detokenizer of choice number `index`, with its stop strings.

    `feed` returns the text that became final. ``stopping_word`` is set once a stop string matched, ``outdented``
    once a line is indented by fewer than ``n_indent`` characters; nothing after either is emitted. The first line
    may have any indentation, and the white space of the outdented line is kept (llama.cpp server-context.cpp,
    process_token).
    """

    stops: Sequence[str] = ()
    n_indent: int = 0
    index: int = 0
    stopping_word: str = ""
    outdented: bool = False
    has_new_line: bool = False
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    _held: str = ""
    _n_shown: int = 0  # characters returned so far
    _pending: list[tuple[int, int, TokenLogprob | None]] = field(default_factory=list)
    """Tokens whose text is held: id, start in the text, log probability."""
    _n_matched: list[int] = field(default_factory=list)
    """For each stop string, the length of its longest start that ends the text."""
    _is_incomplete: bool = False  # the decoder holds the start of a character
    _indent: int = -1  # indentation of a line with only white space so far; -1 = within a line

    def feed(self, token: int, piece: bytes, logprob: TokenLogprob | None) -> Text | None:
        """Add a token; return new text, None if nothing can be emitted yet."""
        if not (self._is_incomplete or self._pending or self.stops or logprob or self.n_indent):
            text = _decode_whole(piece)
            if text:
                self.has_new_line = self.has_new_line or "\n" in text
                return Text(self.index, text, (token,))
        self._pending.append((token, self._n_shown + len(self._held), logprob))
        new = self._decoder.decode(piece)
        self._is_incomplete = bool(self._decoder.getstate()[0])
        if not new:
            return None
        n_searched = len(self._held)
        self._held += new
        n_more = self._partial_stop(new) if self.stops and not self._truncate_at_stop(n_searched) else 0
        return self._show(len(self._held) - n_more)

    def finish(self) -> Text | None:
        """Return the held text; an incomplete character becomes U+FFFD."""
        if self.outdented:
            return None
        if not self.stopping_word:
            self._held += self._decoder.decode(b"", final=True)
        if not self._held and not self._pending:
            return None
        return self._show(len(self._held), last=True)

    def _truncate_at_stop(self, n_searched: int) -> bool:
        """Truncate the held text at the first stop string; tokens after it lose their log probabilities."""
        hits = []
        for stop in self.stops:
            at = self._held.find(stop, max(0, n_searched - len(stop) + 1))
            if at >= 0:
                hits.append((at, stop))
        if not hits:
            return False
        at, self.stopping_word = min(hits, key=lambda hit: hit[0])
        self._held = self._held[:at]
        end = self._n_shown + at
        self._pending = [(token, start, logprob if start < end else None) for token, start, logprob in self._pending]
        return True

    def _partial_stop(self, new: str) -> int:
        """Return the length of the longest suffix of the text that may start a stop string. `new`: its new characters.

        Knuth-Morris-Pratt: the time per character does not depend on the length of the stop strings.
        """
        if not self._n_matched:
            self._n_matched = [0] * len(self.stops)
        for i, stop in enumerate(self.stops):
            n = self._n_matched[i]
            if n or stop[0] in new:
                borders = _borders(stop)
                for char in new:
                    while n and stop[n] != char:
                        n = borders[n - 1]
                    n += stop[n] == char
                self._n_matched[i] = n
        return max(self._n_matched)

    def _show(self, n: int, *, last: bool = False) -> Text | None:
        """Release the first ``n`` held characters, with every token that starts in them."""
        if n == 0 and not last:
            return None
        text, self._held = self._held[:n], self._held[n:]
        self._n_shown += n
        done = [each for each in self._pending if each[1] < self._n_shown] if self._held else self._pending
        self._pending = self._pending[len(done) :]
        self.has_new_line = self.has_new_line or "\n" in text
        text = self._up_to_outdent(text) if self.n_indent else text
        logprobs = tuple([logprob for _, _, logprob in done if logprob is not None])
        return Text(self.index, text, tuple([token for token, _, _ in done]), logprobs)

    def _up_to_outdent(self, text: str) -> str:
        """Return `text` up to the first letter of a line that is indented too little."""
        for at, char in enumerate(text):
            if self._indent >= 0 and char in _BLANKS:
                self._indent += 1
            elif 0 <= self._indent < self.n_indent:
                self.outdented = True
                return text[:at]
            else:
                self._indent = 0 if char == "\n" else -1
        return text


@lru_cache(256)
def _borders(stop: str) -> list[int]:
    """Return, for each start of `stop`, the length of its longest proper suffix that also starts it."""
    borders, n = [0], 0
    for char in stop[1:]:
        while n and stop[n] != char:
            n = borders[n - 1]
        n += stop[n] == char
        borders.append(n)
    return borders


@lru_cache(1 << 16)
def _decode_whole(piece: bytes) -> str:
    """Return the text of a piece that consists of whole characters, otherwise "". Cached, because tokens repeat."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return ""
