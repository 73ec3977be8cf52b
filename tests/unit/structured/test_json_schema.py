"""JSON Schema: what comes out parses and validates, and what is wrong with a schema is named."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from server.errors import InvalidRequest
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, allowed, matches, walk

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


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_any_walk_over_json_object_is_an_object(seed: int) -> None:
    assert isinstance(json.loads(walk(WORDS.json_object(), WordVocab(), seed)), dict)


def test_the_mask_and_allows_agree() -> None:
    vocab, constraint = WordVocab(), WORDS.json_schema({"type": "array", "items": {"type": "string"}})
    for byte in b'["\xc3\xa9a", "':
        allowed_now = {token for token in range(vocab.n_tokens) if constraint.allows(token)}
        assert allowed(constraint.mask(), vocab.n_tokens) <= allowed_now
        constraint.accept(byte)
    assert not constraint.allows(vocab.eos)
    assert not constraint.allows(-1)
    assert not constraint.allows(vocab.n_tokens)


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


def test_a_property_may_be_called_like_a_keyword() -> None:
    schema = {
        "type": "object",
        "properties": {"format": {"const": "x"}, "$ref": {"type": "null"}, "not": {"type": "null"}},
        "required": ["format", "$ref", "not"],
    }
    assert matches(BYTES.json_schema(schema), '{"format":"x","$ref":null,"not":null}')


def test_an_integer_ends_where_llama_servers_does() -> None:
    for schema in ({"type": "integer"}, {"oneOf": [{"type": "integer"}, {"type": "null"}]}):
        constraint = WORDS.json_schema(schema)
        assert matches(constraint, b"-" + b"9" * 16)
        assert not matches(constraint, b"1" + b"0" * 17)
    assert matches(WORDS.json_schema({"type": "integer", "minimum": 10**17}), b"1" + b"0" * 17)
    assert matches(WORDS.json_schema({"allOf": [{"type": "integer"}, {"minimum": 10**17}]}), b"1" + b"0" * 17)


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


def test_a_negation_lists_no_properties() -> None:
    schema = {"type": "object", "not": {"properties": {"a": {"type": "null"}}}}
    assert matches(BYTES.json_schema(schema), '{"a":1,"b":1}')


JOINED = {"allOf": [{"$ref": "#/$defs/one"}, {"properties": {"b": {}}}]}
TWICE = {**ONE, "patternProperties": {"^x": {**ONE, "properties": {"b": {}}}}}


@pytest.mark.parametrize(
    ("schema", "value", "may_be"),
    [
        ({"x": ONE, "y": JOINED}, {"x": {}, "y": {"b": 1}}, True),
        ({"x": ONE, "y": JOINED}, {"x": {"b": 1}}, False),
        ({"x": {"$ref": "#/$defs/two"}, "y": JOINED}, {"x": {"b": 1}}, False),
        ({"x": {"$ref": "#/$defs/one"}, "y": JOINED}, {"x": {"b": 1}}, True),
        ({"y": {"allOf": [{"$ref": "#/$defs/on"}, {"properties": {"n": JOINED}}]}}, {"y": {"n": {"b": 1}}}, True),
        ({"y": {**TWICE, "properties": {"x": ONE}}}, {"y": {"x": {"a": None, "b": 1}}}, True),
    ],
)
def test_only_objects_that_are_joined_with_others_stay_open(schema: object, value: object, *, may_be: bool) -> None:
    definitions = {"one": ONE, "two": {**ONE}, "on": {"properties": {"n": {"$ref": "#/$defs/one"}}}}
    whole = {"type": "object", "properties": schema, "$defs": definitions}
    assert matches(BYTES.json_schema(whole), json.dumps(value, separators=(",", ":"))) is may_be
    Draft202012Validator(whole).validate(value)


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


def test_an_object_that_needs_more_properties_than_it_lists_gets_them() -> None:
    assert matches(BYTES.json_schema({**ONE, "required": ["a"], "minProperties": 2}), '{"a":null,"b":1}')
    needed = BYTES.json_schema({**ONE, "required": ["b"]})
    assert matches(needed.fork(), '{"a":null,"b":1}')
    assert not matches(needed.fork(), '{"b":1,"c":1}')


def test_alternatives_that_overlap_are_not_told_apart_by_what_they_do_not_list() -> None:
    schema = {"oneOf": [ONE, {"type": "object", "properties": {"b": {"type": "null"}}}]}
    constraint = BYTES.json_schema(schema)
    assert not matches(constraint.fork(), '{"a":null}')
    assert not matches(constraint.fork(), "{}")


def test_an_unknown_format_is_an_annotation() -> None:
    assert matches(BYTES.json_schema({"type": "string", "format": "password"}), '"x"')


def test_an_older_draft_is_read_as_its_own() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "null"}],
        "additionalItems": False,
    }
    assert matches(BYTES.json_schema(schema), "[null]")


def test_a_list_of_items_without_a_named_draft_is_an_older_drafts() -> None:
    schema = {"type": "array", "items": [{"type": "null"}, {"const": 1}], "additionalItems": False}
    assert matches(BYTES.json_schema(schema), "[null, 1]")
    assert not matches(BYTES.json_schema(schema), "[1]")
    named = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    with pytest.raises(InvalidRequest, match=r"json_schema\.items"):
        BYTES.json_schema(named)


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
    chain = {f"d{n}": {"items": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(900)}
    with pytest.raises(InvalidRequest, match="deeper than"):
        BYTES.json_schema(deep)
    with pytest.raises(InvalidRequest, match="values"):
        BYTES.json_schema({"enum": list(range(60_000))})
    with pytest.raises(InvalidRequest, match="levels of references"):
        BYTES.json_schema({"$ref": "#/$defs/d0", "$defs": {**chain, "d900": {"type": "null"}}})
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
