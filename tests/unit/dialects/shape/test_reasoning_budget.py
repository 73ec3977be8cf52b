from collections.abc import Mapping

import pytest

from server.dialects.chat.parse import parse_chat
from server.dialects.dialect import Context
from server.dialects.generation import UNSAID_BUDGET
from server.dialects.messages.parse import parse_messages
from server.dialects.native.parse import parse_native
from server.engine.request import Request
from server.errors import InvalidRequest
from server.pool.spec import ChatParams
from server.structured.constraint import Constraint
from server.structured.reasoning_end import ReasoningBudget
from tests.unit.dialects.builders import make_model
from tests.unit.structured.builders import say

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
TAGS = {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tag": "</t>"}


def native(body: Mapping[str, object]) -> Constraint | None:
    (request,) = parse_native({**NATIVE, **body}).generation(Context(make_model())).requests
    return request.constraint


def test_a_native_completion_has_a_budget_where_it_names_the_tags() -> None:
    assert said(native(TAGS), "<t>abcd") == "<t>ab</t>cd"
    assert said(native(TAGS | {"generation_prompt": "<t>a", "reasoning_budget_message": "m"}), "bcd") == "bm</t>cd"
    several = {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tags": ["", "</u>", "</t>"]}
    assert said(native(several), "<t>abcd") == "<t>ab</u>cd"
    assert said(native(several | {"reasoning_budget_tokens": 9}), "<t>a</t>bcd") == "<t>a</t>bcd"
    assert native(TAGS | {"reasoning_budget_tokens": -1}) is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "reasoning_budget_tokens"),
        ({"reasoning_budget_start_tag": "<t>"}, "reasoning_budget_tokens"),
        (TAGS | {"reasoning_control": True}, "reasoning_control"),
        (TAGS | {"reasoning_budget_end_tags": "x"}, "reasoning_budget_end_tags"),
        (TAGS | {"json_schema": {}}, "reasoning_budget_tokens"),
    ],
)
def test_a_native_budget_that_cannot_be_kept_is_refused(body: dict[str, object], param: str) -> None:
    from server.structured.grammar.compiler import GrammarCompiler

    model = make_model()
    model.grammar = GrammarCompiler(model.vocab)
    with pytest.raises(InvalidRequest) as caught:
        parse_native({**NATIVE, **body}).generation(Context(model))
    assert caught.value.param == param
