"""Complements of string sets as regular expressions without look-around."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.structured.grammar.schema.language import none_of, readable
from tests.unit.structured.builders import BYTES, matches

WORDS = st.lists(st.text("ab-]^\\é\n", min_size=1, max_size=4), min_size=1, max_size=5)


@given(WORDS, st.text("ab-]^\\é\nc", max_size=5))
def test_none_of_matches_all_but_the_words(words: list[str], text: str) -> None:
    assert bool(re.fullmatch(none_of(words).strip("^$"), text)) == (text not in words)


CLASSES = [
    *('[^"]', r"[^\\]", r'[^"\\]', r'[^\\/:*?"<>|]', '[^-"]', "[^!-/]", r"[^\x22]", '[^"é]', '(?:a|[^"])', '[^"-]'),
    *(
        r"[^\s\"]",
        r"[\x00-!]",
        r"[\u0000-\x1f]",
        r"[^#-~\"]",
        "[\x00-!]",
        r'[^"][^\\]',
        r"\S",
        "[^a]",
        r"[^\]\\]",
    ),
]


@pytest.mark.parametrize("pattern", CLASSES)
def test_a_class_has_quotes_and_backslashes_where_it_says_so(pattern: str) -> None:
    for whole in (f"^(?:{pattern})$", f"^(?:{pattern})*$", f"x{pattern}{{1,2}}$"):
        text = BYTES.json_schema({"type": "string", "pattern": whole})
        name = BYTES.json_schema({"type": "object", "patternProperties": {whole: {}}, "additionalProperties": False})
        for written in ('"', "\\", "a", "\n", "\t", "é", "-", "!", "]", 'a"', '[^"]', 'x"', "x\\", "xa"):
            found = re.search(whole[:-1] + r"\Z", written) is not None
            assert matches(text.fork(), json.dumps(written, ensure_ascii=False)) == found
            assert matches(name.fork(), f"{{{json.dumps(written, ensure_ascii=False)}:1}}") == found


_ATOMS = st.sampled_from(["[ab]", "[^a]", r"\d", ".", "a", r"\.", r"\\", r"[\]b]", "^", "$"])
_COUNTS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{0,3}", "{1,2}", "{2,}", "+?"])


@given(st.lists(st.tuples(_ATOMS, _COUNTS), max_size=4), st.text("ab1.\\]c", max_size=6))
def test_a_shortened_pattern_matches_the_same_texts(parts: list[tuple[str, str]], text: str) -> None:
    pattern = "".join(atom if atom in "^$" else atom + count for atom, count in parts)
    assert bool(re.search(readable(pattern), text)) is bool(re.search(pattern, text))


@pytest.mark.parametrize(
    ("pattern", "shorter"),
    [
        ("[A-Za-z0-9_.:]{1,255}", "[A-Za-z0-9_.:]"),
        (r"\d{2,5}-\d+", r"\d{2}-\d"),
        ("^[a]+", "^[a]"),
        (".*x.*", "x"),
        (r"\.{2,9}", r"\.{2,9}"),
        ("[a]+|b", "[a]+|b"),
        ("[a]+$", "[a]$"),
        ("^[a]+$", "^[a]+$"),
    ],
)
def test_no_more_of_the_outer_classes_is_kept_than_a_match_needs(pattern: str, shorter: str) -> None:
    assert readable(pattern) == shorter


def test_a_long_name_pattern_without_anchors_is_followed_beside_uris() -> None:
    """MaskBench's Github_trivial o78117."""
    schema = {"patternProperties": {"[A-Za-z0-9-_.:]{1,255}": {"type": "string", "format": "uri"}}}
    instance = {f"child-{n}": f"https://example.com/child{n}" for n in range(6)}
    assert matches(BYTES.json_schema(schema), json.dumps(instance))
