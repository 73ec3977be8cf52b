"""Tools of MCP servers in Anthropic's Messages API, over a scripted model."""

from typing import Any

import pytest
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from pydantic import TypeAdapter

from tests.api.conftest import Api, Serve
from tests.api.inference.test_mcp import SUM, serving
from tests.api.scripted import tool_call
from tests.api.streams import typed_events, whole_message

MESSAGE = TypeAdapter[BetaMessage](BetaMessage)
EVENT = TypeAdapter[BetaRawMessageStreamEvent](BetaRawMessageStreamEvent)
OLD = {"anthropic-beta": "mcp-client-2025-04-04"}
NEW = {"anthropic-beta": "mcp-client-2025-11-20"}


def server(name: str = "calc", **fields: Any) -> dict[str, Any]:
    return {"type": "url", "name": name, "url": "", **fields}


async def post(api: Api, said: Any, headers: dict[str, str] = OLD, **fields: Any) -> Any:
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    body = {"model": "demo", "max_tokens": 500, "messages": messages, "mcp_servers": [server()], **fields}
    return await api.client.post("/v1/messages", json=body, headers=headers)


async def ask(api: Api, said: Any, *, stream: bool = False, **fields: Any) -> BetaMessage:
    """The message; of a stream, put together from its events as the SDK does."""
    reply = await post(api, said, stream=stream, **fields)
    assert reply.status_code == 200, reply.text
    return MESSAGE.validate_python(whole_message(typed_events(reply.text, EVENT)) if stream else reply.json())


@pytest.mark.parametrize("stream", [False, True])
async def test_the_loop_runs_inside_one_message(serve: Serve, stream: bool) -> None:
    async with serving(serve, SUM | {"Again": "Still 3."}) as (api, tools):
        message = await ask(api, "Add", stream=stream, tool_choice={"type": "any"})
        assert [block.type for block in message.content] == ["mcp_tool_use", "mcp_tool_result", "text"]
        use, result, text = message.content
        assert (use.name, use.server_name, use.input) == ("add", "calc", {"a": 1, "b": 2})  # type: ignore[union-attr]
        assert result.tool_use_id == use.id  # type: ignore[union-attr]
        assert (result.is_error, result.content[0].text) == (False, "3")  # type: ignore[union-attr,index]
        assert (text.text, message.stop_reason) == ("It is 3.", "end_turn")  # type: ignore[union-attr]
        assert (message.usage.cache_read_input_tokens or 0) > 0  # of the second round
        assert tools.calls == [("add", (1, 2))]
        said = [block.model_dump(exclude_none=True) for block in message.content]
        history = [{"role": "user", "content": "Add"}, {"role": "assistant", "content": said}]
        again = await ask(api, [*history, {"role": "user", "content": "Again"}], stream=stream)
        assert again.content[0].text == "Still 3."  # type: ignore[union-attr]


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_blocks_and_the_clients_own_calls_end_the_message(serve: Serve, stream: bool) -> None:
    mine = {"name": "mine", "input_schema": {"type": "object"}}
    replies = {
        "Fail": tool_call("calc__fail", why="no bread"),
        "tool:no bread": "No bread.",
        "Both": tool_call("calc__add", a=1, b=2) + "\n" + tool_call("mine"),
    }
    async with serving(serve, replies) as (api, tools):
        failed = await ask(api, "Fail", stream=stream)
        assert failed.content[1].is_error is True  # type: ignore[union-attr]
        assert failed.content[2].text == "No bread."  # type: ignore[union-attr]
        both = await ask(api, "Both", stream=stream, tools=[mine])
        assert [block.type for block in both.content] == ["mcp_tool_use", "tool_use", "mcp_tool_result"]
        assert both.stop_reason == "tool_use"
        assert tools.calls == [("add", (1, 2))]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_lists_the_tools_and_later_requests_use_the_list(serve: Serve, stream: bool) -> None:
    """With a toolset the reply starts with the listing; the server is not asked again if the client returns it."""
    toolset = {"type": "mcp_toolset", "mcp_server_name": "calc"}
    async with serving(serve, SUM | {"Again": "Still 3."}) as (api, tools):
        message = await ask(api, "Add", stream=stream, tools=[toolset], headers=NEW)
        listing = message.content[0]
        assert listing.type == "mcp_tool_listing"
        assert listing.mcp_server_name == "calc"
        assert "add" in {tool.name for tool in listing.tools}
        assert [block.type for block in message.content[1:]] == ["mcp_tool_use", "mcp_tool_result", "text"]
        said = [block.model_dump(exclude_none=True) for block in message.content]
        history = [{"role": "user", "content": "Add"}, {"role": "assistant", "content": said}]
        again = await ask(api, [*history, {"role": "user", "content": "Again"}], tools=[toolset], headers=NEW)
        assert [block.type for block in again.content] == ["text"]
        assert tools.calls == [("add", (1, 2))]
        said[0]["tools"] = []  # what the client returns is used: without tools the prompt is shorter
        shorter = await ask(api, [*history, {"role": "user", "content": "Again"}], tools=[toolset], headers=NEW)
        used = [reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) for reply in (shorter, again)]
        assert used[0] < used[1]
        bad = [{"role": "user", "content": [{"type": "mcp_tool_listing", "mcp_server_name": "calc", "tools": []}]}]
        assert (await post(api, bad, headers=NEW, tools=[toolset])).status_code == 400


