"""Tools of OpenAI's and Anthropic's own types in whole requests: calls that the client executes, and their outputs."""

from typing import Any

import orjson
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from harness.fakes import FakeLoader, FakeRunner
from tests.api.conftest import Serve

CHATML = {"demo": {"path": "demo.gguf", "load": "startup", "chat_template": "chatml"}}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
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


def says(**replies: str) -> FakeLoader:
    """A model that answers the last word of the user or of a tool."""
    ends = {}
    for word, reply in replies.items():
        for end in (word, f"{word}\n</tool_response>"):
            ends[f"{end}<|im_end|>\n<|im_start|>assistant\n"] = reply
    return FakeLoader(runner=lambda: FakeRunner(n_ctx_seq=8192, replies=ends))


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
