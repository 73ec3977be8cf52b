"""Built-in tool types of OpenAI and Anthropic, strict and custom tools, and tools combined with a response format."""

import re
import threading
from typing import Any

import pytest
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.api.conftest import Serve
from tests.api.management.test_control import finish_stream, start_reasoning
from tests.api.scripted import CHATML, answering, tool_call
from tests.api.streams import posting, typed_events, whole_message
from tests.support.fakes import FakeLoader

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
MESSAGE_EVENT: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools. " * 20,
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}
ADD = tool_call("mcp__notes__add")
FOUND = {
    "type": "namespace",
    "name": "mcp__notes",
    "description": "Notes.",
    "tools": [{"type": "function", "name": "add", "description": "Adds.", "parameters": {}, "defer_loading": True}],
}


async def create_response(api: Any, **fields: Any) -> dict[str, Any]:
    """Create a response without warnings. Return it, validated by the types of OpenAI's client."""
    reply = await api.expect("POST /v1/responses", {"max_output_tokens": 300, "seed": 1, **fields})
    assert "X-Llamapool-Warning" not in reply.headers
    body: dict[str, Any] = typed_events(reply.text, EVENT)[-1]["response"] if fields["stream"] else reply.json()
    Response.model_validate(body)
    return body


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_search_result_is_callable_and_keeps_the_prefix_cached(serve: Serve, stream: bool) -> None:
    replies = {
        "Hi": tool_call("tool_search", query="notes"),
        "</function>\n\n</tool_response>": ADD,
        "tool:added": "Done.",
    }
    async with serve(answering(replies, n_ctx=8192), models=CHATML) as api:
        fields: dict[str, Any] = {"tools": [SEARCH], "stream": stream, "store": False}
        items: list[Any] = [{"role": "user", "content": "Hi"}]
        first = await create_response(api, input=items, **fields)
        [search] = first["output"]
        assert search.items() >= {"type": "tool_search_call", "execution": "client", "status": "completed"}.items()
        assert search["arguments"] == {"query": "notes"}
        output = {"type": "tool_search_output", "call_id": search["call_id"], "execution": "client", "tools": [FOUND]}
        items += [search, output]
        second = await create_response(api, input=items, **fields)
        [add] = second["output"]
        assert add.items() >= {"type": "function_call", "name": "add", "namespace": "mcp__notes"}.items()
        items += [add, {"type": "function_call_output", "call_id": add["call_id"], "output": "added"}]
        third = await create_response(api, input=items, **fields)
    assert third["output"][0]["content"][0]["text"] == "Done."
    assert first["usage"]["input_tokens"] > 200
    for earlier, later in ((first, second), (second, third)):
        assert later["usage"]["input_tokens_details"]["cached_tokens"] >= earlier["usage"]["input_tokens"]


INVALID_CALL = tool_call("shell", commands="ls")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "shell"}])
async def test_call_of_a_built_in_tool_matches_its_parameters(serve: Serve, stream: bool, choice: object) -> None:
    async with serve(answering({"Hi": INVALID_CALL}, n_ctx=8192), models=CHATML) as api:
        fields = {"tools": [{"type": "shell"}], "tool_choice": choice, "max_output_tokens": 2000}
        reply = await create_response(api, input="Hi", stream=stream, **fields)
    [item] = [item for item in reply["output"] if item["type"] == "shell_call"]
    assert isinstance(item["action"]["commands"], list)
    assert reply["tool_choice"] == choice


async def create_message(api: Any, **fields: Any) -> dict[str, Any]:
    """Create a message without warnings. Return it, validated by the types of Anthropic's client."""
    reply = await api.expect("POST /v1/messages", {"max_tokens": 300, "seed": 1, **fields})
    assert "X-Llamapool-Warning" not in reply.headers
    body = whole_message(typed_events(reply.text, MESSAGE_EVENT)) if fields["stream"] else reply.json()
    return BetaMessage.model_validate(body).model_dump(exclude_unset=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_of_anthropics_built_in_tools_are_named_blocks(serve: Serve, stream: bool) -> None:
    replies = {
        "Hi": tool_call("bash", command="ls"),
        "tool:made.txt": tool_call("computer__left_click", coordinate=[1, 2]),
        "tool:clicked": "Done.",
    }
    tools = [{"type": "bash_20250124", "name": "bash"}, {"type": "computer_toolset_20260801"}]
    calls = (
        {"name": "bash", "input": {"command": "ls"}},
        {"name": "left_click", "toolset_name": "computer", "input": {"coordinate": [1, 2]}},
    )
    async with serve(answering(replies, n_ctx=16384), models=CHATML) as api:
        messages: list[Any] = [{"role": "user", "content": "Hi"}]
        for block, result in zip(calls, ("made.txt", "clicked"), strict=True):
            answer = await create_message(api, messages=messages, tools=tools, stream=stream)
            [use] = [each for each in answer["content"] if each["type"] == "tool_use"]
            assert use.items() >= block.items()
            messages.append({"role": "assistant", "content": answer["content"]})
            results = [{"type": "tool_result", "tool_use_id": use["id"], "content": result}]
            messages.append({"role": "user", "content": results})
        last = await create_message(api, messages=messages, tools=tools, stream=stream)
    assert last["content"][-1]["text"] == "Done."


UNSUPPORTED = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
TEMPLATE = (
    "{{ tools }}{# <tool_call></tool_call><think></think> #}"
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}assistant\n{% endif %}"
)
MODELS = {"demo": {"path": "demo.gguf", "load": "startup", "chat_template": TEMPLATE}}
HI = [{"role": "user", "content": "Hi"}]
CALL, OTHER_CALL = tool_call("f", a=[1]), tool_call("g", a="no")


