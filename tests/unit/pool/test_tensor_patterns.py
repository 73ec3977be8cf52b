"""Patterns for tensors: what is taken, what it costs at worst, and that both implementations mean the same by it."""

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.pool.tensor_patterns import check_pattern, compiled

pytestmark = pytest.mark.slow

# as long as names may be (GGML_MAX_NAME), with the characters of real ones about as often
NAME = "blk.103.ffn_gate_up_exps_and_attn_sub_norm_extended_e.weight"
AS_WRITTEN = [
    r"blk\.(1[0-9]|2[0-9])\.ffn_.*_exps\.weight",
    r"\.ffn_(up|down|gate)_exps",
    r"\.ffn_(up|down|gate|gate_up)_(ch|)exps",
    r"blk\.\d+\.ffn_.*",
    r"([0-9]+).ffn_.*_exps.",
    ".*",
    "exps",
    r"blk\.[0-9]+\.(attn|ffn)_.*\.weight",
    r"blk\.\d+\.ffn_.*(_exps|_shexp)\.weight",
    ".*blk.*ffn.*exps.*",
    ".*blk.[0-9][0-9].ffn.*exps.*",
    r"\.(6|7|8|9|[0-9][0-9]|[0-9][0-9][0-9])\.ffn_(gate|up|down)_exps.",
    r"\.(" + "|".join(map(str, range(60))) + r")\.ffn_.*_exps\.weight",
    r"blk\.(\d+)\.(ffn|attn)_(.*)\.(weight|bias)",
    "^(?!.*token).*",
    "attn_[kqv]$",
]


@pytest.mark.parametrize("pattern", AS_WRITTEN)
def test_what_people_write_is_taken(pattern: str) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        ".*" * 12 + "!",
        ".?" * 250 + "!",
        "(.|.)*!",
        "((.?)+)!",
        "(.+)+!",
        "(ab){2}",
        ".++!",
        ".*+!",
        ".?+!",
        ".{2}+!",
        ".*.*!",
        ".*?.*?!",
        ".{0,50}.{0,50}!",
        ".*.{30}!",
        "(.|.)" * 60 + "!",
        "(a|)" * 30 + "b",
        "(.?)" * 60 + "!",
        "x{1001}",
        "(" * 17 + ")" * 17,
    ],
)
def test_what_may_take_long_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"repeats too much|not supported there|may follow a group|nests more than"):
        check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(?P<a>x)", "(?i)x", "(?#x)", "(?<=a)b", "(?<!a)b", "(a)(?(1)b|c)", "(?>a)", r"\Aa", r"a\Z", r"(a)\1", r"\0"),
        *(
            "[]a]",
            "[^]a]",
            "[[.a.]]",
            "[[=a=]]",
            "[[:bogus:]]",
            "[a--z]",
            "a{,5}",
            "a{5",
            "}",
            "]",
            "\xe9",
            "a\n",
            r"\x41",
        ),
    ],
)
def test_what_the_two_read_differently_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="has "):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "finds"),
    [
        ("^[[:alpha:]]+$", "abYZ"),
        ("^[^[:alpha:]]+$", "0_. "),
        ("^[[:digit:]_]+$", "019_"),
        ("^[[:alnum:]]+$", "azAZ09"),
        ("^[[:lower:]]+$", "az"),
        ("^[[:upper:]]+$", "AZ"),
        ("^[[:space:]]+$", " \t\n"),
        ("^[[:punct:]]+$", "!/:@[\\]^_`{~.-"),
        ("^[[:xdigit:]]+$", "09afAF"),
        (r"^[\w.]+$", "a.b_1"),
        ("^[[&~|(*+)]+$", "[&~|(*+)"),
        (r"^[\]\[\-]+$", "][-"),
    ],
)
def test_classes_have_the_librarys_meaning(pattern: str, finds: str) -> None:
    check_pattern(pattern)
    found = compiled(pattern)
    every = {chr(code) for code in range(9, 127)}
    assert all(found.search(character) for character in finds)
    assert any(not found.search(character) for character in every)


def test_only_ascii_counts_as_a_letter_or_a_digit() -> None:
    assert not compiled(r"\w|\d").search("\xe4\u0663")


