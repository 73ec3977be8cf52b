"""`uniqueItems`: no item repeats another, and items that can be no other are not begun."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from server.constrain.grammar.matcher import MatcherConstraint
from server.constrain.grammar.unique.cursor import Cursor
from server.errors import InvalidRequest
from tests.unit.constrain.builders import BYTES, WORDS, WordVocab, allowed, matches, walk

UNIQUE = {"type": "array", "uniqueItems": True}
LETTERS = {**UNIQUE, "items": {"enum": ["a", "b", "ab"]}}


def after(schema: Any, text: str) -> MatcherConstraint:
    constraint = BYTES.json_schema(schema)
    for byte in text.encode():
        constraint.accept(byte)
    return constraint


def next_bytes(constraint: MatcherConstraint) -> str:
    found = "".join(chr(token) for token in sorted(allowed(constraint.mask(), 256)))
    assert found == "".join(chr(token) for token in range(256) if constraint.allows(token))
    return found.strip()


@pytest.mark.parametrize(
    "text", ["[]", "[1,2]", '["a", "b", {}]', "[1, true, [1]]", '[{"a":1},{"a":2}]', '["a","a\\n"]']
)
def test_different_items_pass(text: str) -> None:
    assert matches(BYTES.json_schema(UNIQUE), text)


@pytest.mark.parametrize(
    "text",
    [
        *("[1,1]", "[1, 1.0]", "[1,2,1]", "[ 1 , 1 ]", '["a","a"]', '["a","\\u0061"]', "[[],[]]", "[null,null]"),
        '[{"a":1,"b":2},{"b":2.0,"a":1}]',
    ],
)
def test_a_repetition_is_refused_however_it_is_written(text: str) -> None:
    assert not matches(BYTES.json_schema(UNIQUE), text)


def test_only_what_is_not_there_yet_is_begun() -> None:
    assert next_bytes(after(LETTERS, '["a","')) == "ab"
    assert next_bytes(after(LETTERS, '["a","a')) == "b"
    assert next_bytes(after(LETTERS, '["a","ab","')) == "b"
    assert next_bytes(after(LETTERS, '["a","ab","b"')) == "]"


def test_an_item_goes_on_where_its_end_would_repeat() -> None:
    strings = {**UNIQUE, "items": {"type": "string", "pattern": "^a+$"}}
    assert next_bytes(after(strings, '["aa","aa')) == "a"
    assert next_bytes(after(strings, '["aa","a')) == '"a'


def test_an_item_that_can_only_repeat_ends_the_output_with_an_error() -> None:
    points = {**UNIQUE, "items": {"type": "object", "additionalProperties": False}}
    constraint = after(points, "[{},{\n")
    assert next_bytes(constraint) == ""  # only white space, for a while
    for byte in b"\n" + b"\t" * 20:
        constraint.accept(byte)
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        constraint.mask()


def test_a_token_of_several_bytes_is_looked_through() -> None:
    constraint = WORDS.json_schema({**UNIQUE, "items": {"type": ["integer", "string"]}})
    for byte in b'[12,"hello",':
        constraint.accept(byte)
    twelve = next(token for token in range(256, 300) if WordVocab().piece(token) == b"12")
    hello = next(token for token in range(256, 300) if WordVocab().piece(token) == b"hello")
    assert constraint.allows(twelve)  # 121 may come of it
    constraint.accept(twelve)
    assert not constraint.allows(ord(","))
    constraint.accept(ord("1"))
    constraint.accept(ord(","))
    constraint.accept(ord('"'))
    constraint.accept(hello)
    assert not constraint.allows(ord('"'))


def test_inside_a_string_only_tokens_that_end_it_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    constraint = WORDS.json_schema({**UNIQUE, "items": {"type": "array", "items": {"type": "string"}}})
    for byte in b'[["hello"],["hell':
        constraint.accept(byte)
    looked: list[bytes] = []
    may_take = Cursor.may_take

    def noted(cursor: Cursor, piece: bytes) -> bool:
        looked.append(piece)
        return may_take(cursor, piece)

    monkeypatch.setattr(Cursor, "may_take", noted)
    constraint.mask()
    assert b'"' in looked
    assert all(b'"' in piece for piece in looked)


def test_a_fork_goes_its_own_way() -> None:
    constraint = after(UNIQUE, "[1,")
    fork = constraint.fork()
    fork.accept(ord("2"))
    fork.accept(ord(","))
    constraint.accept(ord("3"))
    constraint.accept(ord(","))
    constraint.accept(ord("2"))
    assert constraint.allows(ord("]"))
    fork.accept(ord("2"))
    assert not fork.allows(ord("]"))


def test_items_of_a_thousand_levels_are_compared_as_text() -> None:
    deep = "[" * 1500 + "]" * 1500
    constraint = after(UNIQUE, f"[{deep},{deep[:-1]}")
    assert not constraint.allows(ord("]"))
    assert after(UNIQUE, f"[{deep},[{deep[:-1]}").allows(ord("]"))


def test_the_array_is_found_through_references_alternatives_and_names() -> None:
    schema = {
        "properties": {"x": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/u"}]}, "y": {"type": "array"}},
        "patternProperties": {"^z": {"prefixItems": [{}, UNIQUE]}},
        "$defs": {"u": UNIQUE},
    }
    for text, valid in {
        '{"x":[1,1]}': False,
        '{"x":[1,2],"y":[1,1]}': True,
        '{"z1":[[1,1],[1,2]]}': True,
        '{"z1":[1,[1,1]]}': False,
    }.items():
        assert matches(BYTES.json_schema(schema), text) is valid


def test_inside_a_lark_grammar_it_is_refused_with_its_place() -> None:
    schema = json.dumps({"properties": {"a": UNIQUE}})
    with pytest.raises(InvalidRequest, match=r"%json\.properties\.a: the keyword 'uniqueItems' cannot be enforced"):
        BYTES.lark(f"start: %json {schema}")


ITEMS = st.sampled_from(
    [
        *({}, {"type": "string"}, {"type": "integer"}, {"enum": ["a", "b", 1, None]}, {"type": "boolean"}),
        *({"type": "string", "maxLength": 1}, {"type": "array", "items": {"type": "null"}}, UNIQUE, LETTERS),
        {"type": "object", "properties": {"k": {"enum": ["x", "y"]}}, "required": ["k"], "additionalProperties": False},
    ]
)


@settings(max_examples=150, deadline=None)
@given(ITEMS, st.integers(0, 4), st.integers(0, 2**32))
def test_whatever_is_written_is_unique(items: Any, least: int, seed: int) -> None:
    schema = {**UNIQUE, "items": items, "minItems": least}
    refusal, text = "", b""
    try:
        text = walk(WORDS.json_schema(schema), WordVocab(), seed, at_most=25)
    except InvalidRequest as error:  # too many wanted of too few values: known at once, or when none is left
        refusal = error.message
    if refusal:
        assert "uniqueItems" in refusal
        return
    Draft202012Validator(schema).validate(json.loads(text))


def test_items_that_branch_by_references_are_followed_once() -> None:
    """Each of 30 levels refers twice to the next: 2 ** 30 ways to the same three values."""
    defs: dict[str, Any] = {
        f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(30)
    }
    defs["a30"] = {"enum": ["x", "y", "z"]}
    schema = {**UNIQUE, "items": {"$ref": "#/$defs/a0"}, "minItems": 3, "maxItems": 3, "$defs": defs}
    items = json.loads(walk(WORDS.json_schema(schema), WordVocab(), 1, at_most=25))
    assert sorted(items) == ["x", "y", "z"]
