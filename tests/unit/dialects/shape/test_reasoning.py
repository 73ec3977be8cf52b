"""Reasoning before a constrained reply, and its budget."""

from collections.abc import Mapping
from typing import Any

import pytest

from server.dialects.chat.parse import parse_chat
from server.dialects.dialect import Context
from server.dialects.messages.parse import UNSAID_BUDGET, parse_messages
from server.dialects.native.parse import parse_native
from server.engine.request import Request
from server.errors import InvalidRequest
from server.formats.parsing.reasoning import open_reasoning
from server.pool.spec import ChatParams
from server.structured.after_reasoning import AfterReasoning
from server.structured.constraint import Constraint
from server.structured.reasoning_end import ReasoningBudget, ReasoningEnd, ReasoningSwitch
from tests.support.fakes import BOS, EOS, IM_START, FakeVocab
from tests.unit.dialects.builders import make_model
from tests.unit.dialects.chat.test_chat_output import accepts
from tests.unit.structured.builders import BYTES, after_reasoning, allowed, say

SPACES = set(b" \t\r\n")


def test_between_thoughts_and_answer_white_space_is_free_but_not_for_ever() -> None:
    made = after_reasoning(BYTES.choice(["ok"]), begun=True)
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

    made = after_reasoning(BYTES.choice(["ok"]), Joined(), begun=True)
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


def may_think(answer: str = "ok", *, opening: str = "<t>", lead: str = "", again: str = "") -> AfterReasoning:
    return after_reasoning(BYTES.choice([answer]), tags=(opening, "</t>"), lead=lead, again=again, may_think=True)


MARKUP = {"lead": "L:", "again": "again "}
WRONG = ("no", "<u>", "<t>hm</t>no", "\nno", "<\nt>", "o\nk", "<t>a</t><t>b</t>ok", "\n" * 17)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        *(({}, text) for text in WRONG),
        ({"answer": "<t>no"}, "<t>no"),  # what begins as reasoning is no reply
        *((MARKUP, text) for text in ("ok", "<t>hm</t>ok", "<t>hm</t>L:ok", "again L:ok", "L: ok")),
    ],
)
def test_reasoning_or_the_reply_comes_and_nothing_else(fields: dict[str, str], text: str) -> None:
    assert not accepts(may_think(**fields), text)


def test_white_space_leaves_both_ways_open() -> None:
    made = may_think()
    made.accept(ord("\n"))
    assert bits(made.mask()) - SPACES == {ord("<"), ord("o")}
    assert accepts(made.fork(), "ok")
    assert accepts(made, "<t>hm</t>ok")
    assert accepts(may_think("<t>no"), "<t>hm</t><t>no")
    of_spaces = may_think("\nok")
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
    made = after_reasoning(BYTES.choice(["ok"]), begun=True)
    copy = made.fork()
    for token in b"h</t>":
        made.accept(token)
    assert accepts(copy, "hm</t>ok")
    assert accepts(made, "ok")


def test_no_end_token_comes_before_the_reply() -> None:
    assert not may_think().allows(EOS)


def test_tags_that_are_control_tokens_are_matched_by_their_ids() -> None:
    made = after_reasoning(BYTES.choice(["ok"]), tags=("<|im_start|>", "<s>"), may_think=True)
    assert bits(made.mask()) - SPACES == {IM_START, ord("o")}
    for token in (IM_START, *b"hm", BOS, *b"\nok"):
        assert made.allows(token)
        made.accept(token)
    assert made.finished


def test_without_thoughts_only_the_markup_comes() -> None:
    made = after_reasoning(BYTES.choice(["ok"]), lead="L:")
    assert bits(made.mask()) == {ord("L")}
    assert accepts(made, "L:ok")


TAGS = ("<think>", "</think>")
VOCAB = FakeVocab()


def control(inner: Constraint | None = None, *, begun: bool = True) -> tuple[ReasoningEnd, ReasoningSwitch]:
    switch = ReasoningSwitch()
    opening, *closings = TAGS
    opened, reopens = "" if begun else None, inner is None
    ended = ReasoningBudget().ended(inner, VOCAB, opening, closings, begun=opened, reopens=reopens, switch=switch)
    return ended, switch


def budget(
    n: int, message: str = "", *, prompt: str = "", inner: Constraint | None = None, others: tuple[str, ...] = ()
) -> ReasoningEnd:
    begun, closings = open_reasoning(prompt, TAGS), (TAGS[1], *others)
    return ReasoningBudget(n, message).ended(inner, VOCAB, TAGS[0], closings, begun=begun, reopens=inner is None)


def behind(text: str) -> AfterReasoning:
    """That text, behind thoughts that the prompt has opened."""
    return after_reasoning(BYTES.choice([text]), tags=TAGS, begun=True)


def test_choices_share_the_switch_and_nothing_else() -> None:
    constraint, switch = control()
    fork = constraint.fork()
    say(constraint, "a</think>b")
    say(fork, "x")
    switch.end()
    assert say(constraint, "c") == b"c"
    assert say(fork, "y") == b"</think>y"


@pytest.mark.parametrize(
    ("n", "prompt", "wanted", "said"),
    [
        (3, "assistant\n<think>", "abcdef", "abc</think>def"),
        (3, "assistant\n<think>\n", "abcdef", "ab</think>cdef"),  # the prompt's new line counts
        (3, "", "<think>abcdef", "<think>abc</think>def"),
        (20, "", " <think>ab</think>cdef", " <think>ab</think>cdef"),
        (0, "<think>", "abc", "</think>abc"),
        (0, "<think>a</think>", "abc", "abc"),
        (0, "", "<think>abc", "<think></think>abc"),
        (1, "<think>so far", "abc", "</think>abc"),  # thoughts that are continued are spent already
        (-1, "<think>", "abc", "abc"),
    ],
)
def test_thoughts_end_when_their_tokens_are_spent(n: int, prompt: str, wanted: str, said: str) -> None:
    assert say(budget(n, prompt=prompt), wanted) == said.encode()


