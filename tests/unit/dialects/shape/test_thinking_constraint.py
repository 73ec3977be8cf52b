from typing import Any

import pytest

from server.errors import InternalError
from server.structured.after_reasoning import MAX_SPACES, AfterReasoning, Framing
from tests.support.fakes import FakeVocab
from tests.unit.dialects.chat.test_chat_output import accepts
from tests.unit.structured.builders import Only, allowed


def behind(inner: Only, vocab: FakeVocab, **framing: bytes) -> AfterReasoning:
    """Behind thoughts that the prompt has opened."""
    return AfterReasoning(inner, vocab, Framing(b"<t>", b"</t>", **framing), begun=True, may_think=False)


def thinking(answer: bytes = b"ok") -> AfterReasoning:
    return behind(Only(answer), FakeVocab())


def test_between_thoughts_and_answer_white_space_is_free_but_not_for_ever() -> None:
    made = thinking()
    for token in b"x</t>" + b"\n" * MAX_SPACES:
        assert made.allows(token)
        made.accept(token)
    assert not made.allows(ord("\n"))
    assert bits(made.mask()) == {ord("o")}
    assert accepts(made, "ok")


def test_a_token_that_closes_and_goes_on_is_not_allowed() -> None:
    class Joined(FakeVocab):
        def piece(self, token: int, *, special: bool = True) -> bytes:
            return b"</t>o" if token == 1 else super().piece(token, special=special)

    made = behind(Only(b"ok"), Joined())
    assert not made.allows(1)
    with pytest.raises(InternalError):
        made.accept(1)


def test_the_mask_of_a_half_written_closing_tag_leaves_out_what_would_go_on_behind_it() -> None:
    class Joined(FakeVocab):
        def piece(self, token: int, *, special: bool = True) -> bytes:
            return b">o" if token == 1 else super().piece(token, special=special)

    made = behind(Only(b"ok"), Joined())
    assert made.mask()[0] & 2
    for token in b"a</t":
        made.accept(token)
    assert not made.allows(1)
    mask = made.mask()
    assert not mask[0] & 2
    assert mask[ord(">") // 8] >> ord(">") % 8 & 1


def bits(mask: Any) -> set[int]:
    return allowed(mask, FakeVocab.n_tokens)


def may_think(answer: bytes = b"ok", *, opening: bytes = b"<t>", **framing: bytes) -> AfterReasoning:
    made = Framing(opening, b"</t>", **framing)
    return AfterReasoning(Only(answer), FakeVocab(), made, begun=False, may_think=True)


@pytest.mark.parametrize("text", ["no", "<u>", "<t>hm</t>no", "\nno", "<\nt>", "o\nk", "<t>a</t><t>b</t>ok", "\n" * 9])
def test_and_nothing_else(text: str) -> None:
    assert not accepts(may_think(), text)


def test_white_space_leaves_both_ways_open() -> None:
    made = may_think()
    made.accept(ord("\n"))
    assert bits(made.mask()) == {ord("<"), ord("o")}
    assert accepts(made.fork(), "ok")
    assert accepts(made, "<t>hm</t>ok")
    of_spaces = may_think(b"\nok")
    for text in ("\nok", "\n\nok"[1:], "\n<t>hm</t>\nok"):
        assert accepts(of_spaces.fork(), text)
    made = may_think(opening=b" to=self", lead=b" to=user:")
    assert not made.allows(ord("\n"))


def test_the_mask_of_the_beginning_has_both_ways() -> None:
    made = may_think()
    assert bits(made.mask()) == {ord("<"), ord("o")}
    made.accept(ord("<"))
    assert bits(made.mask()) == {ord("t")}
    made = may_think(opening=b" to=self", lead=b" to=user:")
    assert bits(made.mask()) == {ord(" ")}
    for token in b" to=":
        made.accept(token)
    assert bits(made.mask()) == {ord("s"), ord("u")}
    made.accept(ord("u"))
    assert bits(made.mask()) == {ord("s")}


@pytest.mark.parametrize("text", ["ok", "<t>hm</t>ok", "<t>hm</t>L:ok", "again L:ok", "L: ok"])
def test_markup_is_not_left_out(text: str) -> None:
    assert not accepts(may_think(lead=b"L:", again=b"again "), text)


def test_without_thoughts_only_the_markup_comes() -> None:
    made = AfterReasoning(Only(b"ok"), FakeVocab(), Framing(b"<t>", b"</t>", b"L:"), begun=False, may_think=False)
    assert bits(made.mask()) == {ord("L")}
    assert accepts(made, "L:ok")
