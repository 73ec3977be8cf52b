"""JSON Schema documents, and their formats."""

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


def test_old_drafts_are_read_as_the_newest() -> None:
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


def test_a_large_invalid_schema_is_refused_without_a_long_explanation() -> None:
    schema = {"anyOf": [{"const": n} for n in range(12_000)] + [{"type": "text"}]}
    with pytest.raises(InvalidRequest, match=r"json_schema\.anyOf\.12000\.type is not a valid JSON Schema"):
        BYTES.json_schema(schema)


def test_more_properties_than_can_be_compiled_in_time_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than 3000 properties in one object"):
        BYTES.json_schema({"properties": {f"p{n}": {} for n in range(3001)}})


OLDER = [f"http://json-schema.org/draft-0{n}/schema#" for n in (3, 4, 7)]


@pytest.mark.parametrize("draft", OLDER)
@pytest.mark.parametrize("value", [5, "5", [5], None, {"a": [5]}])
def test_what_a_draft_does_not_know_says_nothing_whatever_it_is(draft: str, value: Any) -> None:
    for key in ("dependentRequired", "unevaluatedItems", "minContains"):
        BYTES.json_schema({"$schema": draft, key: value, "type": "object"})


@pytest.mark.parametrize("draft", [5, [], {}, True])
def test_a_draft_that_is_no_name_is_refused(draft: Any) -> None:
    with pytest.raises(InvalidRequest, match="not a valid JSON Schema"):
        BYTES.json_schema({"$schema": draft, "type": 5})


def test_a_count_may_be_any_integer() -> None:
    Document({"type": "string", "maxLength": 10**400}, "json_schema").plain()
    with pytest.raises(InvalidRequest, match="out of range"):
        BYTES.json_schema({"type": "string", "maxLength": 10**400})


def test_many_repetitions_are_found_in_time() -> None:
    mixed = [each for n in range(2500) for each in (n, f"a{n}")]
    with pytest.raises(InvalidRequest, match=r"json_schema\.required"):
        BYTES.json_schema({"required": mixed})
    with pytest.raises(InvalidRequest, match=r"json_schema\.required is not a valid JSON Schema"):
        BYTES.json_schema({"required": ["a", "b", "a"]})


def test_every_format_has_a_case() -> None:
    cases = {case["schema"]["format"] for case in ALLOWED if case["schema"].keys() == {"type", "format"}}
    assert cases == FORMATS.keys()


@pytest.mark.parametrize(
    ("label", "n", "is_host"), [("a" * 63, 1, True), ("a" * 64, 1, False), ("a" * 49, 5, True), ("a" * 50, 5, False)]
)
def test_the_labels_of_a_hostname_and_all_of_it_are_bounded(label: str, n: int, is_host: bool) -> None:
    assert _takes({"type": "string", "format": "hostname"}, ".".join([label] * n)) is is_host


def _takes(schema: object, text: str) -> bool:
    return matches(BYTES.json_schema(schema), json.dumps(text, ensure_ascii=False))


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_model_writes_under_a_format_conforms(name: str) -> None:
    constraint = WORDS.json_schema({"type": "string", "format": name, "maxLength": 200})
    for seed in range(4):
        text = json.loads(walk(constraint.fork(), WordVocab(), seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's `re` warns of what may change its meaning
            assert Draft202012Validator.FORMAT_CHECKER.conforms(text, name), text
    assert matches(BYTES.json_schema({"format": name}), "5")  # it says nothing of other types


@pytest.mark.parametrize("name", ["password", "int32", "color", "", "Date"])
def test_another_format_is_an_annotation(name: str) -> None:
    assert _takes({"type": "string", "format": name}, "x")
