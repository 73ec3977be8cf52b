"""Reasoning before a constrained answer, and reasoning budgets.

`generated` returns what is generated if the model samples a given text: with the tokens that a budget forces.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from server.dialects.chat.parse import parse_chat
from server.dialects.dialect import Context
from server.dialects.messages.parse import DEFAULT_THINKING_BUDGET, parse_messages
from server.dialects.native.parse import parse_native
from server.engine.request import Request
from server.errors import InvalidRequest
from server.formats.parsing.reasoning import open_reasoning
from server.pool.spec import ChatParams
from server.structured.after_reasoning import AfterReasoning
from server.structured.constraint import Constraint
from server.structured.reasoning_end import ReasoningBudget, ReasoningEnd, ReasoningSwitch
from tests.support.fakes import BOS, EOS, IM_START, FakeVocab
from tests.unit.dialects.builders import PieceVocab, accepts, make_model
from tests.unit.structured.builders import BYTES, after_reasoning, allowed, say

SPACES = set(b" \t\r\n")


def test_16_white_space_characters_are_allowed_between_reasoning_and_answer() -> None:
    constraint = after_reasoning(BYTES.choice(["ok"]), begun=True)
    for token in b"x</t>" + b"\n" * 16:
        assert constraint.allows(token)
        constraint.accept(token)
    assert not constraint.allows(ord("\n"))
    assert bits(constraint.mask()) == {ord("o")}
    assert accepts(constraint, "ok")


def test_a_token_that_closes_reasoning_must_not_contain_more_text() -> None:
    constraint = after_reasoning(BYTES.choice(["ok"]), PieceVocab({1: b"</t>o", 2: b">o"}), begun=True)
    assert not constraint.allows(1)
    assert 1 not in bits(constraint.mask())
    assert 2 in bits(constraint.mask())
    for token in b"a</t":
        constraint.accept(token)
    assert not constraint.allows(2)
    assert 2 not in bits(constraint.mask())
    assert ord(">") in bits(constraint.mask())


def bits(mask: Any) -> set[int]:
    return allowed(mask, FakeVocab.n_tokens)


def generated(constraint: Constraint | None, sampled: str) -> str:
    """Return the text that is generated if the model samples the bytes of `sampled`."""
    assert constraint is not None
    return say(constraint, sampled).decode()


def optional_reasoning(answer: str = "ok", *, opening: str = "<t>", lead: str = "", again: str = "") -> AfterReasoning:
    """Return a constraint that allows reasoning or `answer`; after reasoning, `again` and `lead` precede the answer."""
    return after_reasoning(BYTES.choice([answer]), tags=(opening, "</t>"), lead=lead, again=again, may_think=True)


MARKUP = {"lead": "L:", "again": "again "}
INVALID = ("no", "<u>", "<t>hm</t>no", "\nno", "<\nt>", "o\nk", "<t>a</t><t>b</t>ok", "\n" * 17)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        *(({}, text) for text in INVALID),
        ({"answer": "<t>no"}, "<t>no"),  # text that starts as reasoning is no answer
        *((MARKUP, text) for text in ("ok", "<t>hm</t>ok", "<t>hm</t>L:ok", "again L:ok", "L: ok")),
    ],
)
def test_only_reasoning_or_the_answer_may_start(fields: dict[str, str], text: str) -> None:
    assert not accepts(optional_reasoning(**fields), text)


def test_after_white_space_reasoning_or_the_answer_may_start() -> None:
    constraint = optional_reasoning()
    constraint.accept(ord("\n"))
    assert bits(constraint.mask()) - SPACES == {ord("<"), ord("o")}
    assert accepts(constraint.fork(), "ok")
    assert accepts(constraint, "<t>hm</t>ok")
    assert accepts(optional_reasoning("<t>no"), "<t>hm</t><t>no")
    leading_space = optional_reasoning("\nok")
    for text in ("\nok", "\n\nok"[1:], "\n<t>hm</t>\nok"):
        assert accepts(leading_space.fork(), text)
    constraint = optional_reasoning(opening=" to=self", lead=" to=user:")
    assert not constraint.allows(ord("\n"))


def test_the_first_mask_allows_reasoning_and_the_answer() -> None:
    constraint = optional_reasoning()
    assert bits(constraint.mask()) - SPACES == {ord("<"), ord("o")}
    constraint.accept(ord("<"))
    assert bits(constraint.mask()) == {ord("t")}
    constraint = optional_reasoning(opening=" to=self", lead=" to=user:")
    assert bits(constraint.mask()) == {ord(" ")}
    for token in b" to=":
        constraint.accept(token)
    assert bits(constraint.mask()) == {ord("s"), ord("u")}
    constraint.accept(ord("u"))
    assert bits(constraint.mask()) == {ord("s")}


def test_forks_are_independent() -> None:
    constraint = after_reasoning(BYTES.choice(["ok"]), begun=True)
    copy = constraint.fork()
    for token in b"h</t>":
        constraint.accept(token)
    assert accepts(copy, "hm</t>ok")
    assert accepts(constraint, "ok")


def test_the_end_token_is_forbidden_before_the_answer() -> None:
    assert not optional_reasoning().allows(EOS)


def test_tags_that_are_control_tokens_are_matched_by_id() -> None:
    constraint = after_reasoning(BYTES.choice(["ok"]), tags=("<|im_start|>", "<s>"), may_think=True)
    assert bits(constraint.mask()) - SPACES == {IM_START, ord("o")}
    for token in (IM_START, *b"hm", BOS, *b"\nok"):
        assert constraint.allows(token)
        constraint.accept(token)
    assert constraint.finished


def test_reply_without_reasoning_must_begin_with_the_lead() -> None:
    constraint = after_reasoning(BYTES.choice(["ok"]), lead="L:")
    assert bits(constraint.mask()) == {ord("L")}
    assert accepts(constraint, "L:ok")


TAGS = ("<think>", "</think>")
VOCAB = FakeVocab()


def budget(
    n: int, message: str = "", *, prompt: str = "", inner: Constraint | None = None, others: tuple[str, ...] = ()
) -> ReasoningEnd:
    begun, closings = open_reasoning(prompt, TAGS), (TAGS[1], *others)
    return ReasoningBudget(n, message).ended(inner, VOCAB, TAGS[0], closings, begun=begun, reopens=inner is None)


def test_choices_share_only_the_switch_that_ends_reasoning() -> None:
    switch = ReasoningSwitch()
    constraint = ReasoningBudget().ended(None, VOCAB, TAGS[0], TAGS[1:], begun="", reopens=True, switch=switch)
    fork = constraint.fork()
    generated(constraint, "a</think>b")
    generated(fork, "x")
    switch.end()
    assert generated(constraint, "c") == "c"
    assert generated(fork, "y") == "</think>y"


@pytest.mark.parametrize(
    ("n", "prompt", "sampled", "expected"),
    [
        (3, "assistant\n<think>", "abcdef", "abc</think>def"),
        (3, "assistant\n<think>\n", "abcdef", "ab</think>cdef"),  # the newline in the prompt counts
        (3, "", "<think>abcdef", "<think>abc</think>def"),
        (20, "", " <think>ab</think>cdef", " <think>ab</think>cdef"),
        (0, "<think>", "abc", "</think>abc"),
        (0, "<think>a</think>", "abc", "abc"),
        (0, "", "<think>abc", "<think></think>abc"),
        (1, "<think>so far", "abc", "</think>abc"),  # continued reasoning has used the budget
        (-1, "<think>", "abc", "abc"),
    ],
)
def test_reasoning_ends_at_its_budget(n: int, prompt: str, sampled: str, expected: str) -> None:
    assert generated(budget(n, prompt=prompt), sampled) == expected


def test_a_budget_does_not_split_a_character() -> None:
    assert generated(budget(2, prompt="<think>"), "日本") == "日</think>本"
    assert generated(budget(4, ".", prompt="<think>"), "日é!") == "日é.</think>!"


def test_reasoning_that_is_opened_again_has_a_new_budget() -> None:
    assert generated(budget(2), "<think>ab") == "<think>ab"
    constraint = budget(2)
    assert generated(constraint, "<think>abc") == "<think>ab</think>c"
    assert generated(constraint, "d<think>efgh") == "d<think>ef</think>gh"


def test_tags_inside_a_constrained_answer_do_not_open_reasoning() -> None:
    answer = after_reasoning(BYTES.choice(['"<think>abc"']), tags=TAGS, begun=True)
    constraint = budget(2, prompt="<think>", inner=answer)
    assert generated(constraint, 'ab"<think>abc"') == 'ab</think>"<think>abc"'
    assert constraint.finished


@pytest.mark.parametrize("message", ["a</think>b", "<think>", "<tool>"])
def test_a_budget_message_that_contains_a_tag_is_rejected(message: str) -> None:
    with pytest.raises(InvalidRequest, match="reasoning_budget_message") as caught:
        budget(1, message, others=("<tool>",))
    assert caught.value.param == "reasoning_budget_message"


TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt and enable_thinking %}<think>{% endif %}{# </think> #}"
)
HI = [{"role": "user", "content": "Hi"}]


def test_requests_without_a_budget_get_the_models() -> None:
    params = ChatParams(reasoning_budget=4, reasoning_budget_message="m")
    assert params.allowance(None, None) == params.allowance(-1, None) == ReasoningBudget(4, "m")
    assert params.allowance(0, "") == ReasoningBudget(0, "")


def chat_request(params: ChatParams | None = None, *, compiles: bool = False, **fields: object) -> Request:
    model = make_model(template=TEMPLATE, chat=params, compiles=compiles)
    (request,) = parse_chat({"messages": HI, **fields}).generation(Context(model)).requests
    return request


def test_reasoning_ends_immediately_with_a_budget_of_0() -> None:
    assert generated(chat_request(thinking_budget=0).constraint, "<think>abc") == "<think></think>abc"
    assert generated(chat_request(thinking_budget=0).constraint, "Hello") == "Hello"


def test_a_budget_message_may_have_control_tokens_that_reasoning_itself_may_not() -> None:
    params = ChatParams(reasoning_budget=2, reasoning_budget_message="<s>")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    response_format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    request = chat_request(params, compiles=True, response_format=response_format)
    assert generated(request.constraint, 'ab{"a": 1}') == 'ab<s></think>{"a": 1}'


def test_anthropics_thinking_sets_the_budget() -> None:
    def parsed(thinking: object) -> int | None:
        body = {"messages": HI, "max_tokens": 9, "thinking": thinking}
        return parse_messages(body).conversation.reasoning.budget

    assert parsed({"type": "enabled", "budget_tokens": 5}) == 5
    assert parsed({"type": "enabled"}) == DEFAULT_THINKING_BUDGET
    assert parsed({"type": "adaptive"}) is None


NATIVE_BODY = {"prompt": "p", "reasoning_budget_tokens": 2}
BUDGET_TAGS = {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tag": "</t>"}


def native(body: Mapping[str, object]) -> Constraint | None:
    (request,) = parse_native({**NATIVE_BODY, **body}).generation(Context(make_model())).requests
    return request.constraint


def test_a_native_completion_has_a_budget_if_it_names_the_tags() -> None:
    assert generated(native(BUDGET_TAGS), "<t>abcd") == "<t>ab</t>cd"
    continued = BUDGET_TAGS | {"generation_prompt": "<t>a", "reasoning_budget_message": "m"}
    assert generated(native(continued), "bcd") == "bm</t>cd"
    several = {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tags": ["", "</u>", "</t>"]}
    assert generated(native(several), "<t>abcd") == "<t>ab</u>cd"
    assert generated(native(several | {"reasoning_budget_tokens": 9}), "<t>a</t>bcd") == "<t>a</t>bcd"
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
def test_a_native_budget_that_can_not_be_enforced_is_rejected(body: dict[str, object], param: str) -> None:
    model = make_model(compiles=True)
    with pytest.raises(InvalidRequest) as caught:
        parse_native({**NATIVE_BODY, **body}).generation(Context(model))
    assert caught.value.param == param
