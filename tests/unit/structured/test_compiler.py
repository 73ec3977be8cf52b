"""Lark, regex and choice; forks, ends and limits of every constraint."""

import gc
import weakref

import llguidance
import pytest

from server.errors import InvalidRequest
from server.structured.grammar.compiler import GrammarCompiler
from tests.support.fakes import FakeVocab
from tests.unit.structured.builders import BYTES, WordVocab, allowed, matches


@pytest.mark.parametrize(("n_bytes", "is_taken"), [(1024, True), (1025, False)])
def test_a_vocabulary_with_a_token_too_long_for_llguidance_is_told_to_who_asks(n_bytes: int, is_taken: bool) -> None:
    class Vocab(WordVocab):
        words = (*WordVocab.words[:-1], b"-" * n_bytes)

    compiler = GrammarCompiler(Vocab())
    if is_taken:
        assert matches(compiler.regex("a+"), "aa")
    else:
        with pytest.raises(InvalidRequest, match="a token of 1025 bytes"):
            compiler.regex("a+")


def test_a_vocabulary_is_freed_after_the_last_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    """llguidance's tokenizer and its encoder refer to each other, which Python's collector does not see."""
    encoders: list[weakref.ref[object]] = []

    def watched(encoder: object) -> object:
        encoders.append(weakref.ref(encoder))
        return wrapper(encoder)

    wrapper = llguidance.TokenizerWrapper
    monkeypatch.setattr("llguidance.TokenizerWrapper", watched)
    compiler = GrammarCompiler(WordVocab())
    constraint = compiler.choice(["hello world"]).fork()
    before = constraint.mask()
    del compiler
    gc.collect()
    assert matches(constraint.fork(), "hello world")
    assert constraint.fork().mask() == before, "forced text must still be encoded"
    del constraint
    gc.collect()
    assert [each() for each in encoders] == [None]


@pytest.mark.parametrize(
    ("lark", "message"),
    [
        ("start: foo", 'unknown name: "foo"'),
        ('start: "a', "lexer error"),
        ("start: /(?=a)b/", "look-around"),
        ('start: %json {"type": "objec"}', "%json.type is not a valid JSON Schema"),
        ('start: %json {"not": {"format": "date"}}', "not"),
        ("start: %json {", "is not followed by a JSON Schema"),
        ('start: %json {"$ref": "http://127.0.0.1:9/"}', "not supported"),
        ('start: %lark {start: "a"}', "not supported"),
        ("", "."),
    ],
)
def test_bad_lark_is_named(lark: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        BYTES.lark(lark)


@pytest.mark.parametrize("pattern", ["a(b", "[z-a]", r"\p{Nope}", "a" * 300_000, "(" * 5000 + ")" * 5000])
def test_bad_regexes_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        BYTES.regex(pattern)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "pattern", ["(a{1,1000}){1,1000}", "((((a{1,99}b?){1,99}c?){1,99}d?){1,99}e?){1,99}", "(.*a){30}b"]
)
def test_an_explosive_regex_goes_on_or_gives_up_in_words(pattern: str) -> None:
    constraint = BYTES.regex(pattern)
    for _ in range(20):
        if not constraint.allows(ord("a")):
            break
        try:
            constraint.accept(ord("a"))
        except InvalidRequest as error:
            assert "too many expressions" in error.message  # noqa: PT017 - either outcome is right
            break


def test_no_options_and_too_many_are_refused() -> None:
    for options in ([], ["x" * 300_000]):
        with pytest.raises(InvalidRequest, match="choice"):
            BYTES.choice(options)


def test_forks_are_independent() -> None:
    first = BYTES.choice(["abc", "abd"])
    first.accept(ord("a"))
    second = first.fork()
    first.accept(ord("b"))
    first.accept(ord("c"))
    assert first.finished
    assert not second.finished
    assert second.allows(ord("b"))
    assert not second.allows(ord("c"))
    assert matches(BYTES.choice(["abc", "abd"]), "abd"), "a compiled grammar that is kept must not have moved"


def test_a_token_that_is_not_allowed_is_an_error_and_not_garbage() -> None:
    constraint = BYTES.choice(["ab"])
    with pytest.raises(InvalidRequest, match="cannot be kept to the grammar"):
        constraint.accept(ord("x"))
    assert not constraint.allows(ord("a"))
    assert not constraint.finished
    with pytest.raises(InvalidRequest, match="cannot be kept to the grammar"):
        constraint.mask()


def test_a_vocabulary_without_an_end_token_still_ends() -> None:
    class Endless(FakeVocab):
        eos = -1
        eog = frozenset[int]()

    constraint = GrammarCompiler(Endless()).choice(["a"])
    constraint.accept(ord("a"))
    assert constraint.finished
    assert not allowed(constraint.mask(), Endless.n_tokens)
