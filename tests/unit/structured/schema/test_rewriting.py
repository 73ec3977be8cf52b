"""Keywords that llguidance does not have: what matches the constraint, validates, and what should match, does."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from server.errors import InvalidRequest
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, matches, walk


def test_conditions_that_multiply_are_refused_in_time() -> None:
    many: Any = {"required": ["a"]}
    for depth in range(20):
        many = {"oneOf": [many, {"required": [f"b{depth}"]}, {"required": [f"c{depth}"]}]}
    with pytest.raises(InvalidRequest, match=r"too large|overlap"):
        BYTES.json_schema(many)
    with pytest.raises(InvalidRequest, match="'oneOf' whose branches may overlap"):
        BYTES.json_schema({"oneOf": [{"minLength": n} for n in range(70)]})


def test_a_long_word_is_not_spelled_out() -> None:
    long = "a" * 3000
    with pytest.raises(InvalidRequest, match="'not'"):
        BYTES.json_schema({"type": "string", "allOf": [{"not": {"enum": [long, 1, None, True, False, {}, []]}}]})


LEAVES = st.sampled_from(
    [
        *(True, {"const": "ab"}, {"minLength": 1}, {"maximum": 1.5}, {"multipleOf": 0.5}, {"required": ["a"]}),
        *({"type": kind} for kind in ("string", "integer", "number", ["null", "boolean"])),
        *({"enum": [1, "a", None]}, {"minimum": 3, "maximum": 9}, {"type": "string", "maxLength": 2}),
        *({"type": "string", "pattern": "^(?!ab)[a-c]*$"}, {"type": "string", "pattern": r'^[^"\\]*$'}),
        *({"type": "string", "not": {"pattern": r'["b]'}}, {"enum": [2**53, 0.5, '"', "\\"]}),
        *({"properties": {"a": {"type": "null"}}}, {"dependentRequired": {"a": ["b"]}}),
        {"type": "object", "properties": {"a": {}, "b": {"type": "integer"}}, "minProperties": 1},
        {"type": "object", "propertyNames": {"pattern": "^[a-c]"}, "minProperties": 1},
        {"patternProperties": {"^a": {"type": "integer"}, "^[^a]": {"type": "null"}}},
        {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "string"}},
        {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "boolean"}, "uniqueItems": True},
    ]
)


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        inner.map(lambda s: {"not": s}),
        st.tuples(inner, inner, inner).map(lambda s: {"if": s[0], "then": s[1], "else": s[2]}),
        several.map(lambda s: {"oneOf": s}),
        several.map(lambda s: {"anyOf": s}),
        several.map(lambda s: {"allOf": s}),
        st.tuples(inner, inner).map(
            lambda s: {"type": "object", "properties": {"a": s[0], "b": s[1]}, "required": ["b"]}
        ),
        inner.map(lambda s: {"dependentSchemas": {"a": s}, "dependentRequired": {"b": ["a"]}, "type": "object"}),
        inner.map(lambda s: {"$ref": "#/$defs/x", "$defs": {"x": s}}),
    )


@settings(max_examples=150, deadline=None)
@given(st.recursive(LEAVES, combined, max_leaves=5), st.integers(0, 2**32))
def test_what_is_written_under_any_schema_that_compiles_validates(schema: Any, seed: int) -> None:
    whole = {"anyOf": [schema]}  # references of the parts lead to nowhere, or to another part: refused or right
    try:
        constraint = WORDS.json_schema(whole)
    except InvalidRequest:
        return
    text = walk(constraint, WordVocab(), seed, at_most=20).decode()
    Draft202012Validator(whole).validate(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "integer", "minimum": 2**53 + 1}, [2**53 + 2, 2**53 + 3], [2**53]),
        ({"type": "integer", "exclusiveMinimum": 2**53}, [2**53 + 2], [2**53]),
        ({"type": "integer", "exclusiveMaximum": -(2**53)}, [-(2**53) - 2], [-(2**53)]),
        ({"type": "integer", "maximum": 2**63 - 1}, [2**63 - 1024], [2**63]),
        ({"type": "integer", "minimum": 2**53 + 4, "exclusiveMinimum": 2**53 + 1}, [2**53 + 4], [2**53 + 2]),
        ({"enum": [10**17, "a"]}, [10**17], [10**17 + 1]),
    ],
)
def test_numbers_that_are_no_doubles_are_bounds_at_most(schema: Any, valid: list[int], invalid: list[int]) -> None:
    assert all(matches(BYTES.json_schema(schema), str(number)) for number in valid)
    assert not any(matches(BYTES.json_schema(schema), str(number)) for number in invalid)


@pytest.mark.parametrize("number", [2**53 + 1, -(2**63) + 1, 9999999999999999, 10**400])
def test_a_value_that_is_no_double_is_refused(number: int) -> None:
    for schema in ({"const": number}, {"enum": [1, {"a": [number]}]}):
        with pytest.raises(InvalidRequest, match=r"json_schema\.items: the keyword '(const|enum)'.* double"):
            BYTES.json_schema({"type": "array", "items": schema})


@pytest.mark.parametrize(
    "large",
    [
        {"enum": list(range(10_000))},
        {"enum": [f"{n:02}" * 40 for n in range(50)]},
        {"required": [f"a{n}" for n in range(10_000)]},
    ],
)
def test_what_is_negated_again_and_again_counts_by_its_size(large: Any) -> None:
    many = {"anyOf": [{"$ref": "#/$defs/large"}] * 1000}
    with pytest.raises(InvalidRequest, match="json_schema: the keyword 'not' cannot be enforced"):
        BYTES.json_schema({"$defs": {"large": large}, "not": many})


@pytest.mark.parametrize("end", [0, 1, -1, 10])
@pytest.mark.parametrize("way", [1, -1])
def test_an_exclusive_bound_close_to_a_fraction_is_exclusive(end: int, way: int) -> None:
    near, far = ("exclusiveMinimum", "maximum") if way > 0 else ("exclusiveMaximum", "minimum")
    bounds: list[dict[str, Any]] = [{"type": "number", near: end}, {far: end + way * 0.5}]
    for schema in ({**bounds[0], **bounds[1]}, {"allOf": bounds}):
        constraint = BYTES.json_schema(schema)
        for text in (f"{end}", f"{end}.0", f"-{end}"):
            assert not matches(constraint.fork(), text)
        assert matches(constraint, f"{end + way * 0.5}")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}, r'{"\u0061":"x"}'),
        ({"patternProperties": {"^a": {"type": "integer"}}}, r'{"\u0061":"x"}'),
        ({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["b"]}]}, r'{"b":1,"\u0061":"x"}'),
        (
            {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"pattern": r"^[^\u0000-\u0008]*$"}},
            r'{"\u0061":"x"}',
        ),
    ],
)
def test_a_listed_name_is_not_written_otherwise(schema: Any, text: str) -> None:
    constraint = BYTES.json_schema({"type": "object", **schema})
    assert not matches(constraint.fork(), text)
    assert matches(constraint, text.replace(r"\u0061", "q\\n"))
