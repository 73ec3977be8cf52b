"""GBNF grammars match the same texts as in llama.cpp, and errors name the line."""

import contextlib
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import InvalidRequest
from tests.support.yaml_text import loaded
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, allowed, matches

CASES = loaded(Path(__file__).with_name("grammars.yaml"))


@pytest.mark.parametrize("case", [case for case in CASES if "error" not in case], ids=lambda case: case["grammar"][:50])
def test_grammar_accepts_exactly_the_allowed_texts_of_its_case(case: dict[str, Any]) -> None:
    compiled = BYTES.gbnf(case["grammar"])
    assert [text for text in case["allows"] + case["rejects"] if matches(compiled.fork(), text)] == case["allows"]


@pytest.mark.parametrize("case", [case for case in CASES if "error" in case], ids=lambda case: case["grammar"][:50])
def test_error_names_the_line_of_the_mistake(case: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="failed to parse grammar: ") as caught:
        BYTES.gbnf(case["grammar"])
    assert caught.value.param == "grammar"
    assert case["error"] in caught.value.message


_EXPRESSION = st.recursive(
    st.sampled_from(['"a"', '"ab"', '"b"', "[ab]", "[^a]", '""']),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' '.join(parts)})"),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' | '.join(parts)})"),
        st.tuples(inner, st.sampled_from("*+?")).map(lambda pair: f"({pair[0]}){pair[1]}"),
        inner.map(lambda part: f"({part}){{1,2}}"),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(_EXPRESSION)
def test_random_grammars_match_the_same_texts_as_python_regexes(expression: str) -> None:
    pattern = re.compile(expression.replace('"', ""), re.VERBOSE)
    try:
        compiled = BYTES.gbnf(f"root ::= {expression}")
    except InvalidRequest as error:
        pytest.fail(error.message)
    for text in map("".join, itertools.chain.from_iterable(itertools.product("ab", repeat=n) for n in range(5))):
        assert matches(compiled.fork(), text) == bool(pattern.fullmatch(text)), text


def test_tokens_are_matched_by_text_and_by_id_and_can_be_excluded() -> None:
    vocab = WordVocab()
    tool = vocab.bos + 3
    constraint = WORDS.gbnf(f'root ::= <tool> "x" !<[{tool}]> <[120]>')
    assert allowed(constraint.mask(), vocab.n_tokens) == {tool}
    constraint.accept(tool)
    constraint.accept(ord("x"))
    assert not constraint.allows(tool)
    assert not constraint.allows(vocab.eos)
    assert constraint.allows(vocab.words.index(b"hello"))
    constraint.accept(vocab.words.index(b"hello"))
    assert constraint.allows(120)


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
        "root ::= " + '"abcdefghij" ' * 5000,
        "root ::= " + "a" * 300_000,
    ],
)
def test_oversized_grammar_is_rejected(grammar: str) -> None:
    with pytest.raises(InvalidRequest):
        BYTES.gbnf(grammar)


@settings(max_examples=200, deadline=None)
@given(st.text('ro:=t"ab()[]{}|*+?^-\\x<>!#. \n019,', max_size=40))
def test_random_text_compiles_or_raises_invalid_request(text: str) -> None:
    for grammar in (text, f"root ::= {text}"):
        with contextlib.suppress(InvalidRequest):
            BYTES.gbnf(grammar)
