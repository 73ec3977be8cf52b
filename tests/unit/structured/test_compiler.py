"""Compiled grammars, their cache, and masks that are computed in one batch."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llguidance
import pytest

from server.errors import InvalidRequest
from server.structured.constraint import n_mask_bytes
from server.structured.grammar.compiler import GrammarCompiler, LruCache
from server.structured.grammar.lark import lark_with_texts
from server.structured.grammar.matcher import Masks
from tests.support.fakes import FakeVocab
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, allowed, matches, takes


@pytest.mark.parametrize(("n_bytes", "is_supported"), [(1024, True), (1025, False)])
def test_vocabulary_with_a_token_too_long_for_llguidance_rejects_grammars(n_bytes: int, is_supported: bool) -> None:
    class Vocab(WordVocab):
        words = (*WordVocab.words[:-1], b"-" * n_bytes)

    compiler = GrammarCompiler(Vocab())
    if is_supported:
        assert matches(compiler.regex("a+"), "aa")
    else:
        with pytest.raises(InvalidRequest, match="a token of 1025 bytes"):
            compiler.regex("a+")


def test_tokenizer_is_freed_with_the_last_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    """llguidance's tokenizer and its encoder refer to each other, a cycle that Python's collector does not see."""
    encoders: list[weakref.ref[object]] = []

    def wrapper_with_weakref(encoder: object) -> object:
        encoders.append(weakref.ref(encoder))
        return wrapper(encoder)

    wrapper = llguidance.TokenizerWrapper
    monkeypatch.setattr("llguidance.TokenizerWrapper", wrapper_with_weakref)
    compiler = GrammarCompiler(WordVocab())
    constraint = compiler.choice(["hello world"]).fork()
    before = constraint.mask()
    del compiler
    gc.collect()
    assert matches(constraint.fork(), "hello world")
    assert constraint.fork().mask() == before, "forced text must still be encoded"
    del constraint
    gc.collect()
    assert [encoder() for encoder in encoders] == [None]


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
def test_error_names_the_mistake_in_a_grammar(kind: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        getattr(BYTES, kind)(value)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "pattern", ["(a{1,1000}){1,1000}", "((((a{1,99}b?){1,99}c?){1,99}d?){1,99}e?){1,99}", "(.*a){30}b"]
)
def test_exploding_regex_matches_or_ends_with_an_error(pattern: str) -> None:
    constraint = BYTES.regex(pattern)
    try:
        takes(constraint, b"a" * 20)
    except InvalidRequest as error:
        assert "too many expressions" in error.message  # noqa: PT017 - either outcome is right


def test_constraint_finishes_in_a_vocabulary_without_an_end_token() -> None:
    class WithoutEndToken(FakeVocab):
        eos = -1
        eog = frozenset[int]()

    constraint = GrammarCompiler(WithoutEndToken()).choice(["a"])
    constraint.accept(ord("a"))
    assert constraint.finished
    assert not allowed(constraint.mask(), WithoutEndToken.n_tokens)


def test_concurrent_cache_misses_of_one_key_create_one_value() -> None:
    cache: LruCache[object] = LruCache(4)
    values: list[object] = []
    started, may_finish = threading.Event(), threading.Event()

    def make() -> object:
        started.set()
        assert may_finish.wait(60)
        values.append(object())
        return values[-1]

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cache.get, "key", make)
        assert started.wait(60)
        others = [pool.submit(cache.get, "key", make) for _ in range(3)]
        assert cache.get("another", lambda: 7) == 7  # another key does not wait
        may_finish.set()
        results = [future.result(60) for future in (first, *others)]
    assert results == values * 4
    assert len(values) == 1


MASKS = Masks()


def test_batched_masks_equal_single_masks() -> None:
    constraints = [WORDS.json_schema({"type": kind}) for kind in ("string", "integer", "object", "array", "null")]
    constraints += [WORDS.regex("[a-c]{3}"), WORDS.choice(["é€", "yes"]), constraints[0].fork()]
    constraints[-1].accept(ord('"'))
    batched = MASKS.compute(constraints)
    single = [constraint.mask() for constraint in constraints]
    n_bytes = n_mask_bytes(constraints[0].tokenizer.n_tokens)
    assert [bytes(mask) for mask in batched if not isinstance(mask, Exception)] == [mask[:n_bytes] for mask in single]
    assert len(batched) == len(single)


@pytest.mark.parametrize("batched", [False, True])
def test_constraint_fails_after_its_masks_exceed_the_time_limit(
    monkeypatch: pytest.MonkeyPatch, *, batched: bool
) -> None:
    monkeypatch.setattr("server.structured.grammar.matcher.SLOW_S", 0.0)
    monkeypatch.setattr("server.structured.grammar.matcher.MAX_SLOW_S", 0.0)
    slow, other = WORDS.regex("[a-c]+"), WORDS.regex("[a-c]+")
    if batched:
        first, _ = MASKS.compute([slow, other])
        assert not isinstance(first, Exception)
        first, _ = MASKS.compute([slow, other])  # after a slow batch each mask is computed alone and measured
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


def test_accepting_a_disallowed_token_fails_only_that_constraint() -> None:
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


class CountingText(str):
    """A text that counts the characters that its slices copy."""

    n_copied = 0

    def __getitem__(self, key: Any) -> str:
        part = super().__getitem__(key)
        CountingText.n_copied += len(part)
        return part


def test_schemas_in_a_lark_grammar_are_extracted_in_linear_time() -> None:
    text = CountingText("start: " + " | ".join(["%json \n {}"] * 200))
    grammar, _, _ = lark_with_texts(text, len(text), ())
    assert grammar.count("%json {") == 200
    assert CountingText.n_copied < 2 * len(text)
