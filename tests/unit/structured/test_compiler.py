"""Compiled grammars, their cache, and masks computed together."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llguidance
import pytest

from server.errors import InvalidRequest
from server.structured.constraint import n_mask_bytes
from server.structured.grammar.compiler import GrammarCompiler, NewestValues
from server.structured.grammar.lark import lark_with_texts
from server.structured.grammar.matcher import Masks
from tests.support.fakes import FakeVocab
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, allowed, matches


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
    ("kind", "value", "message"),
    [
        ("lark", "start: foo", 'unknown name: "foo"'),
        ("lark", 'start: "a', "lexer error"),
        ("lark", "start: /(?=a)b/", "look-around"),
        ("lark", 'start: %json {"type": "objec"}', "%json.type is not a valid JSON Schema"),
        ("lark", 'start: %json {"not": {"format": "date"}}', "not"),
        ("lark", "start: %json {", "is not followed by a JSON Schema"),
        ("lark", 'start: %json {"$ref": "http://127.0.0.1:9/"}', "not supported"),
        ("lark", 'start: %lark {start: "a"}', "not supported"),
        ("lark", "", "."),
        *(
            ("regex", pattern, "regex")
            for pattern in ("a(b", "[z-a]", r"\p{Nope}", "a" * 300_000, "(" * 5000 + ")" * 5000)
        ),
        ("choice", [], "choice"),
        ("choice", ["x" * 300_000], "choice"),
    ],
)
def test_a_bad_grammar_is_named(kind: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        getattr(BYTES, kind)(value)


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


def test_a_vocabulary_without_an_end_token_still_ends() -> None:
    class Endless(FakeVocab):
        eos = -1
        eog = frozenset[int]()

    constraint = GrammarCompiler(Endless()).choice(["a"])
    constraint.accept(ord("a"))
    assert constraint.finished
    assert not allowed(constraint.mask(), Endless.n_tokens)


def test_what_is_asked_for_at_the_same_time_is_made_once() -> None:
    cache: NewestValues[object] = NewestValues(4)
    made: list[object] = []
    begun, go_on = threading.Event(), threading.Event()

    def make() -> object:
        begun.set()
        assert go_on.wait(60)
        made.append(object())
        return made[-1]

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cache.get, "key", make)
        assert begun.wait(60)
        others = [pool.submit(cache.get, "key", make) for _ in range(3)]
        assert cache.get("another", lambda: 7) == 7  # nobody waits for what he didn't ask for
        go_on.set()
        found = [future.result(60) for future in (first, *others)]
    assert found == made * 4
    assert len(made) == 1


MASKS = Masks()


def test_masks_computed_together_are_those_computed_alone() -> None:
    made = [WORDS.json_schema({"type": kind}) for kind in ("string", "integer", "object", "array", "null")]
    made += [WORDS.regex("[a-c]{3}"), WORDS.choice(["é€", "yes"]), made[0].fork()]
    made[-1].accept(ord('"'))
    together = MASKS.compute(made)
    alone = [constraint.mask() for constraint in made]
    n_bytes = n_mask_bytes(made[0].tokenizer.n_tokens)
    assert [bytes(mask) for mask in together if not isinstance(mask, Exception)] == [mask[:n_bytes] for mask in alone]
    assert len(together) == len(alone)


@pytest.mark.parametrize("together", [False, True])
def test_a_reply_whose_masks_take_too_long_ends_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, *, together: bool
) -> None:
    monkeypatch.setattr("server.structured.grammar.matcher.SLOW_S", 0.0)
    monkeypatch.setattr("server.structured.grammar.matcher.MAX_SLOW_S", 0.0)
    slow, other = WORDS.regex("[a-c]+"), WORDS.regex("[a-c]+")
    if together:
        first, _ = MASKS.compute([slow, other])
        assert not isinstance(first, Exception)
        first, _ = MASKS.compute([slow, other])  # by themselves now, and measured
        assert isinstance(first, InvalidRequest)
        message = first.message
    else:
        with pytest.raises(InvalidRequest) as caught:
            slow.mask()
        message = caught.value.message
    assert message.startswith("the output cannot be kept to the grammar: its masks have taken more than 0 s")
    assert not slow.allows(ord("a"))
    with pytest.raises(InvalidRequest, match="more than 0 s"):
        slow.accept(ord("a"))


def test_a_constraint_after_a_token_that_is_not_allowed_is_its_own_failure() -> None:
    good, bad = WORDS.regex("ab"), WORDS.regex("ab")
    with pytest.raises(InvalidRequest, match="cannot be kept to the grammar"):
        bad.accept(ord("x"))
    assert not bad.allows(ord("a"))
    assert not bad.finished
    with pytest.raises(InvalidRequest, match="cannot be kept to the grammar"):
        bad.mask()
    first, second, third = MASKS.compute([good, bad, good.fork()])
    assert isinstance(second, InvalidRequest)
    assert "cannot be kept to the grammar" in second.message
    assert not isinstance(first, Exception)
    assert not isinstance(third, Exception)
    assert bytes(first) == bytes(third) == good.mask()[: n_mask_bytes(good.tokenizer.n_tokens)]


class Sliced(str):
    """A grammar that counts the characters that are copied."""

    n_copied = 0

    def __getitem__(self, key: Any) -> str:
        found = super().__getitem__(key)
        Sliced.n_copied += len(found)
        return found


def test_the_schemas_in_a_grammar_are_taken_out_in_time_in_proportion() -> None:
    text = Sliced("start: " + " | ".join(["%json \n {}"] * 200))
    grammar, _, _ = lark_with_texts(text, len(text), ())
    assert grammar.count("%json {") == 200
    assert Sliced.n_copied < 2 * len(text)
