"""Tools of OpenAI's and Anthropic's own types in whole requests: calls that the client executes, and their outputs."""

from typing import Any

import orjson
import pytest
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.api.conftest import Serve
from tests.support.fakes import FakeLoader, FakeRunner

CHATML = {"demo": {"path": "demo.gguf", "load": "startup", "chat_template": "chatml"}}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CLAUDES_EVENT: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools. " * 20,
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}
FOUND = {
    "type": "namespace",
    "name": "mcp__notes",
    "description": "Notes.",
    "tools": [{"type": "function", "name": "add", "description": "Adds.", "parameters": {}, "defer_loading": True}],
}


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def says(n_ctx: int = 8192, /, **replies: str) -> FakeLoader:
    """A model that answers the last word of the user or of a tool."""
    ends = {}
    for word, reply in replies.items():
        for end in (word, f"{word}\n</tool_response>"):
            ends[f"{end}<|im_end|>\n<|im_start|>assistant\n"] = reply
    return FakeLoader(runner=lambda: FakeRunner(n_ctx_seq=n_ctx, replies=ends))


async def respond(api: Any, **fields: Any) -> dict[str, Any]:
    """The whole response, checked as OpenAI's SDK reads it."""
    reply = await api.client.post("/v1/responses", json={"max_output_tokens": 300, "seed": 1, **fields})
    assert reply.status_code == 200, reply.text
    assert "X-Llamapool-Warning" not in reply.headers
    body = reply.json() if not fields["stream"] else {}
    if fields["stream"]:
        events = [orjson.loads(each.split("\ndata: ")[1]) for each in reply.text.split("\n\n") if each]
        for event in events:
            EVENT.validate_python(event)
        body = events[-1]["response"]
    TypeAdapter(Response).validate_python(body)
    return dict(body)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_is_searched_found_and_called_and_the_prompt_stays_cached(serve: Serve, stream: bool) -> None:
    replies = {"Hi": call("tool_search", '{"query": "notes"}'), "</function>\n": call("mcp__notes__add", "{}")}
    async with serve(says(**replies, added="Done."), models=CHATML) as api:
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


WRONG = call("shell", '{"commands": "ls"}')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "shell"}])
async def test_a_call_of_a_type_is_kept_to_its_parameters(serve: Serve, stream: bool, choice: object) -> None:
    async with serve(says(Hi=WRONG), models=CHATML) as api:
        reply = await respond(
            api, input="Hi", tools=[{"type": "shell"}], tool_choice=choice, stream=stream, max_output_tokens=2000
        )
    [item] = [item for item in reply["output"] if item["type"] == "shell_call"]
    assert isinstance(item["action"]["commands"], list)
    assert reply["tool_choice"] == choice


async def message(api: Any, **fields: Any) -> dict[str, Any]:
    """The whole message, checked as Anthropic's SDK reads it."""
    reply = await api.client.post("/v1/messages", json={"max_tokens": 300, "seed": 1, **fields})
    assert reply.status_code == 200, reply.text
    assert "X-Llamapool-Warning" not in reply.headers
    if not fields["stream"]:
        return BetaMessage.model_validate(reply.json()).model_dump(exclude_unset=True)
    content: list[Any] = []
    for part in (each for each in reply.text.split("\n\n") if each):
        event = CLAUDES_EVENT.validate_python(orjson.loads(part.split("\ndata: ")[1]))
        if event.type == "content_block_start":
            content.append(event.content_block.model_dump(exclude_unset=True) | {"written": ""})
        elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            content[-1]["written"] += event.delta.partial_json
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            content[-1]["text"] += event.delta.text
    for block in content:
        written = block.pop("written")
        if block["type"] == "tool_use":
            block["input"] = orjson.loads(written)
    return {"content": content}


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_of_anthropics_types_are_blocks_with_their_names(serve: Serve, stream: bool) -> None:
    replies = {
        "Hi": call("bash", '{"command": "ls"}'),
        "made.txt": call("computer__left_click", '{"coordinate": [1, 2]}'),
        "clicked": "Done.",
    }
    tools = [{"type": "bash_20250124", "name": "bash"}, {"type": "computer_toolset_20260801"}]
    wanted = (
        {"name": "bash", "input": {"command": "ls"}},
        {"name": "left_click", "toolset_name": "computer", "input": {"coordinate": [1, 2]}},
    )
    loader = says(16384, **replies)
    async with serve(loader, models=CHATML) as api:
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
