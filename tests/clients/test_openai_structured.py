"""Structured output and tools with the official client. The weights are random: only the constraint makes sense of
what they say."""

import json
from typing import Any, Literal

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "set_light",
            "description": "switch a light",
            "parameters": {
                "type": "object",
                "properties": {"room": {"enum": ["kitchen", "attic"]}, "on": {"type": "boolean"}},
                "required": ["room", "on"],
                "additionalProperties": False,
            },
        },
    }
]


class Answer(BaseModel):
    """What the reply must be."""

    colour: Literal["red", "green"]
    count: int = Field(ge=10, le=99)
    sure: bool


def test_parse_gives_an_object_of_the_wanted_type(client: OpenAI) -> None:
    reply = client.chat.completions.parse(model="tiny", messages=HELLO, response_format=Answer, max_tokens=400)
    assert isinstance(reply.choices[0].message.parsed, Answer)
    assert reply.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_json_schema_shapes_the_output(client: OpenAI, stream: bool) -> None:
    schema = {"type": "array", "items": {"enum": [1, "two", None]}, "minItems": 2, "maxItems": 3}
    options: dict[str, Any] = {
        "model": "tiny",
        "messages": HELLO,
        "max_tokens": 200,
        "temperature": 1.0,
        "seed": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "list", "schema": schema, "strict": True}},
    }
    if stream:
        chunks = client.chat.completions.create(**options, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
        text = client.chat.completions.create(**options).choices[0].message.content
    values = json.loads(text)
    assert 2 <= len(values) <= 3
    assert all(value in (1, "two", None) for value in values)


def test_json_object_begins_an_object(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=40, response_format={"type": "json_object"}
    )
    assert (reply.choices[0].message.content or "").lstrip().startswith("{")


def test_a_required_tool_is_called_with_valid_arguments(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny", messages=HELLO, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=1000
    )
    message = reply.choices[0].message
    assert reply.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls
    call = message.tool_calls[0]
    assert call.type == "function"
    assert call.function.name == "set_light"
    assert set(json.loads(call.function.arguments)) == {"room", "on"}
    assert call.id


def test_tool_calls_are_streamed_in_pieces(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny",
        messages=HELLO,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,  # random weights may go on calling
        max_tokens=1000,
        seed=2,
    ) as stream:
        kinds = [event.type for event in stream]
        completion = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    calls = completion.choices[0].message.tool_calls
    assert calls
    assert calls[0].function.name == "set_light"
    assert set(json.loads(calls[0].function.arguments)) == {"room", "on"}
    assert completion.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_a_function_of_2023_is_called_and_answered(client: OpenAI, stream: bool) -> None:
    function = TOOLS[0]["function"]
    asked: Any = {"model": "tiny", "messages": HELLO, "functions": [function], "max_tokens": 400, "stream": stream}
    reply: Any = client.chat.completions.create(**asked, function_call={"name": "set_light"})
    if stream:
        chunks = [chunk.choices[0] for chunk in reply]
        pieces = [chunk.delta.function_call for chunk in chunks if chunk.delta.function_call]
        name, arguments = pieces[0].name, "".join(piece.arguments for piece in pieces)
        reason = chunks[-1].finish_reason
    else:
        called = reply.choices[0].message.function_call
        name, arguments, reason = called.name, called.arguments, reply.choices[0].finish_reason
    assert (name, reason) == ("set_light", "function_call")
    assert set(json.loads(arguments)) == {"room", "on"}
    call: Any = {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": arguments}}
    messages = [*HELLO, call, {"role": "function", "name": name, "content": "done"}]
    again = client.chat.completions.create(model="tiny", messages=messages, max_tokens=5)
    assert again.choices[0].message.role == "assistant"


def test_a_tool_result_can_be_sent_back(client: OpenAI) -> None:
    messages: list[Any] = [
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "set_light", "arguments": '{"room": "attic"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    reply = client.chat.completions.create(
        model="tiny", messages=messages, tools=TOOLS, tool_choice="none", max_tokens=5, extra_body={"ignore_eos": True}
    )
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].message.content
