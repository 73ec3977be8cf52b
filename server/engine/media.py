"""Media as a part of a text: which tokens stand for a picture or a sound, and where positions go on behind it. Pure.

A projector makes n embeddings of a medium (or of a slice of one), which lie in n cells as n tokens would. In prompts,
slots and caches each is a negative number, made from the medium's name and the embedding's place: so a common
beginning, a hash, a copy are found as for text, and two media are the same exactly where their numbers are.

What text has and these have not: they can't be cut inside, and with M-RoPE they take fewer positions than cells (all
of a picture's have the same first coordinate). `MediaSpan` says so for one of them; a text's are a tuple, in order.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

_LEAST = -(1 << 31)
_NOT_LAST_BIT = ~1  # -1 is the library's name for "no token", and hash(-1) == hash(-2)


class MediaChunk(Protocol):
    """What the native side encodes; its own, opaque here. Freed when nobody refers to it."""

    @property
    def key(self) -> bytes:
        """Of the embeddings: equal keys have equal ones, whatever prompt the medium stands in."""

    @property
    def causal(self) -> bool:
        """Whether its embeddings are decoded as text is; else each sees all, and all are decoded at once."""


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """``n_tokens`` tokens of a text, from the ``start``-th on, that stand for one medium or one slice of it.

    ``n_pos``: positions until the next token. ``linear``: each token has the next position, else all have the first
    one's (M-RoPE). ``id``: of the content, and ``nth``: which of those with this id in its text it is, from 0 on.
    ``record``: the library's own description (mtmd_input_chunk_save), for saved slots. ``chunk``: what its embeddings
    are made from, where they may still have to be.
    """

    start: int
    n_tokens: int
    n_pos: int
    linear: bool
    id: str
    nth: int = 0
    record: bytes = b""
    chunk: MediaChunk | None = field(default=None, compare=False, repr=False)

    @property
    def end(self) -> int:
        """The first token behind it."""
        return self.start + self.n_tokens

    @property
    def kept(self) -> "MediaSpan":
        """As a slot or a cache remembers it: nobody encodes it from there."""
        return self if self.chunk is None else replace(self, chunk=None)


Spans = tuple[MediaSpan, ...]
"""Of one text, in order; they don't overlap. Of text alone: none."""


@dataclass(frozen=True, slots=True)
class MediaInput:
    """What a batch entry's tokens stand for: embeddings of `span`, from its ``first``-th token on.

    ``embeddings``: of the whole span, [n_tokens, n_embd] 32-bit floats.
    """

    span: MediaSpan
    embeddings: bytes
    first: int

    @property
    def causal(self) -> bool:
        """See `MediaChunk`."""
        return self.span.chunk is None or self.span.chunk.causal


@dataclass(frozen=True, slots=True)
class MediaPrompt:
    """A prompt with media: ``tokens`` of text and, negative, of ``spans``."""

    tokens: list[int]
    spans: Spans = ()

    def __len__(self) -> int:
        return len(self.tokens)


def media_tokens(id_: str, nth: int, n_tokens: int) -> list[int]:
    """The numbers that stand for a medium, 31 bits of its hash each: nobody finds two media with equal ones."""
    seed = f"{id_}\0{nth}\0{n_tokens}".encode()
    words = memoryview(hashlib.shake_256(seed).digest(4 * n_tokens)).cast("i")
    return [(word | _LEAST) & _NOT_LAST_BIT for word in words]


def runs(spans: Spans, n: int) -> list[tuple[int, int, MediaSpan | None]]:
    """The first `n` tokens as runs of text and whole media: where each begins and ends, and the medium."""
    found: list[tuple[int, int, MediaSpan | None]] = []
    at = 0
    for span in spans:
        if at < span.start:
            found.append((at, span.start, None))
        found.append((span.start, span.end, span))
        at = span.end
    return [*found, (at, n, None)] if at < n else found


def whole(spans: Spans, n: int) -> int:
    """The most of the first `n` tokens that end inside of no span."""
    for span in spans:
        if span.start < n < span.end:
            return span.start
    return n


def position(spans: Spans, n: int) -> int:
    """The position of the `n`-th token, from 0 on; inside of a span that of its first one."""
    pos = n
    for span in spans:
        if span.end > n:
            return pos - (n - span.start) if span.start < n else pos
        pos += span.n_pos - span.n_tokens
    return pos


def last_position(spans: Spans, n: int) -> int:
    """The greatest position of the first `n` tokens; -1 of none."""
    if not n:
        return -1
    for span in spans:
        if span.start < n <= span.end:
            first = position(spans, span.start)
            return first + n - 1 - span.start if span.linear else first
    return position(spans, n - 1)


def n_up_to(spans: Spans, pos: int) -> int:
    """The least number of tokens, spans whole, whose next one has the position `pos` or a later one."""
    n = pos
    for span in spans:
        first = position(spans, span.start)
        if pos <= first:
            break
        if pos < first + span.n_pos:
            return span.end
        n += span.n_tokens - span.n_pos
    return n


def text_of(tokens: Sequence[int], spans: Spans) -> Sequence[int]:
    """What of `tokens` is text, for who knows nothing else."""
    return [token for token in tokens if token >= 0] if spans else tokens


def below(spans: Spans, n: int) -> Spans:
    """Those that begin in the first `n` tokens."""
    return tuple(span for span in spans if span.start < n) if spans else spans


def dropped(spans: Spans, start: int, end: int) -> Spans:
    """Of a text whose tokens from `start` to `end` were taken out, which cut no span."""
    before = [span for span in spans if span.start < start]
    behind = [replace(span, start=span.start - (end - start)) for span in spans if span.start >= end]
    return (*before, *behind)


def span_at(spans: Spans, at: int) -> MediaSpan | None:
    """The span that the token `at` is in, or the next one behind it."""
    return next((span for span in spans if span.end > at), None)


def check_spans(spans: Spans, tokens: Sequence[int]) -> None:
    """That `tokens` have negative numbers exactly where `spans`, the last of which may be incomplete, are; raises
    AssertionError."""
    at = 0
    for span in spans:
        assert span.start >= at, "media overlap"
        assert min(tokens[at : span.start], default=0) >= 0, "a medium's token without its span"
        wanted = media_tokens(span.id, span.nth, span.n_tokens)
        found = list(tokens[span.start : span.end])
        assert found, "a medium that is not there"
        assert found == wanted[: len(found)], "a medium has another one's tokens"
        at = span.end
    assert min(tokens[at:], default=0) >= 0, "a medium's token without its span"
