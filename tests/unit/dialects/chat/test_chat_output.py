"""With the real grammar compiler over a byte vocabulary."""

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
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.lazy import preserved
from tests.support.fakes import EOS, FakeVocab
from tests.unit.dialects.builders import answer_of, make_model, tools_of
from tests.unit.structured.builders import takes

HERMES = "{{ messages }}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}<tool_call></tool_call>"
GEMMA = "{{ messages }}<|tool_call>call:"
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
SCHEMA = {"type": "object", "properties": {"b": {"const": 1}}, "required": ["b"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 5}}\n</tool_call>'


def constraint(
    *, tools: Tools | None = None, opened: str = "", template: str = HERMES, **fields: Any
) -> Constraint | None:
    model: Any = make_model(template=template)
    model.grammar = GrammarCompiler(model.vocab)
    return answer_of(model, opened, tools=tools, thinks=False, **fields)


def accepts(made: Constraint | None, text: str) -> bool:
    """Whether the whole of `text` may come, and then an end."""
    assert made is not None
    return takes(made, text.encode()) and (made.finished or made.allows(EOS))


def shown_to(tools: Tools, model: Any) -> frozenset[int]:
    chat_format = model.template.chat_format(tools=bool(tools.tools))
    return preserved(chat_format.tags(calls=tools.callable), model.vocab)


def choosing(choice: object) -> Tools:
    return tools_of([TOOL], choice, None)


def test_calls_in_thoughts_are_thoughts() -> None:
    for opened, text in (("", "<think>"), ("assistant\n<think>\n", "")):
        made = constraint(tools=choosing("auto"), opened=opened, template=HERMES + "<think></think>")
        assert accepts(made, f"{text}A <tool_call> is what I need.</think>\n\n{CALL}")
        made = constraint(tools=choosing("auto"), opened=opened, template=HERMES + "<think></think>")
        assert not accepts(made, f"{text}A <tool_call> is what I need.</think>\n\n<tool_call>no")


def test_a_schema_that_cannot_be_kept_leaves_the_name_unless_the_function_is_strict() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    for strict in (False, True):
        function = {"name": "f", "parameters": odd, "strict": strict}
        tools = tools_of([{"type": "function", "function": function}], "auto", None)
        if not strict:
            assert accepts(constraint(tools=tools), CALL)
            assert not accepts(constraint(tools=tools), CALL.replace('"f"', '"g"'))
            continue
        with pytest.raises(InvalidRequest, match="uniqueItems") as caught:
            constraint(tools=tools)
        assert caught.value.param == "tools.0.function.parameters"


def test_a_token_that_ends_a_marker_may_go_on_as_the_call_does() -> None:
    class Joined(FakeVocab):
        def piece(self, token: int, *, special: bool = True) -> bytes:
            return {1: b'>\n{"na', 2: b">Hm"}.get(token) or super().piece(token, special=special)

    model: Any = make_model(template=HERMES)
    model.vocab = Joined()
    model.grammar = GrammarCompiler(model.vocab)
    made = answer_of(model, tools=choosing("auto"))
    assert made is not None
    assert made.allows(2)
    for token in b"x <tool_call":
        made.accept(token)
    assert made.allows(1)
    assert not made.allows(2)
    mask = made.mask()
    assert mask[0] & 2
    assert not mask[0] & 4
    copy = made.fork()
    made.accept(1)
    assert accepts(made, CALL.partition('"na')[2])
    assert accepts(copy, " in prose")


def test_parameters_that_cannot_be_kept_are_named_whatever_holds_beside_them() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": odd}}]
    cases: list[tuple[str, dict[str, Any]]] = [("required", {}), ("auto", {"response_format": FORMAT})]
    for choice, fields in cases:
        for template in (HERMES, GEMMA):
            with pytest.raises(InvalidRequest, match="uniqueItems") as caught:
                constraint(tools=tools_of(tools, choice, None), template=template, **fields)
            assert caught.value.param == "tools.0.function.parameters"


@pytest.mark.parametrize("wanted", [True, False])
def test_the_configured_template_arguments_say_whether_to_think(wanted: bool) -> None:
    model: Any = make_model(template="{{ messages }}<think></think>")
    model.spec = replace(model.spec, chat=ChatParams(template_kwargs={"enable_thinking": wanted}))
    conversation = Conversation((Message("user", "hi"),))
    assert render(conversation, model).thinks is wanted


def test_tags_of_a_format_that_frames_content_are_shown_without_tools_too() -> None:
    class Tagged(FakeVocab):
        def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
            known = {"<|start|>": 1, "<|end|>": 2, "<|message|>": 3, "<|channel|>": 4, "<|constrain|>": 5}
            return [known[text]] if text in known else [8, 9]

    model: Any = make_model(template="{{ messages }}<|channel|>analysis<|message|>")
    model.vocab = Tagged()
    assert shown_to(Tools(), model) == {1, 2, 3, 4, 5}


def test_ids_that_calls_of_the_conversation_have_are_not_given_again() -> None:
    call = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    model: Any = make_model(template="{{ messages }}{{ tools }}<|tool_calls_section_begin|><|tool_call_begin|>")
    model.grammar = GrammarCompiler(model.vocab)
    said = (Message("user", "u"), Message("assistant", calls=(Call("f", "{}", "functions.f:0"),)), Message("tool", "r"))
    for messages, own in ((said[:1], True), (said, False)):
        made = prepare(Conversation(messages, tools_of([TOOL])), model, {})[0].parser()
        (begun, *_) = [*made.feed(call), *made.finish()]
        assert isinstance(begun, ToolCallBegin)
        assert (begun.id == "functions.f:0") is own
