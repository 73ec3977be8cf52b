"""Keywords that llguidance does not have: what matches the constraint, validates, and what should match, does."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from server.errors import InvalidRequest
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, matches, walk

KIND = {"properties": {"kind": {"enum": ["a", "b", "c"]}, "n": {"type": "integer"}}, "required": ["kind"]}


def takes(schema: Any, value: Any) -> bool:
    return matches(BYTES.json_schema(schema), json.dumps(value, ensure_ascii=False))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"not": {"type": "string"}}, [1, None, {}], ["a"]),
        ({"type": "string", "not": {"enum": ["ab", "a", "x-y"]}}, ["", "b", "abc", "x-", "aa"], ["a", "ab", "x-y"]),
        ({"type": "integer", "not": {"enum": [3, 5]}}, [2, 4, 6], [3, 5]),
        ({"not": {"const": True}}, [False, "true", 1], [True]),
        ({"type": "object", "not": {"required": ["a", "b"]}}, [{}, {"a": 1}, {"b": 1}], [{"a": 1, "b": 1}]),
        ({"type": "number", "not": {"minimum": 3}}, [2, 2.5], [3, 4]),
        ({"type": "string", "not": {"maxLength": 2}}, ["abc"], ["", "ab"]),
        ({"not": {"not": {"type": "null"}}}, [None], [1]),
        ({"not": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}}, [1, "x"], [None, True]),
        (
            {**KIND, "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["n"]}},
            [{"kind": "b"}, {"kind": "a", "n": 1}],
            [{"kind": "a"}],
        ),
        (
            {**KIND, "if": {"properties": {"kind": {"const": "a"}}}, "else": {"properties": {"n": False}}},
            [{"kind": "b"}, {"kind": "a", "n": 1}, {"kind": "a"}],
            [{"kind": "b", "n": 1}],
        ),
        ({"dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
        (
            {"properties": {"a": {}, "b": {}}, "dependentSchemas": {"a": {"properties": {"b": {"type": "null"}}}}},
            [{"b": 1}, {"a": 1}, {"a": 1, "b": None}],
            [{"a": 1, "b": 1}],
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "dependencies": {"a": ["b"], "c": {"required": ["d"]}},
            },
            [{"a": 1, "b": 1}, {"c": 1, "d": 1}],
            [{"a": 1}, {"c": 1}],
        ),
        ({"propertyNames": {"pattern": "^x"}}, [{}, {"x1": 1}], [{"y": 1}]),
        ({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}}, [{"a": None}], [{"a": 1}]),
        ({"propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
        ({"type": "object", "propertyNames": False}, [{}], [{"a": 1}]),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}, [{"a": 1}, {"b": 1}], [{}]),
        (
            {"properties": {"a": {}, "b": {}}, "additionalProperties": False, "maxProperties": 1},
            [{}, {"a": 1}, {"b": 1}],
            [{"a": 1, "b": 1}],
        ),
        ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}]),
        ({"type": "array", "prefixItems": [{}], "unevaluatedItems": False}, [[1]], [[1, 2]]),
        ({"oneOf": [{"type": ["string", "null"]}, {"type": ["integer", "null"]}]}, ["a", 1], [None]),
        (
            {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            [{"a": 1}, {"b": 1}],
            [{}, {"a": 1, "b": 1}],
        ),
        (
            {
                "not": {"type": "null"},  # so that branches are made to exclude each other where they may overlap
                "oneOf": [
                    {"type": "object", "required": ["$ref"], "properties": {"$ref": {"type": "string"}}},
                    {
                        "type": "object",
                        "properties": {"name": {"type": "string", "format": "date"}},
                        "patternProperties": {"^x-": {}},
                        "additionalProperties": False,
                    },
                ],
            },
            [{"$ref": "a"}, {"name": "2026-11-23"}, {"x-a": 1}, {}],
            [{"name": "a"}, {"$ref": 1}, 1],
        ),
        ({"type": "object", "properties": {"a": {"not": {}}, "b": {}}}, [{}, {"b": 1}], [{"a": 1}]),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1, "maxProperties": 1},
            [{"a": 1}, {"b": 1}],
            [{}, {"a": 1, "b": 1}, {"a": 1, "c": 1}],
        ),
        ({"type": "string", "minLength": 2.0, "maxLength": 3.0}, ["ab"], ["a", "abcd"]),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, [[], [1]], [[1, 1]]),
        ({"contains": {"type": "null"}, "minContains": 0}, [[], [1]], []),
    ],
)
def test_what_it_allows_and_refuses(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    assert [value for value in valid if not takes(schema, value)] == []
    assert [value for value in invalid if takes(schema, value)] == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"a": {"not": {"format": "date"}}}}, r"json_schema\.properties\.a: the keyword 'not'"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"contains": {}}}}, r"json_schema\.\$defs\.x: the keyword 'contains'"),
        ({"if": {"contains": {}}, "then": {"type": "array"}}, "json_schema: the keyword 'if'"),
        ({"propertyNames": {"format": "email"}}, "json_schema: the keyword 'propertyNames'"),
        ({"allOf": [{}], "unevaluatedProperties": False}, "json_schema: the keyword 'unevaluatedProperties'"),
        ({"properties": {"a": {}}, "minProperties": 2}, "json_schema: the keyword 'minProperties'"),
        (
            {"properties": {"a": {}}, "patternProperties": {"^b": {}}, "maxProperties": 1},
            "json_schema: the keyword 'maxProperties'",
        ),
        (
            {"properties": {"a": {"items": {"type": "string", "pattern": "^(a|((?!ab)c))*$"}}}},
            r"json_schema\.properties\.a\.items: the keyword 'pattern' cannot be enforced: .*look-around",
        ),
        (
            {"properties": {"pattern": {"type": "string", "pattern": "(?!a)b"}}},
            r"json_schema\.properties\.pattern: the keyword 'pattern' cannot be enforced: .*look-around",
        ),
        (
            {"$defs": {"x": {"patternProperties": {"^a": {}, "^[^b]": {}}}}, "$ref": "#/$defs/x"},
            r"json_schema\.\$defs\.x: the keyword 'patternProperties' cannot be enforced: .*disjoint",
        ),
        (
            {"propertyNames": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
            "json_schema: the keyword 'propertyNames'",
        ),
        ({"$dynamicRef": "#a"}, r"json_schema: the keyword '\$dynamicRef'"),
        ({"oneOf": [{"minLength": n} for n in range(70)]}, "'oneOf' whose branches may overlap"),
    ],
)
def test_what_cannot_be_kept_is_named_with_its_place(schema: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        BYTES.json_schema(schema)


def test_conditions_that_multiply_are_refused_in_time() -> None:
    many: Any = {"required": ["a"]}
    for depth in range(20):
        many = {"oneOf": [many, {"required": [f"b{depth}"]}, {"required": [f"c{depth}"]}]}
    with pytest.raises(InvalidRequest, match=r"too large|overlap"):
        BYTES.json_schema(many)


def test_a_long_word_is_not_spelled_out() -> None:
    long = "a" * 3000
    with pytest.raises(InvalidRequest, match="'not'"):
        BYTES.json_schema({"type": "string", "allOf": [{"not": {"enum": [long, 1, None, True, False, {}, []]}}]})


LEAVES = st.sampled_from(
    [
        *(
            {"type": "string"},
            {"type": "integer"},
            {"type": ["null", "boolean"]},
            {"const": "ab"},
            {"enum": [1, "a", None]},
        ),
        *({"minimum": 3, "maximum": 9}, {"type": "string", "maxLength": 2}, {"required": ["a"]}, True),
        *({"type": "string", "pattern": "^(?!ab)[a-c]*$"}, {"properties": {"a": {"type": "null"}}}, {"minLength": 1}),
        *(
            {"type": "object", "properties": {"a": {}, "b": {"type": "integer"}}, "minProperties": 1},
            {"type": "number"},
        ),
        *(
            {"maximum": 1.5},
            {"enum": [2**53, 0.5, '"', "\\"]},
            {"type": "string", "pattern": r'^[^"\\]*$'},
            {"type": "string", "not": {"pattern": r'["b]'}},
            {"type": "object", "propertyNames": {"pattern": "^[a-c]"}, "minProperties": 1},
            {"patternProperties": {"^a": {"type": "integer"}, "^[^a]": {"type": "null"}}},
            {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "string"}},
            {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "boolean"}, "uniqueItems": True},
            {"dependentRequired": {"a": ["b"]}},
            {"multipleOf": 0.5},
        ),
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


def test_names_that_may_be_written_twice_are_not_counted() -> None:
    for schema in ({"minProperties": 2}, {"patternProperties": {"^a": {}}, "minProperties": 2}):
        with pytest.raises(InvalidRequest, match="json_schema: the keyword 'minProperties'"):
            BYTES.json_schema({"type": "object", **schema})
    one = BYTES.json_schema({"type": "object", "minProperties": 2, "required": ["a"]})
    assert matches(one.fork(), '{"a":1,"b":2}')
    assert not matches(one, '{"a":1}')


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
    ],
)
def test_a_listed_name_is_not_written_otherwise(schema: Any, text: str) -> None:
    constraint = BYTES.json_schema({"type": "object", **schema})
    assert not matches(constraint.fork(), text)
    assert matches(constraint, text.replace(r"\u0061", "q\\n"))


def test_control_characters_that_a_schema_has_are_written() -> None:
    assert matches(BYTES.json_schema({"const": "\x01"}), r'"\u0001"')
    assert matches(BYTES.json_schema({"type": "string", "pattern": "^[\x02]$"}), r'"\u0002"')