ATOMS = st.sampled_from(["e", "_", ".", r"\.", "[a-z]", "[^!]", r"\d", r"\w", "g", "at", "3", "$", "[0-9]"])
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "{0,9}", "{2,}", "{3}", "{20}"])
PIECES = st.recursive(
    st.builds(str.__add__, ATOMS.filter(lambda atom: atom not in ("$", "at")), REPEATS) | ATOMS,
    lambda inner: st.builds(
        lambda rows, repeat: "(" + "|".join("".join(row) for row in rows) + ")" + repeat,
        st.lists(st.lists(inner, max_size=3), min_size=1, max_size=4),
        st.sampled_from(["", "?"]),
    ),
    max_leaves=6,
)
WORST = [
    ".*.?!",
    ".*e.*_!",
    ".*.!",
    ".*e.*!",
    ".*_.*!",
    "(.|.)(.|.)(.|.)(.|.)!",
    ".?.?.?.?.?!",
    "[a-z_]{60}!",
    ".*e.{10}!",
]


@settings(max_examples=400, deadline=None)
@given(pieces=st.lists(PIECES, min_size=1, max_size=8))
def test_no_pattern_that_is_taken_tries_for_long(pieces: list[str]) -> None:
    pattern = "".join(pieces) + "!"
    with suppress(ValueError):
        check_pattern(pattern)
        assert steps(pattern, NAME) < 20_000


@pytest.mark.parametrize("pattern", WORST)
def test_the_worst_that_is_taken_tries_some_thousands_of_characters(pattern: str) -> None:
    check_pattern(pattern)
    assert steps(pattern, NAME) < 20_000


@pytest.mark.parametrize("pattern", [".*.*.*!", ".*.*e.*!", ".?" * 14 + "!", "(.|.)" * 12 + "!"])
def test_the_count_tells_what_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="repeats too much"):
        check_pattern(pattern)
    assert steps(pattern, NAME) > 100_000


def steps(pattern: str, name: str) -> int:
    """How many characters a search that goes back and tries again looks at, without a match: counted over the tree
    that `re` itself makes of the pattern, up to 200,000."""
    matching = _Matching(name)
    tree = list(import_module("re._parser").parse(compiled(pattern).pattern))
    with suppress(OverflowError):
        for start in range(len(name)):
            assert next(matching.row(tree, start), None) is None, "a match"
    return matching.n


class _Matching:
    def __init__(self, name: str) -> None:
        self.name = name
        self.n = 0

    def row(self, items: list[Any], at: int) -> Iterator[int]:
        """Where it may end that begins at `at`."""
        if not items:
            yield at
            return
        for end in self._item(items[0], at):
            yield from self.row(items[1:], end)

    def _item(self, item: tuple[Any, Any], at: int) -> Iterator[int]:
        kind, value = str(item[0]), item[1]
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            yield from self._repeated(list(value[2]), int(value[0]), int(value[1]), at)
        elif kind == "SUBPATTERN":
            yield from self.row(list(value[-1]), at)
        elif kind == "BRANCH":
            for row in value[1]:
                yield from self.row(list(row), at)
        elif kind == "AT":
            yield from [at] * (at == len(self.name))
        else:
            self._count()
            if at < len(self.name) and _is_in(kind, value, self.name[at]):
                yield at + 1

    def _repeated(self, inner: list[Any], least: int, most: int, at: int) -> Iterator[int]:
        if most > 0:
            for end in self.row(inner, at):
                if end > at:
                    yield from self._repeated(inner, least - 1, most - 1, end)
        if least <= 0:
            yield at

    def _count(self) -> None:
        self.n += 1
        if self.n > 200_000:
            raise OverflowError


def _is_in(kind: str, value: Any, character: str) -> bool:
    code = ord(character)
    if kind == "IN":
        members = [(str(name), member) for name, member in value]
        negated = members[0][0] == "NEGATE"
        return negated != any(_is_in(name, member, character) for name, member in members[negated:])
    if kind == "RANGE":
        return bool(value[0] <= code <= value[1])
    if kind == "CATEGORY":
        return character.isdigit() if str(value) == "CATEGORY_DIGIT" else character.isalnum() or character == "_"
    return kind == "ANY" or (kind == "LITERAL") == (value == code)
