"""Random walks through JSON Schema constraints end with valid instances, and examples of regular expressions."""

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
def test_walks_of_patterns_and_patterned_keys_end_with_a_valid_instance(schema: dict[str, Any], free: int) -> None:
    ends = endings(schema)
    for seed in range(3):
        tokens = WALKER.walk(COMPILER.json_schema(schema), Random(seed), free=free, at_most=300, endings=ends)
        text = b"".join(VOCAB.pieces[token] for token in tokens).decode("utf-8", "replace")
        Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^(ipv4)|(ipv6)$", ["ipv4", "ipv6"]),
        ("[^a1]{2}(-[b-d]+)?", ["AA"]),
        ("(ab|c)(d|ef)", ["abd", "abef", "cd", "cef"]),
        (r"\d+\S.", ["1aa"]),
        (r"\p{L}", []),
    ],
)
def test_examples_contain_each_alternative_of_a_pattern_once(pattern: str, expected: list[str]) -> None:
    assert examples(pattern) == expected
