"""Keywords that llguidance does not have are rewritten, or checked when the value is finished."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from server.errors import InvalidRequest
from server.structured.grammar.finished import ValueCheck
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
        ({"contains": {"type": "null"}, "maxContains": 1}, [[None], [1, None]], [[], [1], [None, None]]),
        (
            {"properties": {"a": {"uniqueItems": True}}},
            [{"a": []}, {"a": [1, True, "1", [1], {"a": 1}]}],
            [{"a": [1, 1.0]}, {"a": [{"a": 1, "b": 2}, {"b": 2, "a": 1}]}, {"a": [None, None]}],
        ),
        ({"not": {"pattern": "^a"}, "type": "string"}, ["b"], ["a"]),
        ({"type": "string", "not": {"format": "date"}}, ["a"], ["2026-11-23"]),
        ({"not": {"patternProperties": {"^a": {"type": "null"}}, "type": "object"}}, [{"a": 1}], [{"a": None}, {}]),
        ({"not": {"additionalProperties": False, "properties": {"a": {}}}}, [{"b": 1}], [{"a": None}, {}]),
        ({"oneOf": [{"format": "date"}, {"maxLength": 20}]}, ["2026-11-23x"], ["2026-11-23", "a" * 21]),
        ({"propertyNames": {"format": "email"}}, [{"a@b.c": 1}], [{"a": 1}]),
        ({"type": "object", "minProperties": 2}, [{"a": 1, "b": 1}], [{"a": 1}]),
        (
            {"properties": {"a": {}}, "patternProperties": {"^b": {}}, "maxProperties": 1},
            [{"b": 1}],
            [{"b": 1, "b2": 1}],
        ),
        ({"not": {"enum": [1, 12]}}, [11, "1"], [1, 12]),
        ({"type": "string", "format": "regex"}, ["^a+$"], ["[", "(", "a**"]),
    ],
)
def test_what_it_allows_and_refuses(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    assert [value for value in valid if not takes(schema, value)] == []
    assert [value for value in invalid if takes(schema, value)] == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"allOf": [{}], "unevaluatedProperties": False}, "json_schema: the keyword 'unevaluatedProperties'"),
        ({"$dynamicRef": "#a"}, r"json_schema: the keyword '\$dynamicRef'"),
        ({"properties": {"a": {"type": "string", "pattern": "^(a|((?!ab)c))*$"}}}, "look-around"),
        ({"not": {"pattern": "(?!a)b"}}, r"json_schema: the pattern '\(\?!a\)b' cannot be enforced"),
        ({"patternProperties": {"^a": {}, "^[^b]": {}}}, "disjoint"),
    ],
)
def test_what_cannot_be_kept_is_named_with_its_place(schema: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        BYTES.json_schema(schema)


def test_a_reply_that_completes_an_invalid_value_ends_with_the_position_and_the_keyword() -> None:
    constraint = BYTES.json_schema({"properties": {"a": {"uniqueItems": True}}, "required": ["a"]})
    for byte in b'{"a":[1,1]':
        constraint.accept(byte)
    fork = constraint.fork()
    assert not fork.allows(ord("}"))
    assert fork.masked_by() is None
    for end in (fork.mask, lambda: constraint.accept(ord("}"))):
        with pytest.raises(InvalidRequest, match=r"does not match the schema: \$\.a .* 'uniqueItems'"):
            end()
    number = BYTES.json_schema({"type": "integer", "not": {"const": 1}})
    number.accept(ord("1"))
    assert not number.allows(BYTES._vocab.eos)
    assert matches(number.fork(), "2")


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"pattern": "^(a+)+$"}},
        {"not": {"type": "array", "uniqueItems": True}},
        {
            "not": {"$ref": "#/$defs/a0"},
            "$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(30)} | {"a30": {}},
        },
        {"not": {"items": {"enum": list(range(10_000))}}},
    ],
)
def test_a_check_ends_soon_whatever_the_schema(schema: Any) -> None:
    for text in ('"' + "a" * 5000 + '!"', json.dumps([{"a": [n]} for n in range(1000)])):
        began = time.thread_time()
        ValueCheck(schema).error(text.encode())
        assert time.thread_time() - began < 5


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
    try:
        text = walk(constraint, WordVocab(), seed, at_most=20).decode()
    except InvalidRequest as error:
        assert "does not match the schema" in error.message  # noqa: PT017
        return
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
