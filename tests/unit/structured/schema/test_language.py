"""Complements of string sets as regular expressions without look-around."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.structured.grammar.schema.complement import Complements
from server.structured.grammar.schema.language import none_of, readable, split_look_aheads, without_prefix
from tests.unit.structured.builders import BYTES, matches

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
