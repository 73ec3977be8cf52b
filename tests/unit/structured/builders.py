"""A vocabulary with tokens of several bytes, and ways to walk a constraint."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from server.formats import GENERIC
from server.formats.chat_format import ChatFormat
from server.structured.after_reasoning import AfterReasoning
from server.structured.constraint import Constraint
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.grammar.matcher import MatcherConstraint
from tests.support.fakes import EOS, FakeVocab

BYTES = GrammarCompiler(FakeVocab())


class WordVocab(FakeVocab):
    """Bytes, tokens of several bytes (parts of characters and of JSON among them), then specials."""

    words = (
        *(bytes([byte]) for byte in range(256)),
        *(b'{"', b'": ', b'",', b"true", b"null", b"12", b" 3", b"}\n", b"]}", b"hello", b" world", b"\\u00", b'\\"'),
        *("é".encode(), "€".encode()[:2], "é€".encode(), "😀".encode()[1:], b"\n\n", b"  ", b"", b"<think>"),
    )
    specials = (b"<s>", b"</s>", b"<|im_end|>", b"<tool>")
    bos = len(words)
    eos = bos + 1
    eog = frozenset({bos + 1, bos + 2})
    n_tokens = bos + 4

    def piece(self, token: int, *, special: bool = True) -> bytes:
        if token < self.bos:
            return self.words[token]
        return self.specials[token - self.bos] if special else b""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode()
        if parse_special and raw in self.specials:
            return [self.bos + self.specials.index(raw)]
        return [self.words.index(raw)] if raw in self.words else list(raw)


WORDS = GrammarCompiler(WordVocab())


def after_reasoning(
    inner: Constraint,
    vocab: FakeVocab | None = None,
    *,
    tags: tuple[str, str] = ("<t>", "</t>"),
    lead: str = "",
    again: str = "",
    begun: bool = False,
    may_think: bool = False,
) -> AfterReasoning:
    """That constraint, after reasoning and markup of a format with those tags."""
    chat_format = ChatFormat(replace(GENERIC, again=again), GENERIC.syntax, "", tags, has_reasoning_tags=True)
    vocab = vocab or FakeVocab()
    compiler = GrammarCompiler(vocab)
    lark = chat_format.framing(lead, compiler.control_token, tags, begun=begun, may_think=may_think)
    return AfterReasoning(inner, vocab, compiler.own_lark(lark), tags[0].encode())


def takes(constraint: Constraint, tokens: Iterable[int]) -> bool:
    """Advance as far as these tokens are allowed; whether all are."""
    for token in tokens:
        if not constraint.allows(token):
            return False
        constraint.accept(token)
    return True


def matches(constraint: MatcherConstraint, text: str | bytes) -> bool:
    """Whether the constraint takes exactly these bytes, one by one, and may end there."""
    return takes(constraint, text.encode() if isinstance(text, str) else text) and constraint.complete


def say(constraint: Constraint, text: str | bytes) -> bytes:
    """Offer a text byte by byte, as a model that wants to say it: what comes out, with what is forced in between."""
    said = b""
    for byte in text.encode() if isinstance(text, str) else text:
        while not constraint.allows(byte):
            (token,) = allowed(bytes(constraint.mask()), FakeVocab.n_tokens)
            constraint.accept(token)
            said += FakeVocab().piece(token)
        constraint.accept(byte)
        said += bytes([byte])
    return said


@dataclass
class Only:
    """A constraint of `FakeVocab` that allows one text, then an end."""

    text: bytes
    said: bytes = b""

    def fork(self) -> "Only":
        return Only(self.text, self.said)

    def allows(self, token: int) -> bool:
        rest = self.text[len(self.said) :]
        return token == (rest[0] if rest else EOS)

    def mask(self) -> bytes:
        bits = bytearray((FakeVocab.n_tokens + 31) // 32 * 4)
        for token in filter(self.allows, range(FakeVocab.n_tokens)):
            bits[token // 8] |= 1 << token % 8
        return bytes(bits)

    def masked_by(self) -> None:
        return None

    def accept(self, token: int) -> None:
        assert self.allows(token)
        self.said += FakeVocab().piece(token)

    @property
    def finished(self) -> bool:
        return self.said == self.text


def allowed(mask: bytes, n_tokens: int) -> set[int]:
    """The tokens whose bit is set."""
    return {token for token in range(n_tokens) if mask[token // 8] >> (token % 8) & 1}


def walk(constraint: MatcherConstraint, vocab: WordVocab, seed: int, *, at_most: int = 60) -> bytes:
    """Random tokens by the masks, then the shortest way out: what a bad model would write."""
    chance = random.Random(seed)
    out = b""
    for step in range(2000):
        tokens = allowed(constraint.mask(), vocab.n_tokens)
        assert tokens, f"nothing may follow {out!r}"
        if constraint.finished or (step >= at_most and tokens & vocab.eog):
            return out
        usable = sorted(tokens - vocab.eog) or sorted(tokens)
        token = chance.choice(usable) if step < at_most else _closing(usable)
        if token in vocab.eog:
            return out
        assert constraint.allows(token)
        constraint.accept(token)
        out += vocab.piece(token)
    raise AssertionError(f"no end after {out[:200]!r}")


def _closing(tokens: Iterable[int]) -> int:
    order = b'"}]>xea,0:'
    return min(tokens, key=lambda token: (order.find(bytes([token])) % 99 if token < 256 else 100, token))


def exploding_schema() -> dict[str, Any]:
    """A small schema whose branches, once each excludes the others, take llguidance minutes and gigabytes to join."""
    stops = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    place = {
        "type": "object",
        "properties": {
            "from": {"type": "string"},
            "stops": stops,
        },
    }
    branch = {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in ("ride", "walk", "never", "both", "either")]}
    return {
        "type": "object",
        "properties": {"trip": branch},
        "required": ["trip"],
        "$defs": {
            "place": place,
            "ride": _with_place({"ticket": {"type": "object"}}),
            "walk": _with_place({"pace": {"type": "string"}, "tags": stops}),
            "never": _needing("never", branch),
            "both": _needing("both", {"type": "array", "items": branch}),
            "either": _needing("either", {"type": "array", "items": branch}),
        },
    }


def _with_place(properties: dict[str, Any]) -> dict[str, Any]:
    own = {"properties": properties, "required": [next(iter(properties))]}
    return {"type": "object", "allOf": [own, {"$ref": "#/$defs/place"}]}


def _needing(name: str, value: object) -> dict[str, Any]:
    return {"type": "object", "properties": {name: value}, "required": [name]}
