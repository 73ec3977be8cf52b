"""Complements of string sets as regular expressions without look-around."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.constrain.grammar.schema.complement import Complements
from server.constrain.grammar.schema.language import none_of, split_look_aheads, without_prefix
from tests.unit.constrain.builders import BYTES, matches

WORDS = st.lists(st.text("ab-]^\\é\n", min_size=1, max_size=4), min_size=1, max_size=5)


@given(WORDS, st.text("ab-]^\\é\nc", max_size=5))
def test_none_of_matches_all_but_the_words(words: list[str], text: str) -> None:
    assert bool(re.fullmatch(none_of(words).strip("^$"), text)) == (text not in words)


@given(WORDS, st.text("ab-]^\\é\nc", max_size=5))
def test_without_prefix_matches_what_begins_with_no_word(words: list[str], text: str) -> None:
    assert bool(re.fullmatch(without_prefix(words)[1:-1], text)) == (not text.startswith(tuple(words)))


NOT_A, NOT_AWS = without_prefix(["a"]), without_prefix(["aws:"])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^(?!aws:)[a-z]+$", ["^[a-z]+$", NOT_AWS]),
        (r"^((?!aws:|x\.)[a-z]*)$", ["^([a-z]*)$", without_prefix(["aws:", "x."])]),
        ("^(?!a)b|c$", None),
        ("^((?!a)b|c)$", None),
        ("^((?!a)[a-z])*$", None),  # not only at the beginning
        ("^((?!a)[a-z])+$", None),
        ("^((?!a)[a-z]){2}$", None),
        ("^((?!a)[a-z]+)?$", ["^([a-z]+)?$", NOT_A]),
        ("^(?!a)*b$", None),
        ("^(?!a)(b|c)$", ["^(b|c)$", NOT_A]),
        ("^(?!a.*)b$", ["^b$", NOT_A]),
        ("^(?!a|b.*)b$", ["^b$", without_prefix(["a", "b"])]),
        ("^(?!a$)b$", ["^b$", Complements().of("^(?:a$)")]),
        ("^(?!a)(?!b)c$", ["^c$", NOT_A, without_prefix(["b"])]),
        ("^(?=[a-z)])[a-z-]+[a-z]$", ["^[a-z-]+[a-z]$", "^(?:[a-z)])"]),
        ("(?!^[0-9]+$)([a-z0-9]+)", ["([a-z0-9]+)", Complements().of("^[0-9]+$")]),
        ("(?!a)b", None),
        ("^(?!a(?=b))c", None),
        ("^(?!a)(?<!b)c", None),
        ("^(?!", None),
        ("^a$", None),
    ],
)
def test_look_aheads_are_split_off_where_they_concern_the_whole(pattern: str, expected: object) -> None:
    assert split_look_aheads(pattern, Complements()) == expected


INSIDE = st.sampled_from(["a", "a|b", "a$", "^a", "[ab]c", "a.*", ".b", "a+$", "^b|c", "^[ab]+$", "\\.", "(?:a|b)c"])
REST = st.sampled_from(
    ["[a-c.]+", "[a-c]*$", "a|b", "(?:a|b)$", ".", "b?c", "b)", "[ab])*$", "b|c)$", "(b)|c)", "c))?$", "]"]
)


@settings(max_examples=1500)
@given(
    st.sampled_from(["^", "", "^(", "(^"]),
    st.lists(st.tuples(st.sampled_from("!="), INSIDE), min_size=1, max_size=2),
    REST,
    st.text("abc.", max_size=5),
)
def test_what_is_split_off_matches_nothing_more(
    begin: str, aheads: list[tuple[str, str]], rest: str, text: str
) -> None:
    pattern = begin + "".join(f"(?{sign}{inside})" for sign, inside in aheads) + rest
    found = split_look_aheads(pattern, Complements())
    if found is not None:
        try:
            wanted = re.search(pattern, text)
        except re.error:
            return
        spelled = [re.sub(r"\\x\{([0-9a-f]+)\}", lambda code: f"\\U{int(code[1], 16):08x}", each) for each in found]
        assert wanted or not all(re.search(each, text) for each in spelled)


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
