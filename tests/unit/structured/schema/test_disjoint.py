"""What is said to match none in common does so, and what `oneOf` is good for in practice is found."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from server.structured.grammar.schema.disjoint import Disjointness

REFERENCE = {"type": "object", "required": ["$ref"], "properties": {"$ref": {"type": "string"}}}
CLOSED = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "patternProperties": {"^x-": {}},
    "additionalProperties": False,
}


def tagged(word: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"type": {"const": word}}, "required": ["type"]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"type": "string"}, {"type": ["integer", "null"]}),
        ({"enum": [1, "a"]}, {"enum": [2, "b", True]}),
        ({"const": 1}, {"type": "string"}),
        ({"minimum": 3, "type": "integer"}, {"exclusiveMaximum": 3, "type": "number"}),
        ({"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}),
        ({"type": "array", "maxItems": 0}, {"type": "array", "minItems": 1}),
        (REFERENCE, CLOSED),
        (tagged("a"), {"type": "object", "properties": {"type": {"const": "b"}}}),
        (tagged("a"), {"allOf": [{"type": "object"}, {"oneOf": [tagged("b"), {"$ref": "#/$defs/c"}]}]}),
        ({"type": "object", "required": ["a"]}, {"type": "object", "properties": {"a": False}}),
        (False, True),
    ],
)
def test_what_has_nothing_in_common_is_found(one: Any, other: Any) -> None:
    disjoint = Disjointness({"#/$defs/c": tagged("c")})
    assert disjoint.of(one, other)
    assert disjoint.of(other, one)


LEAVES = st.sampled_from(
    [
        *({"type": "string"}, {"type": ["integer", "null"]}, {"const": "ab"}, {"enum": [1, "a", None]}, {"const": 1.0}),
        *({"minimum": 2}, {"maximum": 1, "type": "number"}, {"maxLength": 1}, {"minLength": 2, "type": "string"}),
        *({"type": "object", "required": ["a"]}, {"maxItems": 1}, {"minItems": 2, "type": "array"}, {}, False),
        *({"exclusiveMinimum": 1}, {"exclusiveMaximum": 1}, {"maxProperties": 0}, {"type": "boolean"}, {"not": {}}),
        *(REFERENCE, CLOSED, tagged("a"), tagged("ab"), {"properties": {"x-a": False}}),
    ]
)


def joined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        several.map(lambda each: {"allOf": each}),
        several.map(lambda each: {"anyOf": each}),
        several.map(lambda each: {"oneOf": each}),
        st.tuples(inner, st.booleans()).map(
            lambda each: {"type": "object", "properties": {"a": each[0]}, **({"required": ["a"]} if each[1] else {})}
        ),
        inner.map(lambda each: {"patternProperties": {"^a": {}}, "additionalProperties": each}),
    )


VALUES = [
    *("", "a", "ab", 0, 1, 2, 1.5, None, True, [], [1], [1, 2], {}, {"$ref": "a"}, {"name": "a"}, {"x-a": 1}),
    *({"type": "a"}, {"type": "ab"}, {"a": 1}, {"a": "ab"}, {"a": None}, {"a": {"a": 1}}, {"type": "a", "a": []}),
    *({"$ref": "a", "name": "a"}, {"$ref": "a", "x-a": 1}, {"b": 1}, {"b": "ab"}, {"$ref": "a", "type": "ab", "a": 2}),
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.recursive(LEAVES, joined, max_leaves=5), min_size=4, max_size=4))
def test_no_value_matches_two_that_are_apart(schemas: list[Any]) -> None:
    matching = [[Draft202012Validator(each).is_valid(value) for value in VALUES] for each in schemas]
    for n, m in combinations(range(len(schemas)), 2):
        if Disjointness({}).of(schemas[n], schemas[m]):
            both = [value for value, a, b in zip(VALUES, matching[n], matching[m], strict=True) if a and b]
            assert both == []


def test_a_long_pattern_is_read_once() -> None:
    kinds = ["string", "null"]
    long = {"patternProperties": {f"^{'a' * 300_000}|": {}}, "additionalProperties": {"type": "number"}}
    for name, apart in (("x", False), ("a", False)):
        one = {"type": "object", "required": [name], "properties": {name: {"type": kinds}}}
        assert Disjointness({}).of(one, {"type": "object", **long}) == apart
