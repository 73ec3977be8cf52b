"""JSON Schema: what comes out parses and validates, and what is wrong with a schema is named."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from server.errors import InvalidRequest
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, matches, walk

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "é€"]}, "maxItems": 3},
        "more": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}
SCHEMAS: list[Any] = [
    PERSON,
    {"type": "object"},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {"type": "string", "pattern": "^[a-c]{2,5}$"},
    {"type": "string", "format": "date"},
    {"enum": ["x", 1, None, {"k": [1, "é"]}]},
    {"const": 'a"b\n'},
    {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
    {"type": ["integer", "boolean"]},
]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SCHEMAS), st.integers(0, 2**32))
def test_any_walk_over_the_masks_validates(schema: Any, seed: int) -> None:
    text = walk(WORDS.json_schema(schema), WordVocab(), seed).decode()
    Draft202012Validator(schema).validate(json.loads(text))


def test_properties_keep_the_order_of_the_schema_and_white_space_ends() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}, "required": ["b", "a"]}
    assert matches(BYTES.json_schema(schema), '{"b":null,"a":null}')
    assert matches(BYTES.json_schema(schema), '{"b": null, "a": null}')
    assert matches(BYTES.json_schema(schema), '{\n  "b": null,\n  "a": null\n}')
    assert not matches(BYTES.json_schema(schema), '{"a":null,"b":null}')
    assert not matches(BYTES.json_schema(schema), '{  "b":null,"a":null}')
    assert not matches(BYTES.json_schema(schema), '{\n\n\n"b":null,"a":null}')


def test_a_special_token_is_never_a_part_of_json() -> None:
    vocab, constraint = WordVocab(), WORDS.json_schema({"type": "string"})
    constraint.accept(ord('"'))
    assert constraint.allows(ord("<"))
    assert not any(constraint.allows(token) for token in range(vocab.bos, vocab.n_tokens))


ONE = {"type": "object", "properties": {"a": {"type": "null"}}}


@pytest.mark.parametrize(
    ("schema", "more"),
    [
        (ONE, False),
        ({"type": "object", "properties": {}}, False),
        ({"type": "array", "items": ONE}, False),
        ({"anyOf": [ONE, {"type": "null"}]}, False),
        ({"allOf": [{"$ref": "#/$defs/one"}], "description": "pydantic wrote so", "$defs": {"one": ONE}}, False),
        ({**ONE, "additionalProperties": True}, True),
        ({**ONE, "patternProperties": {"^b": {}}}, True),
        ({**ONE, "required": ["b"]}, True),
        ({"type": "object", "properties": {"a": False}}, True),
        ({**ONE, "allOf": [{"properties": {"b": {}}}]}, True),
        ({"$ref": "#/$defs/one", "properties": {"b": {}}, "$defs": {"one": ONE}}, True),
        ({"type": "object", "title": "any"}, True),
        ({**ONE, "unevaluatedProperties": True}, True),
        ({"$ref": "#/$defs/one", "unevaluatedProperties": True, "$defs": {"one": ONE}}, True),
        ({"type": "object", "not": {"properties": {"a": {"type": "null"}}, "required": ["a"]}}, True),
    ],
)
def test_an_object_has_no_properties_but_those_it_lists(schema: dict[str, Any], *, more: bool) -> None:
    begun = "[{" if schema.get("type") == "array" else "{"
    constraint, end = BYTES.json_schema(schema), begun.translate({ord("["): "]", ord("{"): "}"})[::-1]
    assert matches(constraint.fork(), f'{begun}"b":1{end}') is more
    Draft202012Validator(schema).validate(json.loads(f'{begun}"b":1{end}'))


@pytest.mark.parametrize(("tags", "more"), [(("cat", "dog"), False), (("cat", "cat"), True)])
def test_alternatives_that_a_text_tells_apart_have_what_they_list(tags: tuple[str, str], *, more: bool) -> None:
    one, other = (
        {"type": "object", "properties": {"kind": {"const": tag}, name: {"type": "null"}}, "required": ["kind"]}
        for tag, name in zip(tags, "ab", strict=True)
    )
    refs = [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/other"}]  # as Pydantic writes a union with a discriminator
    union = BYTES.json_schema({"oneOf": refs, "$defs": {"one": one, "other": other}})
    assert matches(union.fork(), '{"kind":"cat","a":null}') is not more  # of one kind both would match
    assert matches(union.fork(), '{"kind":"cat","b":1,"c":1}') is more


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "objec"}, r"json_schema\.type is not a valid JSON Schema: 'objec'"),
        ({"properties": {"a": {"minLength": -1}}}, r"json_schema\.properties\.a\.minLength"),
        (
            {"items": {"properties": {"a": {"not": {"items": {}}}}}},
            r"json_schema\.items\.properties\.a: the keyword 'not'",
        ),
        ({"type": "array", "contains": {}}, "json_schema: the keyword 'contains' cannot be enforced"),
        ({"oneOf": [{"format": "date"}, {"maxLength": 20}]}, "'oneOf' whose branches may overlap"),
        ({"$ref": "http://127.0.0.1:9/x.json"}, r"\$ref 'http://127.0.0.1:9/x.json' is not supported"),
        ({"$ref": "#/$defs/none"}, r"\$ref '#/\$defs/none' leads nowhere"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"type": "string", "pattern": "(?!a)b"}, "look-around"),
        ({"type": "string", "pattern": "a("}, "unclosed group"),
        ({"enum": []}, "Unsatisfiable"),
        (False, "Unsatisfiable"),
        (3, "must be a JSON object"),
        ([], "must be a JSON object"),
    ],
)
def test_what_is_wrong_with_a_schema_is_named(schema: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        BYTES.json_schema(schema)


def test_a_schema_too_deep_or_too_large_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(1000):
        deep = {"items": deep}
    with pytest.raises(InvalidRequest, match="deeper than"):
        BYTES.json_schema(deep)
    with pytest.raises(InvalidRequest, match="values"):
        BYTES.json_schema({"enum": list(range(60_000))})
    huge = BYTES.json_schema({"type": "string", "minLength": 10**8})
    assert not matches(huge, '"short"')


def test_a_recursive_schema_is_fine() -> None:
    tree = {"type": "object", "properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}}, "additionalProperties": False}
    assert matches(BYTES.json_schema(tree), '{"l":{"l":{},"r":{}},"r":{}}')


def test_a_clients_own_llguidance_options_are_ignored() -> None:
    lenient = {"type": "null", "x-guidance": {"lenient": True, "key_separator": "x"}}
    assert matches(BYTES.json_schema(lenient), "null")
    with pytest.raises(InvalidRequest, match="'not'"):
        BYTES.json_schema({**lenient, "not": {}})


@pytest.mark.parametrize("loop", [{"$ref": "#/$defs/a"}, {"allOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}])
def test_a_reference_that_only_leads_back_to_itself_is_refused(loop: Any) -> None:
    schema = {"properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"], "$defs": {"a": loop}}
    with pytest.raises(InvalidRequest, match="leads back to itself"):
        BYTES.json_schema(schema)
    BYTES.json_schema({**schema, "properties": {"x": {"type": "null"}}})  # nothing refers to it
    node = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}
    BYTES.json_schema({**schema, "$defs": {"a": {"type": "object", "properties": {"next": node}}}})
