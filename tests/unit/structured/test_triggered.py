"""Free text with markers in it, over a vocabulary with tokens of several bytes and control tokens."""

from hypothesis import given, settings
from hypothesis import strategies as st

from server.structured.grammar.text_tokens import TextTokens
from server.structured.grammar.triggered import ReasoningTags, Rules, TriggeredConstraint, TriggeredTag
from tests.unit.structured.builders import WORDS, WordVocab, allowed

VOCAB = WordVocab()


def triggered(
    *markers: str,
    at_start: bool = False,
    thoughts: ReasoningTags = (b"", ()),
    anywhere: bool = False,
) -> TriggeredConstraint:
    """Behind each marker `=true;` or `=null;`."""
    inner = WORDS.lark('start: "=" ("true" | "null") ";"')
    begun = tuple(TriggeredTag(marker.encode(), inner, at_start) for marker in markers)
    index = TextTokens(VOCAB).markers(list(map(str.encode, markers)))
    return TriggeredConstraint(Rules(begun, index, frozenset(), thoughts, anywhere))


def tokens_of(text: bytes, cuts: st.DataObject) -> list[int]:
    """One of the ways to write `text` in tokens."""
    found: list[int] = []
    while text:
        fitting = [token for token, word in enumerate(VOCAB.words) if word and text.startswith(word)]
        found.append(cuts.draw(st.sampled_from(fitting)))
        text = text[len(VOCAB.words[found[-1]]) :]
    return found


def takes(made: TriggeredConstraint, tokens: list[int]) -> bool:
    for token in tokens:
        fits = made.allows(token)
        assert fits is (token in allowed(made.mask(), VOCAB.n_tokens))
        if not fits:
            return False
        made.accept(token)
    return True


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from('{":,helo <>é\n'), max_size=20), st.data())
def test_text_without_a_marker_is_free_however_it_is_cut(text: str, data: st.DataObject) -> None:
    made = triggered("<hello>", 'x{"')
    if "<hello>" in text:
        return
    assert takes(made, tokens_of(text.encode(), data))
    assert made.allows(VOCAB.eos)
    assert not made.finished


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from('<"{ he\n'), max_size=6), st.sampled_from(("=true;", "=null;")), st.data())
def test_behind_a_marker_only_its_grammar_holds_however_it_is_cut(before: str, call: str, data: st.DataObject) -> None:
    text = f"{before}<hello>{call} world {before}<hello>{call}"
    assert takes(triggered("<hello>"), tokens_of(text.encode(), data))
    assert not takes(triggered("<hello>"), tokens_of(f"{before}<hello>=12;".encode(), data))


def test_a_marker_of_the_beginning_means_nothing_later() -> None:
    assert not takes(triggered("<hello>", at_start=True), list(b"\n<hello>hm"))
    assert takes(triggered("<hello>", at_start=True), list(b"So: <hello>hm"))
    assert takes(triggered("<hello>", at_start=True), list(b"<hello>=true;<hello>hm"))


def test_forks_go_their_own_way_in_free_text_and_in_a_call() -> None:
    made = triggered("<hello>")
    for part in (b"<hel", b"lo>="):
        copy = made.fork()
        assert takes(made, list(part))
        assert takes(copy, list(b"p, which is free"))
    copy = made.fork()
    assert takes(made, list(b"true;"))
    assert takes(copy, list(b"null; x"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_marker_in_thoughts_constrains_nothing(data: st.DataObject) -> None:
    made = triggered("<f>", thoughts=(b"<think>", (b"</think>", b"<end>")))
    end = data.draw(st.sampled_from([b"</think>", b"<end>"]))
    assert takes(made, tokens_of(b"<think>I say <f>hello" + end + b"<f>", data))
    assert not made.allows(ord("h"))
    assert takes(made, tokens_of(b"=true;", data))
    assert takes(made, tokens_of(b"<think><f>", data))
    assert not made.allows(ord("h"))  # these are no thoughts: they stand at the beginning


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_thoughts_may_come_again(data: st.DataObject) -> None:
    made = triggered("<f>", thoughts=(b"<think>", (b"</think>",)), anywhere=True)
    assert takes(made, tokens_of(b"So <think>I say <f>hello</think><f>=null; and <think><f>hello</think>", data))
    assert takes(made, tokens_of(b"<f>", data))
    assert not made.allows(ord("h"))
