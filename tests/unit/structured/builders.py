"""A vocabulary with multi-byte tokens, and functions that generate text under a constraint."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from server.formats import GENERIC
from server.formats.chat_format import ChatFormat
from server.structured.after_reasoning import AfterReasoning
from server.structured.constraint import Constraint
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.grammar.matcher import MatcherConstraint
from tests.support.fakes import FakeVocab

BYTES = GrammarCompiler(FakeVocab())


class WordVocab(FakeVocab):
    """All bytes, multi-byte tokens (also parts of characters and of JSON), `more`, and special tokens at the end."""

    words = (
        *(bytes([byte]) for byte in range(256)),
        *(b'{"', b'": ', b'",', b"true", b"null", b"12", b" 3", b"}\n", b"]}", b"hello", b" world", b"\\u00", b'\\"'),
        *("é".encode(), "€".encode()[:2], "é€".encode(), "😀".encode()[1:], b"\n\n", b"  ", b"", b"<think>"),
    )
    specials = (b"<s>", b"</s>", b"<|im_end|>", b"<tool>")

    def __init__(self, *more: bytes) -> None:
        super().__init__()
        self.words = (*self.words, *more)
        self.bos = len(self.words)
        self.eos, self.eog, self.n_tokens = self.bos + 1, frozenset({self.bos + 1, self.bos + 2}), self.bos + 4

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
    """Return the constraint for after the reasoning and markup of a format with these tags."""
    chat_format = ChatFormat(replace(GENERIC, again=again), GENERIC.syntax, "", tags, has_reasoning_tags=True)
    vocab = vocab or FakeVocab()
    compiler = GrammarCompiler(vocab)
    lark = chat_format.framing(lead, compiler.control_token, tags, begun=begun, may_think=may_think)
    return AfterReasoning(inner, vocab, compiler.own_lark(lark), tags[0].encode())


def takes(constraint: Constraint, tokens: Iterable[int]) -> bool:
    """Advance the constraint until a token is not allowed. Return whether all are allowed."""
    for token in tokens:
        if not constraint.allows(token):
            return False
        constraint.accept(token)
    return True


def matches(constraint: MatcherConstraint, text: str | bytes) -> bool:
    """Return whether the constraint accepts all these bytes, one by one, and may end after them."""
    return takes(constraint, text.encode() if isinstance(text, str) else text) and constraint.complete


def say(constraint: Constraint, text: str | bytes) -> bytes:
    """Accept a text byte by byte and, where its next byte is not allowed, the only token that is. Return the output."""
    output = b""
    for byte in text.encode() if isinstance(text, str) else text:
        while not constraint.allows(byte):
            (token,) = allowed(bytes(constraint.mask()), FakeVocab.n_tokens)
            constraint.accept(token)
            output += FakeVocab().piece(token)
        constraint.accept(byte)
        output += bytes([byte])
    return output


def allowed(mask: bytes, n_tokens: int) -> set[int]:
    """Return the tokens whose bit is set."""
    return {token for token in range(n_tokens) if mask[token // 8] >> (token % 8) & 1}


def walk(
    constraint: MatcherConstraint,
    vocab: FakeVocab,
    seed: int,
    *,
    n_free: int = 60,
    preferred: bytes = b"",
    closing: bytes = b"",
    ends: Sequence[str] = (),
) -> bytes:
    """Return random tokens that the masks allow: `n_free` of them, then those that lead to the end.

    ``preferred``: bytes to choose first. ``closing``: bytes to choose first after `n_free` tokens. ``ends``: texts to
    try then, but never two in a row, because inside a string they are text.
    """
    rng, out, end = random.Random(seed), b"", ""
    for step in range(2000):
        tokens = allowed(constraint.mask(), vocab.n_tokens)
        assert tokens, f"nothing may follow {out!r}"
        is_free = step < n_free
        if constraint.finished or (constraint.complete and not is_free):
            return out
        candidates = rng.sample(ends, len(ends)) if not (is_free or end) else []
        end = next((end for end in candidates if end and takes(constraint.fork(), end.encode())), "")
        if end:
            assert takes(constraint, end.encode())
            out += end.encode()
            continue
        usable = sorted(tokens - vocab.eog)
        first = sorted({*(preferred if is_free else closing)}.intersection(tokens))
        token = rng.choice(first or usable) if first or is_free else _closing(usable, rng)
        assert constraint.allows(token)
        constraint.accept(token)
        out += vocab.piece(token)
    raise AssertionError(f"no end after {out[:200]!r}")


def _closing(tokens: Sequence[int], rng: random.Random) -> int:
    quotes: list[int] = sorted({*b"\"'"}.intersection(tokens))
    if quotes:
        return rng.choice(quotes)
    order = b"}])>xea,0:"
    return min(tokens, key=lambda token: (order.find(bytes([token])) % 99 if token < 256 else 100, token))


def exploding_schema() -> dict[str, Any]:
    """Return a small schema that takes llguidance minutes and gigabytes: every `oneOf` branch excludes the others."""
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
            "never": _requiring("never", branch),
            "both": _requiring("both", {"type": "array", "items": branch}),
            "either": _requiring("either", {"type": "array", "items": branch}),
        },
    }


def _with_place(properties: dict[str, Any]) -> dict[str, Any]:
    branch = {"properties": properties, "required": [next(iter(properties))]}
    return {"type": "object", "allOf": [branch, {"$ref": "#/$defs/place"}]}


def _requiring(name: str, value: object) -> dict[str, Any]:
    return {"type": "object", "properties": {name: value}, "required": [name]}
