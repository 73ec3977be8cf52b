"""What a bad model writes under a constraint: any allowed token for a while, then the shortest way to an end.

A mask does not say how far an end is: where a string must match ``ipv6$``, any character may follow at any time, and
what draws one after the other comes to no end. So a string that may not end is ended by what is left of an example of
one of the schema's patterns, if one of them fits; characters are drawn only where none does.
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
CLOSERS = tuple(b"}],")  # outside of a string; a comma where something is still required
OPENERS = frozenset(b'{["')


class BenchVocab(FakeVocab):
    """The vocabulary that `make_gguf` writes, without a model."""

    def __init__(self, n_tokens: int = N_VOCAB) -> None:
        super().__init__()
        raw = {letter: bytes([byte]) for byte, letter in byte_letters().items()}
        made = make_vocabulary(n_tokens)
        self.pieces = [b"".join(raw[char] for char in token) for token in made.tokens[: -len(CONTROL_TOKENS)]]
        self.n_tokens = n_tokens
        self.bos, self.eos = n_tokens - len(CONTROL_TOKENS), n_tokens - 1
        self.eog = frozenset({self.eos})

    def piece(self, token: int, *, special: bool = True) -> bytes:
        if token < len(self.pieces):
            return self.pieces[token]
        return CONTROL_TOKENS[token - len(self.pieces)].encode() if special else b""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Bytes: the first 256 tokens are those."""
        return list(text.encode())


class NoEndError(Exception):
    """The output was still not complete after as many tokens as there may be."""


def endings(schema: object) -> list[bytes]:
    """How strings may end by the patterns of a schema, as JSON with the quote behind, shorter ones first."""
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
    """Walks over masks of one vocabulary, whose first 256 tokens are the bytes."""

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
        """The tokens up to the end, without it. ``free``: how many of them are any; ``endings``: of strings, by the
        schema's patterns. Raises `NoEndError`.
        """
        out: list[int] = []
        in_string = escaped = False
        ahead: list[int] = []  # of an ending that was found
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
        """The tokens of the mask but for the control tokens."""
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
    """Whether all of it may come next."""
    fork = constraint.fork()
    for token in ending:
        if not fork.allows(token):
            return False
        fork.accept(token)
    return True
