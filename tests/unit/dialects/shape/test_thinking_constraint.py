from typing import Any

import pytest

from server.structured.after_reasoning import AfterReasoning
from tests.support.fakes import BOS, EOS, IM_START, FakeVocab
from tests.unit.dialects.chat.test_chat_output import accepts
from tests.unit.structured.builders import Only, after_reasoning, allowed

SPACES = set(b" \t\r\n")


def test_between_thoughts_and_answer_white_space_is_free_but_not_for_ever() -> None:
    made = after_reasoning(Only(b"ok"), begun=True)
    for token in b"x</t>" + b"\n" * 16:
        assert made.allows(token)
        made.accept(token)
    assert not made.allows(ord("\n"))
    assert bits(made.mask()) == {ord("o")}
    assert accepts(made, "ok")


def test_a_token_that_closes_and_goes_on_is_not_allowed() -> None:
    class Joined(FakeVocab):
        def piece(self, token: int, *, special: bool = True) -> bytes:
            return {1: b"</t>o", 2: b">o"}.get(token) or super().piece(token, special=special)

    made = after_reasoning(Only(b"ok"), Joined(), begun=True)
    assert not made.allows(1)
    assert 1 not in bits(made.mask())
    assert 2 in bits(made.mask())
    for token in b"a</t":
        made.accept(token)
    assert not made.allows(2)
    assert 2 not in bits(made.mask())
    assert ord(">") in bits(made.mask())


def bits(mask: Any) -> set[int]:
    return allowed(mask, FakeVocab.n_tokens)


def may_think(answer: bytes = b"ok", *, opening: str = "<t>", lead: str = "", again: str = "") -> AfterReasoning:
    return after_reasoning(Only(answer), tags=(opening, "</t>"), lead=lead, again=again, may_think=True)


@pytest.mark.parametrize("text", ["no", "<u>", "<t>hm</t>no", "\nno", "<\nt>", "o\nk", "<t>a</t><t>b</t>ok", "\n" * 17])
def test_and_nothing_else(text: str) -> None:
    assert not accepts(may_think(), text)


def test_white_space_leaves_both_ways_open() -> None:
    made = may_think()
    made.accept(ord("\n"))
    assert bits(made.mask()) - SPACES == {ord("<"), ord("o")}
    assert accepts(made.fork(), "ok")
    assert accepts(made, "<t>hm</t>ok")
    of_spaces = may_think(b"\nok")
    for text in ("\nok", "\n\nok"[1:], "\n<t>hm</t>\nok"):
        assert accepts(of_spaces.fork(), text)
    made = may_think(opening=" to=self", lead=" to=user:")
    assert not made.allows(ord("\n"))


def test_the_mask_of_the_beginning_has_both_ways() -> None:
    made = may_think()
    assert bits(made.mask()) - SPACES == {ord("<"), ord("o")}
    made.accept(ord("<"))
    assert bits(made.mask()) == {ord("t")}
    made = may_think(opening=" to=self", lead=" to=user:")
    assert bits(made.mask()) == {ord(" ")}
    for token in b" to=":
        made.accept(token)
    assert bits(made.mask()) == {ord("s"), ord("u")}
    made.accept(ord("u"))
    assert bits(made.mask()) == {ord("s")}


def test_copies_think_apart() -> None:
    made = after_reasoning(Only(b"ok"), begun=True)
    copy = made.fork()
    for token in b"h</t>":
        made.accept(token)
    assert accepts(copy, "hm</t>ok")
    assert accepts(made, "ok")


def test_what_begins_as_reasoning_is_no_reply() -> None:
    assert not accepts(may_think(b"<t>no"), "<t>no")
    assert accepts(may_think(b"<t>no"), "<t>hm</t><t>no")


def test_no_end_token_comes_before_the_reply() -> None:
    assert not may_think().allows(EOS)


@pytest.mark.parametrize("text", ["ok", "<t>hm</t>ok", "<t>hm</t>L:ok", "again L:ok", "L: ok"])
def test_markup_is_not_left_out(text: str) -> None:
    assert not accepts(may_think(lead="L:", again="again "), text)


def test_tags_that_are_control_tokens_are_matched_by_their_ids() -> None:
    made = after_reasoning(Only(b"ok"), tags=("<|im_start|>", "<s>"), may_think=True)
    assert bits(made.mask()) - SPACES == {IM_START, ord("o")}
    for token in (IM_START, *b"hm", BOS, *b"\nok"):
        assert made.allows(token)
        made.accept(token)
    assert made.finished


def test_without_thoughts_only_the_markup_comes() -> None:
    made = after_reasoning(Only(b"ok"), lead="L:")
    assert bits(made.mask()) == {ord("L")}
    assert accepts(made, "L:ok")
