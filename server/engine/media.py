"""Media inside token sequences: which tokens represent an image or audio clip, and how positions continue after it.
Pure.

A projector computes n embeddings per medium (or slice), which occupy n cells like n tokens. In prompts, slots and
caches each embedding is a negative number derived from the medium's hash and the embedding's index. Common prefixes,
hashes and copies therefore work as for text, and two media are equal exactly if their numbers are.

Unlike text, a medium cannot be truncated inside, and with M-RoPE it takes fewer positions than cells. A `MediaSpan`
describes one medium; a sequence has a tuple of them, in order.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

_SIGN_BIT = -(1 << 31)
_CLEAR_LAST_BIT = ~1  # -1 is the library's "no token", and hash(-1) == hash(-2)


class MediaChunk(Protocol):
    """What the native side encodes; opaque here. Freed with its last reference."""

    @property
    def key(self) -> bytes:
        """Cache key of the embeddings: equal keys have equal embeddings in any prompt."""

    @property
    def causal(self) -> bool:
        """Whether its embeddings are decoded causally. Otherwise all attend to all and are decoded in one batch."""


class Encoding(Future[bytes]):
    """The future embeddings of one medium. ``n_users``: sequences that need them."""

    def __init__(self, chunk: MediaChunk, key: bytes) -> None:
        super().__init__()
        self.chunk, self.key, self.n_users = chunk, key, 0


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """``n_tokens`` tokens from index ``start`` that represent one medium or one slice of it.

    ``n_pos``: positions until the next token. ``linear``: each token has its own position; otherwise all have the
    first one's (M-RoPE). ``id``: content hash; ``nth``: occurrence of this id in its text, from 0. ``record``: the
    library's description (mtmd_input_chunk_save), for saved slots. ``chunk``: source of the embeddings while they
    may still be computed.
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
        """The index of the first token after it."""
        return self.start + self.n_tokens

    @property
    def kept(self) -> "MediaSpan":
        """A copy without its chunk, as slots and caches store it."""
        return self if self.chunk is None else replace(self, chunk=None)


Spans = tuple[MediaSpan, ...]
"""The media spans of one text, in order, without overlap."""


@dataclass(frozen=True, slots=True)
class MediaInput:
    """The embeddings of a batch entry: those of `span` from its ``first``-th token on.

    ``embeddings``: of the whole span, [n_tokens, n_embd] 32-bit floats.
    """

    span: MediaSpan
    embeddings: bytes
    first: int

    @property
    def causal(self) -> bool:
        """See `MediaChunk.causal`."""
        return self.span.chunk is None or self.span.chunk.causal


@dataclass(frozen=True, slots=True)
class MediaPrompt:
    """A prompt with media: text tokens, and negative numbers for ``spans``."""

    tokens: list[int]
    spans: Spans = ()

    def __len__(self) -> int:
        return len(self.tokens)


def media_tokens(id_: str, nth: int, n_tokens: int) -> list[int]:
    """Return the numbers that represent a medium: 31 bits of its hash each, so that collisions cannot be
    constructed."""
    seed = f"{id_}\0{nth}\0{n_tokens}".encode()
    words = memoryview(hashlib.shake_256(seed).digest(4 * n_tokens)).cast("i")
    return [(word | _SIGN_BIT) & _CLEAR_LAST_BIT for word in words]


def runs(spans: Spans, n: int) -> list[tuple[int, int, MediaSpan | None]]:
    """Split the first `n` tokens into runs of text and whole media: (start, end, medium or None)."""
    found: list[tuple[int, int, MediaSpan | None]] = []
    at = 0
    for span in spans:
        if at < span.start:
            found.append((at, span.start, None))
        found.append((span.start, span.end, span))
        at = span.end
    return [*found, (at, n, None)] if at < n else found


def whole(spans: Spans, n: int) -> int:
    """Return `n`, or if the first `n` tokens end inside a span, the number of tokens before that span."""
    for span in spans:
        if span.start < n < span.end:
            return span.start
    return n


def position(spans: Spans, n: int) -> int:
    """Return the position of the `n`-th token, from 0; inside a span that of its first token."""
    pos = n
    for span in spans:
        if span.end > n:
            return pos - (n - span.start) if span.start < n else pos
        pos += span.n_pos - span.n_tokens
    return pos


def last_position(spans: Spans, n: int) -> int:
    """Return the largest position of the first `n` tokens, -1 if n is 0."""
    if not n:
        return -1
    span = span_at(spans, n - 1)
    n_inside = n - 1 - span.start if span is not None and span.linear else 0
    return position(spans, n - 1) + max(n_inside, 0)


def n_up_to(spans: Spans, pos: int) -> int:
    """Return the smallest number of tokens, with whole spans, after which the next position is at least `pos`."""
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
    """Return the text tokens, without media."""
    return [token for token in tokens if token >= 0] if spans else tokens


def below(spans: Spans, n: int) -> Spans:
    """Return the spans that start in the first `n` tokens."""
    return tuple(span for span in spans if span.start < n) if spans else spans


def dropped(spans: Spans, start: int, end: int) -> Spans:
    """Return the spans after tokens `start` to `end` were removed, which must not split a span."""
    before = [span for span in spans if span.start < start]
    after = [replace(span, start=span.start - (end - start)) for span in spans if span.start >= end]
    return (*before, *after)


def span_at(spans: Spans, at: int) -> MediaSpan | None:
    """Return the span that contains token `at`, otherwise the next one after it."""
    return next((span for span in spans if span.end > at), None)


def check_spans(spans: Spans, tokens: Sequence[int]) -> None:
    """Verify that `tokens` are negative exactly inside `spans`; the last span may be incomplete. Raises
    AssertionError.
    """
    at = 0
    for span in spans:
        assert span.start >= at, "media overlap"
        assert min(tokens[at : span.start], default=0) >= 0, "a medium's token without its span"
        expected = media_tokens(span.id, span.nth, span.n_tokens)
        actual = list(tokens[span.start : span.end])
        assert actual, "a span without tokens"
        assert actual == expected[: len(actual)], "a span with the tokens of another medium"
        at = span.end
    assert min(tokens[at:], default=0) >= 0, "a medium's token without its span"
