from typing import Any

import pytest

from server.chat.conversation import template_messages
from server.dialects.chat.parse import parse_chat, read_messages, with_tools
from server.dialects.chat.write import ChatReplyOptions, ChatWriter
from server.errors import InvalidRequest
from server.structured.grammar.compiler import GrammarCompiler
from tests.unit.dialects.builders import HEADER, chunks, finished, make_model, started, text
from tests.unit.dialects.chat.test_chat_reply import ScriptedParser

F = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
HI = {"role": "user", "content": "Hi"}


def chat(**fields: object) -> Any:
    return parse_chat({"messages": [HI], **fields})


def test_functions_are_tools_of_which_one_may_be_called() -> None:
    tools = chat(functions=[F]).conversation.tools
    assert [tool.function for tool in tools.tools] == [F]
    assert (tools.choice, tools.parallel) == ("auto", False)


@pytest.mark.parametrize(
    ("choice", "wanted", "name"),
    [("none", "none", ""), ("auto", "auto", ""), ({"name": "f"}, "required", "f")],
)
def test_function_call_chooses(choice: object, wanted: str, name: str) -> None:
    tools = chat(functions=[F], function_call=choice).conversation.tools
    assert (tools.choice, tools.name) == (wanted, name)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": "x"}, "functions"),
        ({"functions": [5]}, "functions.0"),
        ({"functions": [{}]}, "functions.0.name"),
        ({"functions": [F, F]}, "functions.1.name"),
        ({"functions": [F | {"parameters": 5}]}, "functions.0.parameters"),
        ({"functions": [F], "function_call": "required"}, "function_call"),
        ({"functions": [F], "function_call": {"name": 5}}, "function_call"),
        ({"functions": [F], "function_call": {"name": "g"}}, "function_call.name"),
        ({"function_call": {"name": "g"}}, "function_call"),
        ({"functions": [F], "tools": []}, "tools"),
        ({"functions": [F], "tool_choice": "auto"}, "tool_choice"),
        ({"function_call": "auto", "tools": [{"type": "function", "function": F}]}, "tools"),
    ],
)
def test_what_cannot_be_is_refused_in_the_words_of_the_client(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert caught.value.message.startswith(param.partition(".")[0])


def test_parameters_that_cannot_be_enforced_are_named_too() -> None:
    from server.dialects.chat.parse import old_words

    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    model = make_model(template="{{ messages }}{{ tools }}<tool_call></tool_call>")
    model.grammar = GrammarCompiler(model.vocab)
    with pytest.raises(InvalidRequest, match="uniqueItems") as caught, old_words():
        chat(functions=[F | {"parameters": odd}], function_call={"name": "f"}).generation(model)
    assert caught.value.param == "functions.0.parameters"


def test_calls_and_results_of_the_history_become_those_of_tools() -> None:
    call = {"name": "f", "arguments": '{"a":1}'}
    given = [
        HI,
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "f", "content": "5"},
        {"role": "function", "name": "g", "content": "6"},
    ]
    asked, called, answered, other = template_messages(read_messages(with_tools(given)))
    assert asked == HI
    assert called["tool_calls"] == [{"id": "call00001", "type": "function", "function": call}]
    assert answered == {"role": "tool", "name": "f", "content": "5", "tool_call_id": "call00001"}
    assert other == {"role": "tool", "name": "g", "content": "6"}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "function", "content": "x"}, "messages.0.name"),
        ({"role": "function", "name": "f"}, "messages.0.content"),
        ({"role": "assistant", "function_call": "f"}, "messages.0.function_call"),
        ({"role": "assistant", "function_call": {"arguments": ""}}, "messages.0.function_call.name"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages.0.function_call.arguments"),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": ""}, "tool_calls": [{}]},
            "messages.0.function_call",
        ),
    ],
)
def test_a_wrong_history_is_refused(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_messages(with_tools([message]))
    assert caught.value.param == param


def test_a_reply_has_a_function_call() -> None:
    reply = ChatWriter(HEADER, ScriptedParser, options=ChatReplyOptions(old=True))
    for event in (started(), text("call"), text("args"), finished()):
        reply.add(0, event)
    (choice,) = reply.body()["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "f", "arguments": '{"a":1}'}
    assert "tool_calls" not in choice["message"]


def test_a_stream_has_one_in_pieces() -> None:
    stream = ChatWriter(HEADER, ScriptedParser, include_usage=False, options=ChatReplyOptions(old=True))
    events = (started(), text("Hi"), text("call"), text("args"), finished())
    parsed = chunks([chunk for event in events for chunk in stream.feed(0, event)] + stream.finish())
    assert [chunk["choices"][0]["delta"] for chunk in parsed] == [
        {"role": "assistant", "content": ""},
        {"content": "Hi"},
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": '{"a"'}},
        {"function_call": {"arguments": ":1}"}},
        {},
    ]
    assert parsed[-1]["choices"][0]["finish_reason"] == "function_call"


def test_without_a_call_it_is_a_reply_as_any() -> None:
    reply = ChatWriter(HEADER, ScriptedParser, options=ChatReplyOptions(old=True))
    for event in (started(), text("Hello"), finished()):
        reply.add(0, event)
    (choice,) = reply.body()["choices"]
    assert (choice["finish_reason"], choice["message"]) == ("stop", {"role": "assistant", "content": "Hello"})
