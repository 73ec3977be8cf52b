"""Walks over constraints end, whatever a string must match."""

import json
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from benchmarks.schemas.examples import examples
from benchmarks.schemas.walk import BenchVocab, Walker, endings
from server.structured.grammar.compiler import GrammarCompiler

VOCAB = BenchVocab(1000)
COMPILER, WALKER = GrammarCompiler(VOCAB), Walker(VOCAB)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "ipv6$"},
        {"type": "string", "pattern": r"^(.+\/)+(.+)\.(ya?ml)(@.+)?$"},
        {"type": "string", "pattern": "^(a|b+x)c$"},
        {"type": "array", "uniqueItems": True, "items": {"type": "string", "pattern": "x-(one|other)$"}, "minItems": 3},
        {"type": "object", "patternProperties": {"ipv6$": {"type": "null"}}, "additionalProperties": False},
        {"type": "string", "pattern": 'says "no"$'},
    ],
)
@pytest.mark.parametrize("free", [0, 5, 40])
def test_a_walk_ends_where_the_mask_does_not_say_how(schema: dict[str, Any], free: int) -> None:
    ends = endings(schema)
    for seed in range(3):
        tokens = WALKER.walk(COMPILER.json_schema(schema), Random(seed), free=free, at_most=300, endings=ends)
        text = b"".join(VOCAB.pieces[token] for token in tokens).decode("utf-8", "replace")
        Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("^(ipv4)|(ipv6)$", ["ipv4", "ipv6"]),
        ("[^a1]{2}(-[b-d]+)?", ["AA"]),
        ("(ab|c)(d|ef)", ["abd", "abef", "cd", "cef"]),
        (r"\d+\S.", ["1aa"]),
        (r"\p{L}", []),
    ],
)
def test_examples_take_each_way_once(pattern: str, found: list[str]) -> None:
    assert examples(pattern) == found
