"""Generate random outputs of a constraint: any allowed tokens for a while, then the shortest way to the end.

Masks do not show the distance to the end. For example, if a string must match ``ipv6$``, every character is allowed at
any time, and random characters never end it. Such a string is completed with the rest of an example of one of the
schema's patterns, if one fits; otherwise with random characters.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.make_gguf import CONTROL_TOKENS, make_vocabulary
from benchmarks.schemas.examples import examples
from server.structured.grammar.matcher import MatcherConstraint
from tests.support.fakes import FakeVocab
from tests.support.ggufs.vocabulary import byte_letters

N_VOCAB = 151_936  # as Qwen 2.5 and 3
CLOSERS = tuple(b"}],")  # outside strings; a comma if a member or item is still required
OPENERS = frozenset(b'{["')


class BenchVocab(FakeVocab):
    """The vocabulary that `make_gguf` writes, without a model."""

    def __init__(self, n_tokens: int = N_VOCAB) -> None:
        super().__init__()
        raw = {letter: bytes([byte]) for byte, letter in byte_letters().items()}
        tokens = make_vocabulary(n_tokens).tokens[: -len(CONTROL_TOKENS)]
        self.pieces = [b"".join(raw[char] for char in token) for token in tokens]
        self.n_tokens = n_tokens
        self.bos, self.eos = n_tokens - len(CONTROL_TOKENS), n_tokens - 1
        self.eog = frozenset({self.eos})

    def piece(self, token: int, *, special: bool = True) -> bytes:
        if token < len(self.pieces):
            return self.pieces[token]
        return CONTROL_TOKENS[token - len(self.pieces)].encode() if special else b""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the bytes, which are the first 256 tokens."""
        return list(text.encode())


class NoEndError(Exception):
    """The output was not complete at the token limit."""


def endings(schema: object) -> list[bytes]:
    """Return possible ends of strings from the patterns of a schema, as JSON with the closing quote, shortest first."""
    texts = {text for pattern in _patterns(schema) for text in examples(pattern)}
    found = {json.dumps(text[at:], ensure_ascii=False)[1:].encode() for text in texts for at in range(len(text))}
    return sorted(found, key=lambda ending: (len(ending), ending))


def _patterns(schema: object) -> Iterator[str]:
    waiting: list[Any] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
            if isinstance(value.get("pattern"), str):
                yield value["pattern"]
            if isinstance(value.get("patternProperties"), dict):
                yield from value["patternProperties"]


class Walker:
    """Walks through masks of a vocabulary whose first 256 tokens are the bytes."""

    def __init__(self, vocab: BenchVocab) -> None:
        self.vocab = vocab
        self._single = np.array([len(piece) == 1 for piece in vocab.pieces])

    def walk(
        self,
        constraint: MatcherConstraint,
        chance: Random,
        *,
        free: int = 60,
        at_most: int = 2000,
        endings: Sequence[bytes] = (),
    ) -> list[int]:
        """Return the tokens of an output without the end token. Raises `NoEndError` after `at_most` tokens.

        ``free``: the number of random tokens at the start. ``endings``: possible ends of strings (`endings`).
        """
        out: list[int] = []
        in_string = escaped = False
        ahead: list[int] = []  # the rest of the current ending
        while len(out) < at_most:
            allowed = self.allowed(constraint)
            if constraint.finished or (len(out) >= free and constraint.complete) or not len(allowed):
                return out
            if len(out) < free:
                token = int(chance.choice(allowed))
            else:
                if in_string and not ahead and ord('"') not in allowed:
                    ahead = list(next((ending for ending in endings if _fits(constraint, ending)), b""))
                token = ahead.pop(0) if ahead else self._towards_end(allowed, in_string, chance)
            constraint.accept(token)
            out.append(token)
            for byte in self.vocab.pieces[token]:
                if byte == ord('"') and not escaped:
                    in_string = not in_string
                escaped = in_string and byte == ord("\\") and not escaped
        raise NoEndError

    def allowed(self, constraint: MatcherConstraint) -> NDArray[np.intp]:
        """Return the tokens of the mask without control tokens."""
        bits = np.unpackbits(np.frombuffer(constraint.mask(), np.uint8), bitorder="little")
        return np.flatnonzero(bits[: len(self.vocab.pieces)])

    def _towards_end(self, allowed: NDArray[np.intp], in_string: bool, chance: Random) -> int:
        single = allowed[self._single[allowed]]
        if not len(single):
            return int(chance.choice(allowed))
        found = {self.vocab.pieces[token][0]: int(token) for token in single}
        closers: Sequence[int] = (ord('"'),) if in_string else CLOSERS
        for byte in closers:
            if byte in found:
                return found[byte]
        usable = [
            token for byte, token in found.items() if in_string or (byte not in OPENERS and not chr(byte).isspace())
        ]
        return chance.choice(usable or list(found.values()))


def _fits(constraint: MatcherConstraint, ending: Iterable[int]) -> bool:
    """Return whether the constraint allows all of `ending` next."""
    fork = constraint.fork()
    for token in ending:
        if not fork.allows(token):
            return False
        fork.accept(token)
    return True
