"""Tools of OpenAI's and Anthropic's own types in whole requests: calls that the client executes, and their outputs."""

from typing import Any

import pytest
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.api.conftest import Serve
from tests.api.scripted import CHATML, answering, tool_call
from tests.api.streams import typed_events, whole_message

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CLAUDES_EVENT: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
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


async def respond(api: Any, **fields: Any) -> dict[str, Any]:
    """The whole response, checked as OpenAI's SDK reads it."""
    reply = await api.expect("POST /v1/responses", {"max_output_tokens": 300, "seed": 1, **fields})
    assert "X-Llamapool-Warning" not in reply.headers
    body: dict[str, Any] = typed_events(reply.text, EVENT)[-1]["response"] if fields["stream"] else reply.json()
    Response.model_validate(body)
    return body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_is_searched_found_and_called_and_the_prompt_stays_cached(serve: Serve, stream: bool) -> None:
    replies = {
        "Hi": tool_call("tool_search", query="notes"),
        "</function>\n\n</tool_response>": ADD,
        "tool:added": "Done.",
    }
    async with serve(answering(replies, n_ctx=8192), models=CHATML) as api:
        asked: dict[str, Any] = {"tools": [SEARCH], "stream": stream, "store": False}
        items: list[Any] = [{"role": "user", "content": "Hi"}]
        first = await respond(api, input=items, **asked)
        [search] = first["output"]
        assert search.items() >= {"type": "tool_search_call", "execution": "client", "status": "completed"}.items()
        assert search["arguments"] == {"query": "notes"}
        found = {"type": "tool_search_output", "call_id": search["call_id"], "execution": "client", "tools": [FOUND]}
        items += [search, found]
        second = await respond(api, input=items, **asked)
        [add] = second["output"]
        assert add.items() >= {"type": "function_call", "name": "add", "namespace": "mcp__notes"}.items()
        items += [add, {"type": "function_call_output", "call_id": add["call_id"], "output": "added"}]
        third = await respond(api, input=items, **asked)
    assert third["output"][0]["content"][0]["text"] == "Done."
    before = first["usage"]["input_tokens"]
    for earlier, later in ((first, second), (second, third)):
        assert later["usage"]["input_tokens_details"]["cached_tokens"] >= earlier["usage"]["input_tokens"]
    assert before > 200


WRONG = tool_call("shell", commands="ls")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "shell"}])
async def test_a_call_of_a_type_is_kept_to_its_parameters(serve: Serve, stream: bool, choice: object) -> None:
    async with serve(answering({"Hi": WRONG}, n_ctx=8192), models=CHATML) as api:
        reply = await respond(
            api, input="Hi", tools=[{"type": "shell"}], tool_choice=choice, stream=stream, max_output_tokens=2000
        )
    [item] = [item for item in reply["output"] if item["type"] == "shell_call"]
    assert isinstance(item["action"]["commands"], list)
    assert reply["tool_choice"] == choice


async def message(api: Any, **fields: Any) -> dict[str, Any]:
    """The whole message, checked as Anthropic's SDK reads it."""
    reply = await api.expect("POST /v1/messages", {"max_tokens": 300, "seed": 1, **fields})
    assert "X-Llamapool-Warning" not in reply.headers
    body = whole_message(typed_events(reply.text, CLAUDES_EVENT)) if fields["stream"] else reply.json()
    return BetaMessage.model_validate(body).model_dump(exclude_unset=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_of_anthropics_types_are_blocks_with_their_names(serve: Serve, stream: bool) -> None:
    replies = {
        "Hi": tool_call("bash", command="ls"),
        "tool:made.txt": tool_call("computer__left_click", coordinate=[1, 2]),
        "tool:clicked": "Done.",
    }
    tools = [{"type": "bash_20250124", "name": "bash"}, {"type": "computer_toolset_20260801"}]
    wanted = (
        {"name": "bash", "input": {"command": "ls"}},
        {"name": "left_click", "toolset_name": "computer", "input": {"coordinate": [1, 2]}},
    )
    async with serve(answering(replies, n_ctx=16384), models=CHATML) as api:
        messages: list[Any] = [{"role": "user", "content": "Hi"}]
        for block, result in zip(wanted, ("made.txt", "clicked"), strict=True):
            answer = await message(api, messages=messages, tools=tools, stream=stream)
            [use] = [each for each in answer["content"] if each["type"] == "tool_use"]
            assert use.items() >= block.items()
            messages.append({"role": "assistant", "content": answer["content"]})
            results = [{"type": "tool_result", "tool_use_id": use["id"], "content": result}]
            messages.append({"role": "user", "content": results})
        last = await message(api, messages=messages, tools=tools, stream=stream)
    assert last["content"][-1]["text"] == "Done."
