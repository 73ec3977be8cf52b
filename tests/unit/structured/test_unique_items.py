"""`uniqueItems`: an item that repeats another is rejected, as early as its first byte if no other value is left."""

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
AFTER_A = {'"': "ab", '"a': "b", '"ab","': "b", '"ab","b"': "]"}
"""Texts after the item "a" of `LETTERS`, and the bytes that may follow."""


def after(schema: Any, text: str) -> MatcherConstraint:
    constraint = BYTES.json_schema(schema)
    assert takes(constraint, text.encode())
    return constraint


def next_bytes(constraint: MatcherConstraint) -> str:
    """Return the bytes that mask and `allows` permit, without white space."""
    by_mask = "".join(chr(token) for token in sorted(allowed(constraint.mask(), 256)))
    assert by_mask == "".join(chr(token) for token in range(256) if constraint.allows(token))
    return by_mask.strip()


@pytest.mark.parametrize(
    ("text", "is_unique"),
    [
        *((text, True) for text in ("[]", "[1,2]", '["a", "b", {}]', "[1, true, [1]]")),
        *((text, True) for text in ('[{"a":1},{"a":2}]', '["a","a\\n"]')),
        *((text, False) for text in ("[1,1]", "[1, 1.0]", "[1,2,1]", "[ 1 , 1 ]", '["a","a"]', '["a","\\u0061"]')),
        *((text, False) for text in ("[[],[]]", "[null,null]", '[{"a":1,"b":2},{"b":2.0,"a":1}]')),
    ],
)
def test_repeated_item_is_rejected_in_every_notation(text: str, *, is_unique: bool) -> None:
    assert matches(BYTES.json_schema(UNIQUE), text) is is_unique


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
        *(pytest.param(LETTERS, f'["a",{rest}', next_, id=rest) for rest, next_ in AFTER_A.items()),
        *(pytest.param(STRINGS, f'["aa","{rest}', next_, id=rest) for rest, next_ in {"aa": "a", "a": '"a'}.items()),
    ],
)
def test_masks_exclude_bytes_that_only_lead_to_repeated_items(items: Any, text: str, allowed_next: str) -> None:
    schema = {**UNIQUE, "items": items, "$defs": {"letter": {"enum": ["a", "b"]}}}
    assert next_bytes(after(schema, text)) == allowed_next


def test_constraint_fails_if_every_continuation_repeats_an_item() -> None:
    constraint = after({**UNIQUE, "items": {"type": "string", "pattern": "^[ab]$"}}, '["a","a')
    with pytest.raises(InvalidRequest, match="an item repeats another one"):
        constraint.mask()


@pytest.mark.parametrize("text", ['["a","b",', '["a","b", "'])
def test_token_that_starts_another_item_is_rejected_if_no_value_is_left(text: str) -> None:
    vocab = WordVocab(b'","', b'", "c')
    constraint = GrammarCompiler(vocab).json_schema({**UNIQUE, "items": {"enum": ["a", "b", "c"]}})
    assert takes(constraint, text.removesuffix('"').rstrip(" ").encode() + b'"c')
    multi_byte = [len(WordVocab.words), len(WordVocab.words) + 1]
    assert not any(constraint.allows(token) for token in multi_byte)
    assert not allowed(constraint.mask(), vocab.n_tokens) & set(multi_byte)
    assert constraint.allows(ord('"'))


