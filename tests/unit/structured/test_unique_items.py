"""`uniqueItems`: no item repeats another, and listed values that occur already are not begun."""

import itertools
import json
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from server.errors import InvalidRequest
from server.structured.grammar import unique_items
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.grammar.matcher import MatcherConstraint
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, allowed, matches, takes, walk

UNIQUE = {"type": "array", "uniqueItems": True}
LETTERS, STRINGS = {"enum": ["a", "b", "ab"]}, {"type": "string", "pattern": "^a+$"}
BEGUN = {'"': "ab", '"a': "b", '"ab","': "b", '"ab","b"': "]"}
"""The text after an item "a" of `LETTERS`, and the bytes that may follow."""


def after(schema: Any, text: str) -> MatcherConstraint:
    constraint = BYTES.json_schema(schema)
    assert takes(constraint, text.encode())
    return constraint


def next_bytes(constraint: MatcherConstraint) -> str:
    found = "".join(chr(token) for token in sorted(allowed(constraint.mask(), 256)))
    assert found == "".join(chr(token) for token in range(256) if constraint.allows(token))
    return found.strip()


@pytest.mark.parametrize(
    ("text", "differs"),
    [
        *((text, True) for text in ("[]", "[1,2]", '["a", "b", {}]', "[1, true, [1]]")),
        *((text, True) for text in ('[{"a":1},{"a":2}]', '["a","a\\n"]')),
        *((text, False) for text in ("[1,1]", "[1, 1.0]", "[1,2,1]", "[ 1 , 1 ]", '["a","a"]', '["a","\\u0061"]')),
        *((text, False) for text in ("[[],[]]", "[null,null]", '[{"a":1,"b":2},{"b":2.0,"a":1}]')),
    ],
)
def test_a_repetition_is_refused_however_it_is_written(text: str, *, differs: bool) -> None:
    assert matches(BYTES.json_schema(UNIQUE), text) is differs


OBJECT = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("items", "text", "allowed_next"),
    [
        pytest.param({"type": "integer", "minimum": 1, "maximum": 3}, "[1,3,", "2", id="integers"),
        pytest.param({"type": "integer", "minimum": 1, "maximum": 3}, "[1,3,2", "]", id="the comma after an integer"),
        pytest.param({"type": "boolean"}, "[true,", "f", id="booleans"),
        pytest.param({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, '["a",null,"', "b", id="alternatives"),
        pytest.param({"$ref": "#/$defs/letter"}, '["a","', "b", id="references"),
        pytest.param({"enum": [[1], [12]]}, "[[1],[1", "2", id="lists"),
        *(pytest.param(LETTERS, f'["a",{rest}', shown, id=rest) for rest, shown in BEGUN.items()),
        *(pytest.param(STRINGS, f'["aa","{rest}', shown, id=rest) for rest, shown in {"aa": "a", "a": '"a'}.items()),
    ],
)
def test_only_what_is_not_there_yet_is_begun(items: Any, text: str, allowed_next: str) -> None:
    schema = {**UNIQUE, "items": items, "$defs": {"letter": {"enum": ["a", "b"]}}}
    assert next_bytes(after(schema, text)) == allowed_next


def test_a_reply_fails_where_every_continuation_repeats_an_item() -> None:
    constraint = after({**UNIQUE, "items": {"type": "string", "pattern": "^[ab]$"}}, '["a","a')
    with pytest.raises(InvalidRequest, match="an item repeats another one"):
        constraint.mask()


@pytest.mark.parametrize("text", ['["a","b",', '["a","b", "'])
def test_a_token_that_ends_an_item_and_goes_on_is_refused_where_no_other_is_left(text: str) -> None:
    vocab = WordVocab(b'","', b'", "c')
    constraint = GrammarCompiler(vocab).json_schema({**UNIQUE, "items": {"enum": ["a", "b", "c"]}})
    assert takes(constraint, text.removesuffix('"').rstrip(" ").encode() + b'"c')
    joined = [len(WordVocab.words), len(WordVocab.words) + 1]
    assert not any(constraint.allows(token) for token in joined)
    assert not allowed(constraint.mask(), vocab.n_tokens) & set(joined)
    assert constraint.allows(ord('"'))


