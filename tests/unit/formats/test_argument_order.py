"""Arguments may come in any order, each at most once; what is required must come."""

import json
from itertools import permutations
from typing import Any

import pytest

from server.formats import BY_NAME
from server.formats.written import calls_text
from tests.unit.formats.reading import forced_calls, parser, read
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


def written(form: str, given: list[tuple[str, Any]]) -> str:
    return calls_text(BY_NAME[form].syntax, [("f", json.dumps(dict(given)))])


FORMS = ["hermes", "qwen3-coder", "lfm2", "gemma4", "minimax-m3"]


def fits(form: str, text: str, **more: Any) -> bool:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {**SCHEMA, **more}}}]
    return matches(BYTES.lark(forced_calls(form, "", tools, name="", parallel=True)), text)


@pytest.mark.parametrize("form", FORMS)
def test_arguments_come_in_any_order(form: str) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    for n in (1, 2, 3):
        for given in permutations(VALUES.items(), n):
            call = written(form, list(given))
            assert fits(form, call) is ("city" in dict(given)), call
            if "city" in dict(given):
                ((_, arguments),) = read(parser(form, tools=tools), call).calls
                assert json.loads(arguments) == dict(given)


def test_json_objects_take_further_members_where_the_schema_does() -> None:
    further = written("hermes", [("other", [1]), ("city", "Paris"), ("more", None), ("days", 3)])
    assert not fits("hermes", further)
    assert fits("hermes", further, additionalProperties=True)
    assert fits("hermes", further, additionalProperties={"type": ["array", "null"]})
    assert not fits("hermes", further, additionalProperties=False)
    assert not fits("hermes", further, additionalProperties={"type": "array"})


@pytest.mark.parametrize("keyword", [{"minProperties": 0}, {"anyOf": [{"required": ["days"]}, {}]}, {"$id": "urn:x"}])
def test_json_objects_whose_members_depend_on_each_other_keep_the_order_of_their_schema(keyword: Any) -> None:
    assert fits("hermes", written("hermes", [("city", "Paris"), ("days", 3)]), **keyword)
    assert not fits("hermes", written("hermes", [("days", 3), ("city", "Paris")]), **keyword)


@pytest.mark.parametrize("form", ["hermes", "qwen3-coder", "lfm2"])
def test_more_arguments_than_can_be_told_apart_keep_their_order(form: str) -> None:
    many = {f"p{n}": {"type": "integer"} for n in range(65)}
    for given, fitting in (([("p3", 1), ("p64", 2)], True), ([("p64", 1), ("p3", 2)], False)):
        call = written(form, given)
        assert fits(form, call, properties=many, required=[], additionalProperties=False) is fitting
