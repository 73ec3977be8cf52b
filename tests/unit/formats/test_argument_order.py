"""Grammars of forced calls accept arguments in any order, each at most once, and require the required ones."""

import json
from itertools import permutations
from typing import Any

import pytest

from server.formats import BY_NAME
from server.formats.written import calls_text
from tests.unit.formats.parsing import forced_calls, make_parser, parse_text
from tests.unit.formats.recorded import tool
from tests.unit.structured.builders import BYTES, matches

VALUES: dict[str, Any] = {"city": "Paris", "days": 3, "exact": True}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "exact": {"type": "boolean"},
        "city": {"type": "string"},
        "days": {"$ref": "#/$defs/n"},
    },
    "required": ["city"],
    "$defs": {"n": {"type": "integer", "maximum": 9}},
}


def call_text(name: str, arguments: list[tuple[str, Any]]) -> str:
    return calls_text(BY_NAME[name].syntax, [("f", json.dumps(dict(arguments)))])


FORMATS = ["hermes", "qwen3-coder", "lfm2", "gemma4", "minimax-m3"]


def accepts(name: str, text: str, **keywords: Any) -> bool:
    """Return whether the format's grammar for `SCHEMA` with these keywords accepts the text."""
    tools = [tool("f", {**SCHEMA, **keywords})]
    return matches(BYTES.lark(forced_calls(name, "", tools, name="", parallel=True)), text)


@pytest.mark.parametrize("name", FORMATS)
def test_arguments_are_accepted_in_any_order(name: str) -> None:
    for n in (1, 2, 3):
        for arguments in permutations(VALUES.items(), n):
            call = call_text(name, list(arguments))
            assert accepts(name, call) is ("city" in dict(arguments)), call
            if "city" in dict(arguments):
                ((_, parsed),) = parse_text(make_parser(name, tools=[tool("f", SCHEMA)]), call).calls
                assert json.loads(parsed) == dict(arguments)


def test_additional_properties_are_accepted_only_if_the_schema_allows_them() -> None:
    call = call_text("hermes", [("other", [1]), ("city", "Paris"), ("more", None), ("days", 3)])
    assert not accepts("hermes", call)
    assert accepts("hermes", call, additionalProperties=True)
    assert accepts("hermes", call, additionalProperties={"type": ["array", "null"]})
    assert not accepts("hermes", call, additionalProperties=False)
    assert not accepts("hermes", call, additionalProperties={"type": "array"})


@pytest.mark.parametrize("keyword", [{"minProperties": 0}, {"anyOf": [{"required": ["days"]}, {}]}, {"$id": "urn:x"}])
def test_json_objects_with_keywords_for_the_whole_object_keep_schema_order(keyword: Any) -> None:
    assert accepts("hermes", call_text("hermes", [("city", "Paris"), ("days", 3)]), **keyword)
    assert not accepts("hermes", call_text("hermes", [("days", 3), ("city", "Paris")]), **keyword)


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "lfm2"])
def test_more_than_64_parameters_keep_schema_order(name: str) -> None:
    many = {f"p{n}": {"type": "integer"} for n in range(65)}
    for arguments, expected in (([("p3", 1), ("p64", 2)], True), ([("p64", 1), ("p3", 2)], False)):
        call = call_text(name, arguments)
        assert accepts(name, call, properties=many, required=[], additionalProperties=False) is expected
