"""Cuts a long text behind special tokens, so that tokenizing it takes time in proportion to its length.

For every special token that llama.cpp finds it walks the list of what was found so far from its beginning
(src/llama-vocab.cpp, tokenizer_st_partition): 400 kB of ``<|im_end|>x`` take 44 s, 4 MB over an hour. The tokens of a
text that ends in a special token are the same whatever follows, and what follows is tokenized as after a beginning
without BOS; so the pieces can be handed over one by one.
"""

import re
from collections.abc import Iterable, Iterator

MIN_PIECE_BYTES = 256  # the time of a piece grows with its square
_WINDOW_BYTES = 4096  # `re` holds the GIL for one window at a time


class SpecialTexts:
    """The texts that the tokenizer finds before anything else, of one vocabulary."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._texts = sorted({text for text in texts if text}, key=len, reverse=True)
        self._longest = len(self._texts[0]) if self._texts else 0
        self._pattern = re.compile(b"|".join(map(re.escape, self._texts)))
        self._rivals: dict[bytes, tuple[bytes, ...]] = {}

    def pieces(self, raw: bytes) -> Iterator[bytes]:
        """`raw` in pieces, each but the last one ending in a special text that is certainly taken as a token."""
        start = 0
        while self._texts and (end := self._cut(raw, start + MIN_PIECE_BYTES)):
            yield raw[start:end]
            start = end
        yield raw[start:]

    def _cut(self, raw: bytes, at: int) -> int:
        """The end of the first special text at or behind `at` that nothing else competes with; 0 = there is none."""
        while at < len(raw):
            window_end = at + _WINDOW_BYTES
            match = self._pattern.search(raw, at, window_end + self._longest)
            if match is None:
                at = window_end
            elif self._alone(raw, match.start(), match[0]):
                return match.end()
            else:
                at = match.start() + 1
        return 0

    def _alone(self, raw: bytes, at: int, text: bytes) -> bool:
        """Whether no other special text overlaps the one at `at`: the longer, then the left one would win."""
        for other in self._rivals_of(text):
            first = max(0, at - len(other) + 1)
            found = raw.find(other, first, at + len(text) + len(other) - 1)
            if found == at and other == text:
                found = raw.find(other, at + 1, at + len(text) + len(other) - 1)
            if found >= 0:
                return False
        return True

    def _rivals_of(self, text: bytes) -> tuple[bytes, ...]:
        """The special texts that can overlap `text`, itself included where it can overlap itself."""
        known = self._rivals.get(text)
        if known is None:
            known = self._rivals[text] = tuple(other for other in self._texts if _can_overlap(text, other))
        return known


def _can_overlap(one: bytes, other: bytes) -> bool:
    if one != other and (one in other or other in one):
        return True
    sizes = range(1, min(len(one), len(other)))
    return any(one.endswith(other[:n]) or other.endswith(one[:n]) for n in sizes)
