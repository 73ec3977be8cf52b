"""References, drafts and annotations: what a schema document says, in plain form."""

from typing import Any

import pytest

from server.errors import InvalidRequest
from server.structured.grammar.schema.document import Document
from tests.unit.structured.builders import BYTES


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