async def test_toolsets_and_configurations_choose_tools(serve: Serve) -> None:
    only = {"default_config": {"enabled": False}, "configs": {"add": {"enabled": True}}}
    toolset = {"type": "mcp_toolset", "mcp_server_name": "calc"}
    pinned = {**toolset, "tools": [{"name": "add", "input_schema": {"type": "object"}}]}
    async with serving(serve, SUM) as (api, tools):
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"mcp_servers": [server(tool_configuration={"allowed_tools": ["add"]})]}, []),
            ({"tools": [{**toolset, **only}], "headers": NEW}, ["mcp_tool_listing"]),
            ({"tools": [pinned], "headers": NEW}, []),
        ]
        for fields, listed in cases:
            kinds = [block.type for block in (await ask(api, "Add", **fields)).content]
            assert kinds[-3:] == ["mcp_tool_use", "mcp_tool_result", "text"]
            assert kinds[:-3] == listed
        assert len(tools.calls) == 3
        counted = {"messages": [{"role": "user", "content": "Add"}], "mcp_servers": [server()]}
        with_tools = (await api.client.post("/v1/messages/count_tokens", json=counted)).json()["input_tokens"]
        del counted["mcp_servers"]
        assert with_tools > (await api.client.post("/v1/messages/count_tokens", json=counted)).json()["input_tokens"]
        for wrong, says in (
            ({"headers": NEW}, "mcp_servers.0.name: no mcp_toolset"),
            ({"tools": [{**toolset, "mcp_server_name": "x"}]}, "tools.0.mcp_server_name"),
            ({"mcp_servers": [server("x")]}, "mcp_servers.0.name: no MCP server is called 'x'"),
            ({"mcp_servers": [server(url="http://10.0.0.1/")]}, "mcp_servers.0.url"),
            ({"mcp_servers": [server(authorization_token=5)]}, "mcp_servers.0.authorization_token"),
            ({"mcp_servers": [server(type="stdio")]}, "mcp_servers.0.type"),
            ({"mcp_servers": [server(), server()]}, "mcp_servers.1.name"),
            ({"mcp_servers": "calc"}, "mcp_servers"),
            ({"tools": [{**toolset, "configs": {"add": {"enabled": 5}}}]}, "tools.0.configs.add.enabled"),
        ):
            reply = await post(api, "Add", **wrong)
            assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
            assert says in reply.text


async def test_a_server_that_lists_nothing_is_a_warning(serve: Serve) -> None:
    entry: dict[str, Any] = {"mcp_servers": {"gone": {"command": "/nonexistent"}}, "mcp_api": "*"}
    async with serving(serve, {"Hi": "Hello."}, **entry) as (api, _):
        reply = await post(api, "Hi", mcp_servers=[server("gone")], tool_choice={"type": "any"})
        assert reply.json()["content"][0]["text"] == "Hello."
        assert "could not be listed" in reply.headers["x-llamapool-warning"]
