"""JSON Schema keywords that llguidance lacks and that are rewritten into others."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from server.errors import InvalidRequest
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, matches, walk


def test_schemas_with_too_many_combined_branches_are_rejected() -> None:
    many: Any = {"required": ["a"]}
    for depth in range(20):
        many = {"oneOf": [many, {"required": [f"b{depth}"]}, {"required": [f"c{depth}"]}]}
    with pytest.raises(InvalidRequest, match=r"too large|overlap"):
        BYTES.json_schema(many)
    with pytest.raises(InvalidRequest, match="'oneOf' whose branches may overlap"):
        BYTES.json_schema({"oneOf": [{"minLength": n} for n in range(70)]})


def test_negation_of_a_long_string_is_rejected() -> None:
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
def test_random_output_of_random_schemas_validates(schema: Any, seed: int) -> None:
    whole = {"anyOf": [schema]}  # references of the parts are invalid or refer to another part
    try:
        constraint = WORDS.json_schema(whole)
    except InvalidRequest:
        return
    text = walk(constraint, WordVocab(), seed, n_free=20).decode()
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
def test_bounds_that_are_not_doubles_are_enforced(schema: Any, valid: list[int], invalid: list[int]) -> None:
    assert all(matches(BYTES.json_schema(schema), str(number)) for number in valid)
    assert not any(matches(BYTES.json_schema(schema), str(number)) for number in invalid)


@pytest.mark.parametrize("number", [2**53 + 1, -(2**63) + 1, 9999999999999999, 10**400])
def test_enum_and_const_values_that_are_not_doubles_are_rejected(number: int) -> None:
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
def test_repeated_negation_of_a_large_schema_is_rejected(large: Any) -> None:
    many = {"anyOf": [{"$ref": "#/$defs/large"}] * 1000}
    with pytest.raises(InvalidRequest, match="json_schema: the keyword 'not' cannot be enforced"):
        BYTES.json_schema({"$defs": {"large": large}, "not": many})


@pytest.mark.parametrize("bound", [0, 1, -1, 10])
@pytest.mark.parametrize("sign", [1, -1])
def test_exclusive_bound_half_a_unit_from_the_other_bound_is_exclusive(bound: int, sign: int) -> None:
    exclusive, inclusive = ("exclusiveMinimum", "maximum") if sign > 0 else ("exclusiveMaximum", "minimum")
    bounds: list[dict[str, Any]] = [{"type": "number", exclusive: bound}, {inclusive: bound + sign * 0.5}]
    for schema in ({**bounds[0], **bounds[1]}, {"allOf": bounds}):
        constraint = BYTES.json_schema(schema)
        for text in (f"{bound}", f"{bound}.0", f"-{bound}"):
            assert not matches(constraint.fork(), text)
        assert matches(constraint, f"{bound + sign * 0.5}")


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
        (
            {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"pattern": "^[^\0-\x1f]*$"}},
            r'{"\u0061":"x"}',
        ),
        (
            {"properties": {"a": {"type": "integer"}, "b": {"const": "\x01"}}, "additionalProperties": True},
            r'{"\u0061":"x"}',
        ),
    ],
)
def test_property_names_with_unicode_escapes_do_not_bypass_their_schema(schema: Any, text: str) -> None:
    constraint = BYTES.json_schema({"type": "object", **schema})
    assert not matches(constraint.fork(), text)
    assert matches(constraint, text.replace(r"\u0061", "q\\n"))
