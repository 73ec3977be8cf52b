"""The output of a chat with tools: its constraint over a byte vocabulary, its visible tokens and its parser."""

from dataclasses import replace
from typing import Any

import pytest

from server.chat.conversation import Call, Conversation, Message, Tools
from server.chat.prepare import prepare
from server.chat.prompt import render
from server.errors import InvalidRequest
from server.formats.parsing.pieces import ToolCallBegin
from server.pool.spec import ChatParams
from server.structured.constraint import Constraint
from server.structured.lazy import preserved
from tests.unit.dialects.builders import (
    RESPONSE_FORMAT,
    TOOL,
    PieceVocab,
    accepts,
    constraint_for,
    make_model,
    parse_tools,
)

HERMES = "{{ messages }}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}<tool_call></tool_call>"
GEMMA = "{{ messages }}<|tool_call>call:"
AUTO = parse_tools([TOOL], "auto")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 5}}\n</tool_call>'
UNENFORCEABLE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


def constraint_of(*, tools: Tools, prompt: str = "", template: str = HERMES, **fields: Any) -> Constraint | None:
    model = make_model(template=template, compiles=True)
    return constraint_for(model, prompt, tools=tools, may_reason=False, **fields)


def test_tool_call_tags_inside_reasoning_do_not_start_a_call() -> None:
    for prompt, text in (("", "<think>"), ("assistant\n<think>\n", "")):
        constraint = constraint_of(tools=AUTO, prompt=prompt, template=HERMES + "<think></think>")
        assert accepts(constraint, f"{text}A <tool_call> is what I need.</think>\n\n{CALL}")
        constraint = constraint_of(tools=AUTO, prompt=prompt, template=HERMES + "<think></think>")
        assert not accepts(constraint, f"{text}A <tool_call> is what I need.</think>\n\n<tool_call>no")


def test_unenforceable_parameters_are_free_unless_the_function_is_strict() -> None:
    function: dict[str, Any] = {"name": "f", "parameters": UNENFORCEABLE}
    tools = parse_tools([{"type": "function", "function": function}], "auto")
    assert accepts(constraint_of(tools=tools), CALL)
    assert not accepts(constraint_of(tools=tools), CALL.replace('"f"', '"g"'))
    strict = parse_tools([{"type": "function", "function": {**function, "strict": True}}], "auto")
    with pytest.raises(InvalidRequest, match="uniqueItems") as caught:
        constraint_of(tools=strict)
    assert caught.value.param == "tools.0.function.parameters"


def test_a_token_that_ends_a_tag_may_contain_the_start_of_the_call() -> None:
    model = make_model(template=HERMES, vocab=PieceVocab({1: b'>\n{"na', 2: b">Hm"}), compiles=True)
    constraint = constraint_for(model, tools=AUTO)
    assert constraint is not None
    assert constraint.allows(2)
    for token in b"x <tool_call":
        constraint.accept(token)
    assert constraint.allows(1)
    assert not constraint.allows(2)
    mask = constraint.mask()
    assert mask[0] & 2
    assert not mask[0] & 4
    copy = constraint.fork()
    constraint.accept(1)
    assert accepts(constraint, CALL.partition('"na')[2])
    assert accepts(copy, " in prose")


@pytest.mark.parametrize("template", [HERMES, GEMMA])
@pytest.mark.parametrize(("choice", "fields"), [("required", {}), ("auto", {"response_format": RESPONSE_FORMAT})])
def test_unenforceable_parameters_are_an_error_if_the_whole_output_is_constrained(
    template: str, choice: str, fields: dict[str, Any]
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": UNENFORCEABLE}}]
    with pytest.raises(InvalidRequest, match="uniqueItems") as caught:
        constraint_of(tools=parse_tools(tools, choice), template=template, **fields)
    assert caught.value.param == "tools.0.function.parameters"


@pytest.mark.parametrize("enabled", [True, False])
def test_configured_template_arguments_enable_or_disable_reasoning(enabled: bool) -> None:
    model: Any = make_model(template="{{ messages }}<think></think>")
    model.spec = replace(model.spec, chat=ChatParams(template_kwargs={"enable_thinking": enabled}))
    conversation = Conversation((Message("user", "hi"),))
    assert render(conversation, model).may_reason is enabled


def test_tags_of_a_format_that_frames_content_are_visible_without_tools() -> None:
    control = {"<|start|>": 1, "<|end|>": 2, "<|message|>": 3, "<|channel|>": 4, "<|constrain|>": 5}
    model = make_model(template="{{ messages }}<|channel|>analysis<|message|>", vocab=PieceVocab({}, control))
    chat_format = model.template.chat_format(tools=False)
    assert preserved(chat_format.tags(calls=False), model.vocab) == {1, 2, 3, 4, 5}


def test_call_ids_of_the_conversation_are_not_used_again() -> None:
    call = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    template = "{{ messages }}{{ tools }}<|tool_calls_section_begin|><|tool_call_begin|>"
    model = make_model(template=template, compiles=True)
    user, result = Message("user", "u"), Message("tool", "r")
    called = Message("assistant", calls=(Call("f", "{}", "functions.f:0"),))
    for messages, is_free in (((user,), True), ((user, called, result), False)):
        parser = prepare(Conversation(messages, parse_tools([TOOL])), model, {})[0].parser()
        (first, *_) = [*parser.feed(call), *parser.finish()]
        assert isinstance(first, ToolCallBegin)
        assert (first.id == "functions.f:0") is is_free
