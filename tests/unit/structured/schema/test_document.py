"""JSON Schema documents of old and new drafts, and string formats."""

import json
import warnings
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from server.errors import InvalidRequest
from server.structured.grammar.schema.document import Document
from server.structured.grammar.schema.formats import FORMATS
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, matches, walk
from tests.unit.structured.test_json_schema import ALLOWED


def test_old_drafts_are_converted_to_the_newest() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "items": [{"minimum": 1, "exclusiveMinimum": True}],
        "additionalItems": False,
        "dependencies": {"a": ["b"], "c": {"type": "object"}},
    }
    assert Document(schema, "json_schema").plain() == {
        "prefixItems": [{"minimum": 1, "exclusiveMinimum": 1}],
        "items": False,
        "dependentRequired": {"a": ["b"]},
        "dependentSchemas": {"c": {"type": "object"}},
    }


INVALID_DRAFTS: tuple[Any, ...] = (5, [], {}, True)


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        (
            {"anyOf": [{"const": n} for n in range(12_000)] + [{"type": "text"}]},
            r"json_schema\.anyOf\.12000\.type is not a valid JSON Schema",
        ),
        ({"properties": {f"p{n}": {} for n in range(3001)}}, "more than 3000 properties in one object"),
        ({"type": "string", "maxLength": 10**400}, "out of range"),
        ({"required": [each for n in range(2500) for each in (n, f"a{n}")]}, r"json_schema\.required"),
        ({"required": ["a", "b", "a"]}, r"json_schema\.required is not a valid JSON Schema"),
        *(({"$schema": draft, "type": 5}, "not a valid JSON Schema") for draft in INVALID_DRAFTS),
    ],
    ids=["large", "properties", "count", "mixed", "repeated", *("draft",) * len(INVALID_DRAFTS)],
)
def test_invalid_document_is_rejected(schema: Any, error: str) -> None:
    with pytest.raises(InvalidRequest, match=error):
        BYTES.json_schema(schema)


OLDER = [f"http://json-schema.org/draft-0{n}/schema#" for n in (3, 4, 7)]


@pytest.mark.parametrize("draft", OLDER)
@pytest.mark.parametrize("value", [5, "5", [5], None, {"a": [5]}])
def test_keywords_unknown_to_the_draft_are_ignored_with_any_value(draft: str, value: Any) -> None:
    for key in ("dependentRequired", "unevaluatedItems", "minContains"):
        BYTES.json_schema({"$schema": draft, key: value, "type": "object"})


def test_every_format_has_a_case() -> None:
    cases = {case["schema"]["format"] for case in ALLOWED if case["schema"].keys() == {"type", "format"}}
    assert cases == FORMATS.keys()


@pytest.mark.parametrize(
    ("name", "text", "valid"),
    [
        ("hostname", "a" * 63, True),
        ("hostname", "a" * 64, False),
        ("hostname", ".".join(["a" * 49] * 5), True),
        ("hostname", ".".join(["a" * 50] * 5), False),
        *((name, "x", True) for name in ("password", "int32", "color", "", "Date")),  # annotations
    ],
)
def test_hostname_length_is_limited_and_unknown_formats_are_annotations(name: str, text: str, *, valid: bool) -> None:
    assert matches(BYTES.json_schema({"type": "string", "format": name}), json.dumps(text)) is valid


@pytest.mark.parametrize("name", FORMATS)
def test_random_output_conforms_to_the_format(name: str) -> None:
    constraint = WORDS.json_schema({"type": "string", "format": name, "maxLength": 200})
    for seed in range(4):
        text = json.loads(walk(constraint.fork(), WordVocab(), seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's `re` warns of syntax that may change its meaning
            assert Draft202012Validator.FORMAT_CHECKER.conforms(text, name), text
    assert matches(BYTES.json_schema({"format": name}), "5")  # formats constrain strings only