def test_tokens_that_the_grammar_refuses_are_not_read() -> None:
    vocab = WordVocab(b'"]}', b'"}]', b'"{')
    names = {**OBJECT, "properties": {"n": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["n"]}
    constraint = GrammarCompiler(vocab).json_schema({**UNIQUE, "items": names})
    assert takes(constraint, b'[{"n":"a"},{"n":"a')
    found = allowed(constraint.mask(), vocab.bos)
    assert found & set(range(256)) == set(b'abcdefghijklmnopqrstuvwxyz"')
    assert found.isdisjoint(range(len(WordVocab.words), vocab.bos))


def test_a_token_of_several_bytes_is_looked_through() -> None:
    constraint = WORDS.json_schema({**UNIQUE, "items": {"type": ["integer", "string"]}})
    assert takes(constraint, b'[12,"hello",')
    twelve = next(token for token in range(256, 300) if WordVocab().piece(token) == b"12")
    hello = next(token for token in range(256, 300) if WordVocab().piece(token) == b"hello")
    assert takes(constraint, [twelve])  # 121 may come of it
    assert not constraint.allows(ord(","))
    assert takes(constraint, [*b'1,"', hello])
    assert not constraint.allows(ord('"'))


def test_a_fork_goes_its_own_way() -> None:
    constraint = after(UNIQUE, "[1,")
    fork = constraint.fork()
    assert takes(fork, b"2,")
    assert takes(constraint, b"3,2]")
    assert takes(fork, b"2")
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


@pytest.mark.parametrize("items", [{"type": ["integer", "null", "boolean"]}, {}])
def test_a_literal_is_begun_once(items: Any) -> None:
    schema = {**UNIQUE, "items": items}
    assert {"f", "t"} < set(next_bytes(after(schema, "[null,")))
    assert "n" not in next_bytes(after(schema, "[null,"))
    assert not {"n", "t"} & set(next_bytes(after(schema, "[true,1,null, ")))


ITEMS: list[tuple[Any, float]] = [
    *(({}, inf), ({"type": "string"}, inf), ({"type": "integer"}, inf), ({"type": "boolean"}, 2), (UNIQUE, inf)),
    *(({"enum": ["a", "b", 1, None]}, 4), ({"type": "integer", "minimum": 8, "maximum": 10}, 3)),
    ({"type": "array", "items": {"type": "null"}}, inf),
]
"""Schemas of items, and how many values each has."""


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(ITEMS), st.integers(0, 4), st.integers(0, 2**32))
def test_whatever_is_written_is_unique_and_never_in_a_dead_end(items: tuple[Any, float], least: int, seed: int) -> None:
    schema = {**UNIQUE, "items": items[0], "minItems": least}
    assume(least <= max(1, items[1]))  # otherwise nothing matches
    Draft202012Validator(schema).validate(json.loads(walk(WORDS.json_schema(schema), WordVocab(), seed, at_most=25)))


def test_an_integer_0_is_begun_once() -> None:
    schema = {**UNIQUE, "items": {"type": "integer"}, "minItems": 3}
    items = json.loads(walk(WORDS.json_schema(schema), WordVocab(), 15220, at_most=25))  # wrote [0,-0
    assert len(set(items)) == len(items) >= 3
    assert after({**UNIQUE, "items": {"type": "number"}}, "[0,-").allows(ord("0"))  # -0.5
    assert not after({**UNIQUE, "items": {"type": ["integer", "null"]}}, "[0,-").allows(ord("0"))
    assert after({**UNIQUE, "items": {"anyOf": [{"type": "integer"}, {"enum": [0.5]}]}}, "[0,").allows(ord("0"))


def test_items_that_branch_by_references_are_followed_once() -> None:
    """Each of 30 levels refers twice to the next: 2 ** 30 ways to the same three values."""
    defs: dict[str, Any] = {
        f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(30)
    }
    defs["a30"] = {"enum": ["x", "y", "z"]}
    schema = {**UNIQUE, "items": {"$ref": "#/$defs/a0"}, "minItems": 3, "maxItems": 3, "$defs": defs}
    items = json.loads(walk(WORDS.json_schema(schema), WordVocab(), 1, at_most=25))
    assert sorted(items) == ["x", "y", "z"]


def test_the_time_for_unique_items_ends_a_reply_as_that_for_masks_does(monkeypatch: pytest.MonkeyPatch) -> None:
    constraint = after(UNIQUE, "[1,")
    times = itertools.count(step=3)
    monkeypatch.setattr(unique_items, "time", SimpleNamespace(thread_time=lambda: next(times)))
    constraint.mask()
    assert not constraint.allows(ord("2"))
    with pytest.raises(InvalidRequest, match="its masks have taken more than 2 s"):
        constraint.mask()
