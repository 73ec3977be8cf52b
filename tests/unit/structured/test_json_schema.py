"""JSON Schema: generated text parses and validates, and errors name what is wrong with a schema."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from server.errors import InvalidRequest
from tests.support.yaml_text import loaded
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

CASES = loaded(Path(__file__).with_name("schemas.yaml"))
ALLOWED = [case for case in CASES if "error" not in case]
assert all(case.keys() - {"schema", "error"} <= {"allows", "rejects"} and len(case) > 1 for case in CASES)
assert all(case.keys() == {"schema", "error"} for case in CASES if "error" in case)


def case_id(case: dict[str, Any]) -> str:
    return json.dumps(case["schema"])[:70]


@pytest.mark.parametrize("case", ALLOWED, ids=case_id)
def test_schema_accepts_exactly_the_allowed_values_of_its_case(case: dict[str, Any]) -> None:
    constraint = BYTES.json_schema(case["schema"])
    values = [*case.get("allows", ()), *case.get("rejects", ())]
    allowed = [value for value in values if matches(constraint.fork(), json.dumps(value, ensure_ascii=False))]
    assert allowed == case.get("allows", [])


@pytest.mark.parametrize("case", [case for case in CASES if "error" in case], ids=case_id)
def test_schema_that_cannot_be_enforced_raises_the_error_of_its_case(case: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(case["error"]).replace("…", ".*")):
        BYTES.json_schema(case["schema"])


@pytest.mark.parametrize("schema", [{"const": "a\x7f"}, {"type": "string", "pattern": r"^a[\x7F]$"}])
def test_delete_character_is_generated_as_an_escape(schema: Any) -> None:
    constraint = BYTES.json_schema(schema)
    assert matches(constraint.fork(), r'"a\u007f"')
    assert not matches(constraint, '"a"')


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SCHEMAS), st.integers(0, 2**32))
def test_random_output_validates(schema: Any, seed: int) -> None:
    text = walk(WORDS.json_schema(schema), WordVocab(), seed).decode()
    Draft202012Validator(schema).validate(json.loads(text))


def test_properties_keep_schema_order_and_whitespace_is_limited() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}, "required": ["b", "a"]}
    assert matches(BYTES.json_schema(schema), '{"b":null,"a":null}')
    assert matches(BYTES.json_schema(schema), '{"b": null, "a": null}')
    assert matches(BYTES.json_schema(schema), '{\n  "b": null,\n  "a": null\n}')
    assert not matches(BYTES.json_schema(schema), '{"a":null,"b":null}')
    assert not matches(BYTES.json_schema(schema), '{  "b":null,"a":null}')
    assert not matches(BYTES.json_schema(schema), '{\n\n\n"b":null,"a":null}')


def test_special_tokens_are_rejected_inside_json() -> None:
    vocab, constraint = WordVocab(), WORDS.json_schema({"type": "string"})
    constraint.accept(ord('"'))
    assert constraint.allows(ord("<"))
    assert not any(constraint.allows(token) for token in range(vocab.bos, vocab.n_tokens))


@pytest.mark.parametrize(("tags", "is_open"), [(("cat", "dog"), False), (("cat", "cat"), True)])
def test_discriminated_union_accepts_only_the_listed_properties_of_a_branch(
    tags: tuple[str, str], *, is_open: bool
) -> None:
    one, other = (
        {"type": "object", "properties": {"kind": {"const": tag}, name: {"type": "null"}}, "required": ["kind"]}
        for tag, name in zip(tags, "ab", strict=True)
    )
    refs = [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/other"}]  # as Pydantic writes a union with a discriminator
    union = BYTES.json_schema({"oneOf": refs, "$defs": {"one": one, "other": other}})
    assert matches(union.fork(), '{"kind":"cat","a":null}') is not is_open  # with equal tags both branches match
    assert matches(union.fork(), '{"kind":"cat","b":1,"c":1}') is is_open


def test_too_deep_or_too_large_schema_is_rejected() -> None:
    deep: dict[str, Any] = {}
    for _ in range(1000):
        deep = {"items": deep}
    with pytest.raises(InvalidRequest, match="deeper than"):
        BYTES.json_schema(deep)
    with pytest.raises(InvalidRequest, match="values"):
        BYTES.json_schema({"enum": list(range(60_000))})
    huge = BYTES.json_schema({"type": "string", "minLength": 10**8})
    assert not matches(huge, '"short"')


@pytest.mark.parametrize("loop", [{"$ref": "#/$defs/a"}, {"allOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}])
def test_reference_that_only_refers_to_itself_is_rejected_if_it_is_used(loop: Any) -> None:
    schema = {"properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"], "$defs": {"a": loop}}
    with pytest.raises(InvalidRequest, match="leads back to itself"):
        BYTES.json_schema(schema)
    BYTES.json_schema({**schema, "properties": {"x": {"type": "null"}}})  # not used
    node = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}
    BYTES.json_schema({**schema, "$defs": {"a": {"type": "object", "properties": {"next": node}}}})