def test_tokens_that_the_grammar_rejects_stay_excluded() -> None:
    vocab = WordVocab(b'"]}', b'"}]', b'"{')
    names = {**OBJECT, "properties": {"n": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["n"]}
    constraint = GrammarCompiler(vocab).json_schema({**UNIQUE, "items": names})
    assert takes(constraint, b'[{"n":"a"},{"n":"a')
    tokens = allowed(constraint.mask(), vocab.bos)
    assert tokens & set(range(256)) == set(b'abcdefghijklmnopqrstuvwxyz"')
    assert tokens.isdisjoint(range(len(WordVocab.words), vocab.bos))


def test_multi_byte_tokens_count_as_part_of_an_item() -> None:
    constraint = WORDS.json_schema({**UNIQUE, "items": {"type": ["integer", "string"]}})
    assert takes(constraint, b'[12,"hello",')
    twelve = next(token for token in range(256, 300) if WordVocab().piece(token) == b"12")
    hello = next(token for token in range(256, 300) if WordVocab().piece(token) == b"hello")
    assert takes(constraint, [twelve])  # it may become 121
    assert not constraint.allows(ord(","))
    assert takes(constraint, [*b'1,"', hello])
    assert not constraint.allows(ord('"'))


def test_forks_are_independent() -> None:
    constraint = after(UNIQUE, "[1,")
    fork = constraint.fork()
    assert takes(fork, b"2,")
    assert takes(constraint, b"3,2]")
    assert takes(fork, b"2")
    assert not fork.allows(ord("]"))


def test_items_nested_more_than_a_thousand_levels_are_compared() -> None:
    deep = "[" * 1500 + "]" * 1500
    constraint = after(UNIQUE, f"[{deep},{deep[:-1]}")
    assert not constraint.allows(ord("]"))
    assert after(UNIQUE, f"[{deep},[{deep[:-1]}").allows(ord("]"))


def test_unique_items_applies_below_references_alternatives_and_patterns() -> None:
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


def test_unique_items_inside_a_lark_grammar_is_rejected_with_its_path() -> None:
    schema = json.dumps({"properties": {"a": UNIQUE}})
    with pytest.raises(InvalidRequest, match=r"%json\.properties\.a: the keyword 'uniqueItems' cannot be enforced"):
        BYTES.lark(f"start: %json {schema}")


@pytest.mark.parametrize("items", [{"type": ["integer", "null", "boolean"]}, {}])
def test_masks_exclude_repeated_literals(items: Any) -> None:
    schema = {**UNIQUE, "items": items}
    assert {"f", "t"} < set(next_bytes(after(schema, "[null,")))
    assert "n" not in next_bytes(after(schema, "[null,"))
    assert not {"n", "t"} & set(next_bytes(after(schema, "[true,1,null, ")))


ITEMS: list[tuple[Any, float]] = [
    *(({}, inf), ({"type": "string"}, inf), ({"type": "integer"}, inf), ({"type": "boolean"}, 2), (UNIQUE, inf)),
    *(({"enum": ["a", "b", 1, None]}, 4), ({"type": "integer", "minimum": 8, "maximum": 10}, 3)),
    ({"type": "array", "items": {"type": "null"}}, inf),
]
"""Schemas of items, and how many values each one allows."""


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(ITEMS), st.integers(0, 4), st.integers(0, 2**32))
def test_random_output_has_unique_items_and_never_meets_a_dead_end(
    items: tuple[Any, float], min_items: int, seed: int
) -> None:
    schema = {**UNIQUE, "items": items[0], "minItems": min_items}
    assume(min_items <= max(1, items[1]))  # otherwise nothing matches
    Draft202012Validator(schema).validate(json.loads(walk(WORDS.json_schema(schema), WordVocab(), seed, n_free=25)))


def test_integers_0_and_minus_0_are_equal() -> None:
    schema = {**UNIQUE, "items": {"type": "integer"}, "minItems": 3}
    items = json.loads(walk(WORDS.json_schema(schema), WordVocab(), 15220, n_free=25))  # was [0,-0
    assert len(set(items)) == len(items) >= 3
    assert after({**UNIQUE, "items": {"type": "number"}}, "[0,-").allows(ord("0"))  # -0.5
    assert not after({**UNIQUE, "items": {"type": ["integer", "null"]}}, "[0,-").allows(ord("0"))
    assert after({**UNIQUE, "items": {"anyOf": [{"type": "integer"}, {"enum": [0.5]}]}}, "[0,").allows(ord("0"))


def test_schema_with_exponentially_many_reference_paths_is_expanded_once() -> None:
    """Each of 30 levels refers twice to the next: 2 ** 30 paths to the same three values."""
    defs: dict[str, Any] = {
        f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(30)
    }
    defs["a30"] = {"enum": ["x", "y", "z"]}
    schema = {**UNIQUE, "items": {"$ref": "#/$defs/a0"}, "minItems": 3, "maxItems": 3, "$defs": defs}
    items = json.loads(walk(WORDS.json_schema(schema), WordVocab(), 1, n_free=25))
    assert sorted(items) == ["x", "y", "z"]


def test_mask_time_limit_includes_the_unique_items_check(monkeypatch: pytest.MonkeyPatch) -> None:
    constraint = after(UNIQUE, "[1,")
    times = itertools.count(step=3)
    monkeypatch.setattr(unique_items, "time", SimpleNamespace(thread_time=lambda: next(times)))
    constraint.mask()
    assert not constraint.allows(ord("2"))
    with pytest.raises(InvalidRequest, match="its masks have taken more than 2 s"):
        constraint.mask()
