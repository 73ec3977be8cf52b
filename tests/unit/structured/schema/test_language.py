"""Complements of string sets as regular expressions without look-around."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.structured.grammar.schema.language import none_of
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