def replying(reply: str) -> FakeLoader:
    return FakeLoader(n_seq=1, n_ctx_seq=2048, replies={"Hiassistant\n": reply})


def body_with_tool(dialect: str, strict: object, schema: Any = UNSUPPORTED) -> tuple[str, dict[str, Any], str]:
    """Return the endpoint, a body with one tool, and the path of the tool's schema in the body."""
    if dialect == "messages":
        tool = {"name": "f", "input_schema": schema, "strict": strict}
        return "/v1/messages", {"messages": HI, "max_tokens": 200, "tools": [tool]}, "tools.0.input_schema"
    if dialect == "responses":
        tool = {"type": "function", "name": "f", "parameters": schema, "strict": strict}
        return "/v1/responses", {"input": "Hi", "tools": [tool]}, "tools.0.parameters"
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": strict}}
    return "/v1/chat/completions", {"messages": HI, "tools": [tool]}, "tools.0.function.parameters"


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
async def test_strict_tool_with_an_unsupported_schema_is_a_400(serve: Serve, dialect: str) -> None:
    async with serve(replying(CALL), models=MODELS) as api:
        for strict, status in ((True, 400), (None, 200), ("yes", 400)):
            url, body, path = body_with_tool(dialect, strict)
            part = {True: ("uniqueItems", path), "yes": path.rpartition(".")[0]}.get(strict, "")
            await api.expect(f"POST {url}", body, status, part)


@pytest.mark.parametrize(
    ("output", "is_call"), [(CALL, True), ('{"b": 1}', False), (OTHER_CALL, True), ("Hello", None)]
)
async def test_auto_tool_choice_with_a_schema_constrains_calls_and_content(
    serve: Serve, output: str, is_call: bool | None
) -> None:
    schema = {"type": "object", "properties": {"b": {"const": 1}}, "required": ["b"], "additionalProperties": False}
    parameters = {
        "type": "object",
        "properties": {"a": {"const": [1]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    _, body, _ = body_with_tool("chat", None, parameters)
    body |= {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    body |= {"temperature": 0, "parallel_tool_calls": False, "enable_thinking": False}
    async with serve(replying(output), models=MODELS) as api:
        (choice,) = (await api.client.post("/v1/chat/completions", json=body)).json()["choices"]
        calls = choice["message"].get("tool_calls", [])
        if is_call is not None:
            assert bool(calls) is is_call
        if calls:
            assert [call["function"]["name"] for call in calls] == ["f"]
            assert choice["finish_reason"] == "tool_calls"
        else:
            assert choice["message"]["content"].replace(" ", "") == '{"b":1}'


@pytest.mark.parametrize("output", [CALL, OTHER_CALL])
async def test_strict_call_matches_its_schema_after_reasoning_is_ended(serve: Serve, output: str) -> None:
    steps = threading.Semaphore(0)
    parameters = {"type": "object", "properties": {"a": {"const": [1]}}, "required": ["a"]}
    _, body, _ = body_with_tool("chat", True, parameters)
    replies = {"Hiassistant\n": "<think>I wonder and wonder</think>Hello", "I</think>": output}
    loader = FakeLoader(n_seq=1, n_ctx_seq=2048, n_batch=2048, replies=replies, steps=steps)
    body |= {"stream": True, "temperature": 0, "max_tokens": 150, "reasoning_control": True}
    async with serve(loader, models=MODELS) as api, posting(api.app, "/v1/chat/completions", body) as exchange:
        completion = await start_reasoning(exchange, steps)
        control = {"id": completion, "action": "reasoning_end"}
        reply = await api.client.post("/v1/chat/completions/control", json=control)
        assert reply.json() == {"success": True}
        reasoning, content = await finish_stream(exchange, steps)
        assert "wonder and wonder" not in reasoning
        assert "</think>" not in reasoning + content
        assert '"g"' not in content


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "custom", "custom": {"name": "patch"}}], ids=str)
async def test_input_of_a_custom_tool_matches_its_grammar_in_chats(serve: Serve, choice: object) -> None:
    grammar = {"syntax": "lark", "definition": 'start: "go " /[a-z"]{1,9}/ "\\n"'}
    tool = {"name": "patch", "description": "Edits.", "format": {"type": "grammar", "grammar": grammar}}
    body: dict[str, Any] = {"messages": HI, "seed": 1, "max_tokens": 300}
    body |= {"tools": [{"type": "custom", "custom": tool}], "tool_choice": choice, "parallel_tool_calls": False}
    async with serve(answering({"Hi": tool_call("patch", input="GO 1")}), models=CHATML) as api:
        reply = await api.client.post("/v1/chat/completions", json=body)
    [call] = reply.json()["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["custom"]["name"]) == ("custom", "patch")
    assert re.fullmatch(r'go [a-z"]{1,9}\n', call["custom"]["input"])
