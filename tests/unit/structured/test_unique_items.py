"""`uniqueItems`: an output that repeats an item fails when it is finished."""

import json
from typing import Any

import pytest

from server.errors import InvalidRequest
from server.structured.grammar.matcher import MatcherConstraint
from tests.unit.structured.builders import BYTES

UNIQUE = {"type": "array", "uniqueItems": True}


def after(schema: Any, text: str) -> MatcherConstraint:
    constraint = BYTES.json_schema(schema)
    for byte in text.encode():
        constraint.accept(byte)
    return constraint


@pytest.mark.parametrize(
    "text", ["[]", "[1,2]", '["a", "b", {}]', "[1, true, [1]]", '[{"a":1},{"a":2}]', '["a","a\\n"]']
)
def test_different_items_pass(text: str) -> None:
    assert after(UNIQUE, text).finished


@pytest.mark.parametrize(
    "text",
    [
        *("[1,1]", "[1, 1.0]", "[1,2,1]", "[ 1 , 1 ]", '["a","a"]', "[[],[]]", "[null,null]"),
        '[{"a":1,"b":2},{"b":2.0,"a":1}]',
    ],
)
def test_a_repetition_fails_however_it_is_written(text: str) -> None:
    constraint = after(UNIQUE, text[:-1])
    with pytest.raises(InvalidRequest, match="the output breaks 'uniqueItems' of json_schema: an item repeats another"):
        constraint.accept(ord("]"))


def test_a_fork_has_its_own_items() -> None:
    constraint = after(UNIQUE, "[1,")
    fork = constraint.fork()
    for byte in b"1":
        constraint.accept(byte)
    for byte in b"2]":
        fork.accept(byte)
    with pytest.raises(InvalidRequest, match="an item repeats another"):
        constraint.accept(ord("]"))


def test_an_output_too_deep_to_compare_fails() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    constraint = after(UNIQUE, f"[{deep}")
    with pytest.raises(InvalidRequest, match="nested too deeply to check 'uniqueItems'"):
        constraint.accept(ord("]"))


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"x":[1,1]}', False),
        ('{"x":[1,2],"y":[1,1]}', True),
        ('{"z1":[[1,1],[1,2]]}', True),
        ('{"z1":[1,[1,1]]}', False),
    ],
)
def test_the_array_is_found_through_references_alternatives_and_names(text: str, valid: bool) -> None:
    schema = {
        "properties": {"x": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/u"}]}, "y": {"type": "array"}},
        "patternProperties": {"^z": {"prefixItems": [{}, UNIQUE]}},
        "$defs": {"u": UNIQUE},
    }
    constraint = after(schema, text[:-1])
    if valid:
        constraint.accept(ord("}"))
        assert constraint.finished
    else:
        with pytest.raises(InvalidRequest, match="an item repeats another"):
            constraint.accept(ord("}"))


def test_inside_a_lark_grammar_it_is_refused_with_its_place() -> None:
    schema = json.dumps({"properties": {"a": UNIQUE}})
    with pytest.raises(InvalidRequest, match=r"%json\.properties\.a: the keyword 'uniqueItems' cannot be enforced"):
        BYTES.lark(f"start: %json {schema}")
