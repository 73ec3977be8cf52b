"""A model's vocabulary, as everything above the native library sees it. `server.llama` implements it."""

from collections.abc import Sequence
from typing import Protocol


class PlainText(str):
    """Text in which the tokenizer finds no control tokens, whatever it contains: a document's."""

    __slots__ = ()


class Vocab(Protocol):
    """A model's vocabulary. Safe to use from any thread; nothing changes anything. An id is -1 where there is none.

    ``eog``: every end-of-generation id. ``fim_prefix``, of filling in the middle: the token before the text
    that precedes the gap. ``quick_bytes``: texts of so many bytes together take a millisecond at worst.
    ``max_token_bytes``: the most bytes of a text that become one token; 0 if the vocabulary may skip bytes.
    """

    n_tokens: int
    quick_bytes: int
    max_token_bytes: int
    bos: int
    eos: int
    sep: int
    eog: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_sep: bool
    fim_prefix: int
    fim_suffix: int
    fim_middle: int
    fim_repo: int
    fim_sep: int

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...

    def piece(self, token: int, *, special: bool = True) -> bytes:
        """Return the bytes that `token` prints; with ``special=False`` nothing for control tokens."""

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> bytes: ...
