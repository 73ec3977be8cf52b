"""Complements of string sets as regular expressions without look-around."""

import re

from hypothesis import given
from hypothesis import strategies as st

from server.structured.grammar.schema.language import none_of

WORDS = st.lists(st.text("ab-]^\\é\n", min_size=1, max_size=4), min_size=1, max_size=5)


@given(WORDS, st.text("ab-]^\\é\nc", max_size=5))
def test_none_of_matches_all_but_the_words(words: list[str], text: str) -> None:
    assert bool(re.fullmatch(none_of(words).strip("^$"), text)) == (text not in words)
