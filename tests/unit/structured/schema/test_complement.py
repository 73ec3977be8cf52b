"""The complement of a pattern matches no text that it matches, and every other one where all dialects agree."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.structured.grammar.schema.complement import MAX_LEVELS, Complements
from tests.unit.structured.builders import BYTES, matches

EXACT = [
    *(
        "^ab$",
        "ab",
        "a|b",
        "^a|b$",
        "^(ab|c)*$",
        "a{2,3}b",
        "a{2,}",
        "[a-c-]$",
        "^[^a]",
        "a?b+?",
        r"^\.",
        "",
        "^$",
        "x^a",
    ),
    *("a$b", "(^|x)a($|b)", r"^(?:a|b){3}$", r"[\-a\].]x", "^.$", r"\x61\u0062", "a{0}b", "((a)(b)*)+c", "^(?:^a$)"),
    *("x^a", "(a|b)*abb", "^[ab]{2}x?[ab]{2}$"),
]
VAGUE = [r"^\w+$", r"\s", r"^\S+$", r"^[^\d]*$", r"[\W.]", r"^\D", r"\p{L}", r"[^\S]"]
TEXTS = st.text("abcx-].é 1\u2028\x1c_", max_size=7)


def complement(pattern: str) -> str | None:
    return Complements().of(pattern)


def excluded(pattern: str, text: str) -> bool:
    others = complement(pattern)
    if not others:
        return False
    spelled = re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: f"\\U{int(found[1], 16):08x}", others)
    return re.fullmatch(spelled, text) is not None


@settings(max_examples=600)
@given(st.sampled_from(EXACT), TEXTS)
def test_it_matches_what_the_pattern_does_not(pattern: str, text: str) -> None:
    assert excluded(pattern, text) == (re.search(pattern, text) is None)


@settings(max_examples=300)
@given(st.sampled_from(VAGUE), TEXTS)
def test_it_matches_nothing_that_some_dialect_takes(pattern: str, text: str) -> None:
    if excluded(pattern, text):
        for flags in (0, re.ASCII):
            assert pattern == r"\p{L}" or re.search(pattern, text, flags) is None


PARTS = st.recursive(
    st.sampled_from(["a", "b", "x", "[ab]", "[^a]", ".", "^", "$", r"\.", "[b-x]"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}"])).map(lambda p: f"(?:{p[0]}){p[1]}"),
    ),
    max_leaves=8,
)


@settings(max_examples=500, deadline=None)
@given(PARTS, TEXTS)
def test_of_any_pattern(pattern: str, text: str) -> None:
    if complement(pattern) is not None:
        assert excluded(pattern, text) == (re.search(pattern, text) is None)


UNREADABLE = [
    *("(?=a)b", "(?i)a", r"(a)\1", r"\bx", "[]a]", "[^]", "[a[b]]", "[a&&b]", "a**", "a{2}{3}", "[z-a]", "(a", "[a"),
    *(
        "a{,2}",
        "a{1000}",
        "a{3,2}",
        "a{\u0663}",
        "*a",
        "\\",
        r"\ud800",
        r"\012",
        "(" * 40 + "a" + ")" * 40,
        r"[\d-z]",
        f"^.{{{MAX_LEVELS}}}$",
    ),
]
COUNTED = ["^.{%d}$", "^.{%d}", "^(ab?){%d}$", "^[a-c]{1,%d}$", "(?:^|a){%d}b", "^(a|bc|.d){%d}"]


@pytest.mark.parametrize("pattern", UNREADABLE)
def test_what_dialects_read_differently_or_is_large_has_none(pattern: str) -> None:
    assert complement(pattern) is None


@pytest.mark.parametrize("pattern", COUNTED)
def test_the_largest_one_compiles(pattern: str) -> None:
    largest = next(n for n in range(1, 1000) if complement(pattern % (n + 1)) is None)
    word = complement(pattern % largest)
    assert word
    constraint = BYTES.json_schema({"type": "string", "pattern": word})
    for text in ("", "a" * largest, "a" * (largest + 1), "ab" * largest):
        assert matches(constraint.fork(), f'"{text}"') == (re.search(pattern % largest, text) is None)


def test_a_document_has_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{Complements.__module__}.MAX_WORK", 200_000)
    complements = Complements()
    found = [complements.of(f"^[a-c]{{1,20}}{n}$") for n in range(100)]
    assert found[0]
    assert found[-1] is None
    assert complements.of("^[a-c]{1,20}0$") == found[0]


def test_what_is_read_again_for_each_repetition_counts_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Complements().of(f"^[{'ab' * 500}]{{50}}$")
    monkeypatch.setattr(f"{Complements.__module__}.MAX_WORK", 200_000)
    assert Complements().of("^[ab]{50}$")
    assert Complements().of(f"^[{'ab' * 500}]{{50}}$") is None


@pytest.mark.parametrize("pattern", ["^[\ud7ff]", "^[^\ue000]", r"^[^\ue000]$", r"[\ud7ff]", r"^[^\u0001-\ud7ff]"])
def test_it_names_no_surrogates(pattern: str) -> None:
    constraint = BYTES.json_schema({"type": "string", "not": {"pattern": pattern}})
    for text in ("a", "\ud7ff", "\ue000", "\U0001f600"):
        if matches(constraint.fork(), f'"{text}"'):
            assert re.search(pattern, text) is None