def test_a_budget_does_not_cut_a_character() -> None:
    assert say(budget(2, prompt="<think>"), "日本") == "日</think>本".encode()
    assert say(budget(4, ".", prompt="<think>"), "日é!") == "日é.</think>!".encode()


def test_thoughts_that_are_opened_anew_have_a_budget_of_their_own() -> None:
    assert say(budget(2), "<think>ab") == b"<think>ab"
    constraint = budget(2)
    assert say(constraint, "<think>abc") == b"<think>ab</think>c"
    assert say(constraint, "d<think>efgh") == b"d<think>ef</think>gh"


def test_in_an_answer_of_a_shape_nothing_is_opened_anew() -> None:
    inner = behind('"<think>abc"')
    constraint = budget(2, prompt="<think>", inner=inner)
    assert say(constraint, 'ab"<think>abc"') == b'ab</think>"<think>abc"'
    assert constraint.finished


@pytest.mark.parametrize("message", ["a</think>b", "<think>", "<tool>"])
def test_a_message_that_ends_thoughts_itself_is_refused(message: str) -> None:
    with pytest.raises(InvalidRequest, match="reasoning_budget_message") as caught:
        budget(1, message, others=("<tool>",))
    assert caught.value.param == "reasoning_budget_message"


THINKS = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt and enable_thinking %}<think>{% endif %}{# </think> #}"
)
HI = [{"role": "user", "content": "Hi"}]


def test_a_request_that_says_nothing_gets_what_the_model_has() -> None:
    chat = ChatParams(reasoning_budget=4, reasoning_budget_message="m")
    assert chat.allowance(None, None) == chat.allowance(-1, None) == ReasoningBudget(4, "m")
    assert chat.allowance(0, "") == ReasoningBudget(0, "")


def said(constraint: Constraint | None, wanted: str) -> str:
    """What comes out where a model wants to say that."""
    assert constraint is not None
    return say(constraint, wanted).decode()


def chat_request(params: ChatParams | None = None, **fields: object) -> Request:
    model = make_model(template=THINKS, chat=params)
    (request,) = parse_chat({"messages": HI, **fields}).generation(Context(model)).requests
    return request


def test_without_thoughts_in_the_prompt_those_that_come_all_the_same_end_at_once() -> None:
    assert said(chat_request(thinking_budget=0).constraint, "<think>abc") == "<think></think>abc"
    assert said(chat_request(thinking_budget=0).constraint, "Hello") == "Hello"


def test_what_ends_reasoning_may_be_a_control_token_that_reasoning_before_a_schema_has_not() -> None:
    from server.structured.grammar.compiler import GrammarCompiler

    model = make_model(template=THINKS, chat=ChatParams(reasoning_budget=2, reasoning_budget_message="<s>"))
    model.grammar = GrammarCompiler(model.vocab)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    (request,) = parse_chat({"messages": HI, "response_format": wanted}).generation(Context(model)).requests
    assert said(request.constraint, 'ab{"a": 1}') == 'ab<s></think>{"a": 1}'


def test_a_message_of_anthropics_has_a_budget() -> None:
    def budget(thinking: object) -> int | None:
        given = {"messages": HI, "max_tokens": 9, "thinking": thinking}
        return parse_messages(given).conversation.thinking.budget

    assert budget({"type": "enabled", "budget_tokens": 5}) == 5
    assert budget({"type": "enabled"}) == UNSAID_BUDGET
    assert budget({"type": "adaptive"}) is None


NATIVE = {"prompt": "p", "reasoning_budget_tokens": 2}
BUDGET_TAGS = {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tag": "</t>"}


def native(body: Mapping[str, object]) -> Constraint | None:
    (request,) = parse_native({**NATIVE, **body}).generation(Context(make_model())).requests
    return request.constraint


def test_a_native_completion_has_a_budget_where_it_names_the_tags() -> None:
    assert said(native(BUDGET_TAGS), "<t>abcd") == "<t>ab</t>cd"
    assert (
        said(native(BUDGET_TAGS | {"generation_prompt": "<t>a", "reasoning_budget_message": "m"}), "bcd") == "bm</t>cd"
    )
    several = {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tags": ["", "</u>", "</t>"]}
    assert said(native(several), "<t>abcd") == "<t>ab</u>cd"
    assert said(native(several | {"reasoning_budget_tokens": 9}), "<t>a</t>bcd") == "<t>a</t>bcd"
    assert native(BUDGET_TAGS | {"reasoning_budget_tokens": -1}) is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "reasoning_budget_tokens"),
        ({"reasoning_budget_start_tag": "<t>"}, "reasoning_budget_tokens"),
        (BUDGET_TAGS | {"reasoning_control": True}, "reasoning_control"),
        (BUDGET_TAGS | {"reasoning_budget_end_tags": "x"}, "reasoning_budget_end_tags"),
        (BUDGET_TAGS | {"reasoning_budget_end_tags": ["x"] * 65}, "reasoning_budget_end_tags"),
        (BUDGET_TAGS | {"json_schema": {}}, "reasoning_budget_tokens"),
    ],
)
def test_a_native_budget_that_cannot_be_kept_is_refused(body: dict[str, object], param: str) -> None:
    from server.structured.grammar.compiler import GrammarCompiler

    model = make_model()
    model.grammar = GrammarCompiler(model.vocab)
    with pytest.raises(InvalidRequest) as caught:
        parse_native({**NATIVE, **body}).generation(Context(model))
    assert caught.value.param == param
