"""Complements of string sets as regular expressions without look-around."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.structured.grammar.schema.language import none_of, readable, without_look_aheads
from tests.unit.structured.builders import BYTES, matches

WORDS = st.lists(st.text("ab-]^\\é\n", min_size=1, max_size=4), min_size=1, max_size=5)


@given(WORDS, st.text("ab-]^\\é\nc", max_size=5))
def test_none_of_matches_all_texts_except_the_words(words: list[str], text: str) -> None:
    assert bool(re.fullmatch(none_of(words).strip("^$"), text)) == (text not in words)


def test_unanchored_property_name_pattern_compiles_next_to_uri_values() -> None:
    """The schema is MaskBench's Github_trivial o78117."""
    schema = {"patternProperties": {"[A-Za-z0-9-_.:]{1,255}": {"type": "string", "format": "uri"}}}
    instance = {f"child-{n}": f"https://example.com/child{n}" for n in range(6)}
    assert matches(BYTES.json_schema(schema), json.dumps(instance))


@pytest.mark.parametrize(
    ("pattern", "shorter"),
    [
        ("[A-Za-z0-9_.:]{1,255}", "[A-Za-z0-9_.:]"),
        (r"\d{2,5}-\d+", r"\d{2}-\d"),
        (".*x.*", "x"),
        (r"\.{2,9}", r"\.{2,9}"),
        ("[a]+|b", "[a]+|b"),
        ("^[a]+$", "^[a]+$"),
    ],
)
def test_outer_repetitions_of_an_unanchored_pattern_are_shortened(pattern: str, shorter: str) -> None:
    assert readable(pattern) == shorter


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("^(?![^^a])", "a", True),
        ("^(?![^^a])", "^", True),
        ("^(?![^^a])", "x", False),
        (r"^(?![^\^a])", "x", False),
        ("^(?![a^])", "^", False),
        ("^(?![a^])", "x", True),
    ],
)
def test_negative_look_ahead_of_a_character_class_is_replaced(pattern: str, text: str, expected: bool) -> None:
    rest, *others = without_look_aheads(pattern)
    assert others
    assert all(re.search(each, text) for each in (rest, *others)) is expected
    assert bool(re.search(pattern, text)) is expected


@pytest.mark.parametrize(
    "pattern", ["^(?![^])", "^(?!a){0}b", "^(?=a)?b", "^(?!a)*b", "^(?!a)+b", "^(?!a|b.)", "(?!a)b"]
)
def test_other_look_aheads_are_not_replaced(pattern: str) -> None:
    assert without_look_aheads(pattern) == [pattern]
