"""Triggered tags in free text, with a vocabulary that has multi-byte and control tokens."""

from hypothesis import given, settings
from hypothesis import strategies as st

from server.structured.grammar.text_tokens import TextTokens
from server.structured.grammar.triggered import ReasoningTags, Rules, TriggeredConstraint, TriggeredTag
from tests.unit.structured.builders import WORDS, WordVocab, allowed

VOCAB = WordVocab()


def triggered(
    *markers: str,
    at_start: bool = False,
    reasoning: ReasoningTags = (b"", ()),
    anywhere: bool = False,
) -> TriggeredConstraint:
    """Return a constraint that allows `=true;` or `=null;` after each marker."""
    inner = WORDS.lark('start: "=" ("true" | "null") ";"')
    tags = tuple(TriggeredTag(marker.encode(), inner, at_start) for marker in markers)
    index = TextTokens(VOCAB).markers(list(map(str.encode, markers)))
    return TriggeredConstraint(Rules(tags, index, frozenset(), reasoning, anywhere))


def tokens_of(text: bytes, data: st.DataObject) -> list[int]:
    """Return a random tokenization of `text`."""
    tokens: list[int] = []
    while text:
        candidates = [token for token, word in enumerate(VOCAB.words) if word and text.startswith(word)]
        tokens.append(data.draw(st.sampled_from(candidates)))
        text = text[len(VOCAB.words[tokens[-1]]) :]
    return tokens


def takes(constraint: TriggeredConstraint, tokens: list[int]) -> bool:
    """Advance until a token is not allowed. Return whether all are allowed, and assert that masks agree."""
    for token in tokens:
        is_allowed = constraint.allows(token)
        assert is_allowed is (token in allowed(constraint.mask(), VOCAB.n_tokens))
        if not is_allowed:
            return False
        constraint.accept(token)
    return True


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from('{":,helo <>é\n'), max_size=20), st.data())
def test_text_without_a_marker_is_unconstrained_in_any_tokenization(text: str, data: st.DataObject) -> None:
    constraint = triggered("<hello>", 'x{"')
    if "<hello>" in text:
        return
    assert takes(constraint, tokens_of(text.encode(), data))
    assert constraint.allows(VOCAB.eos)
    assert not constraint.finished


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from('<"{ he\n'), max_size=6), st.sampled_from(("=true;", "=null;")), st.data())
def test_marker_starts_its_grammar_in_any_tokenization(before: str, call: str, data: st.DataObject) -> None:
    text = f"{before}<hello>{call} world {before}<hello>{call}"
    assert takes(triggered("<hello>"), tokens_of(text.encode(), data))
    assert not takes(triggered("<hello>"), tokens_of(f"{before}<hello>=12;".encode(), data))


def test_marker_for_the_start_is_ignored_later() -> None:
    assert not takes(triggered("<hello>", at_start=True), list(b"\n<hello>hm"))
    assert takes(triggered("<hello>", at_start=True), list(b"So: <hello>hm"))
    assert takes(triggered("<hello>", at_start=True), list(b"<hello>=true;<hello>hm"))


def test_forks_are_independent_in_free_text_and_inside_a_call() -> None:
    constraint = triggered("<hello>")
    for part in (b"<hel", b"lo>="):
        fork = constraint.fork()
        assert takes(constraint, list(part))
        assert takes(fork, list(b"p, which is free"))
    fork = constraint.fork()
    assert takes(constraint, list(b"true;"))
    assert takes(fork, list(b"null; x"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_marker_inside_reasoning_at_the_start_is_ignored(data: st.DataObject) -> None:
    constraint = triggered("<f>", reasoning=(b"<think>", (b"</think>", b"<end>")))
    end = data.draw(st.sampled_from([b"</think>", b"<end>"]))
    assert takes(constraint, tokens_of(b"<think>I say <f>hello" + end + b"<f>", data))
    assert not constraint.allows(ord("h"))
    assert takes(constraint, tokens_of(b"=true;", data))
    assert takes(constraint, tokens_of(b"<think><f>", data))
    assert not constraint.allows(ord("h"))  # this is not reasoning, which is only at the start


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_marker_inside_repeated_reasoning_is_ignored(data: st.DataObject) -> None:
    constraint = triggered("<f>", reasoning=(b"<think>", (b"</think>",)), anywhere=True)
    assert takes(constraint, tokens_of(b"So <think>I say <f>hello</think><f>=null; and <think><f>hello</think>", data))
    assert takes(constraint, tokens_of(b"<f>", data))
    assert not constraint.allows(ord("h"))
