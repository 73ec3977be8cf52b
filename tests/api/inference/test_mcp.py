"""Tools of MCP servers that this server calls itself, in Responses and Messages, over a scripted model."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from server.transport.keys import hash_of
from tests.api.conftest import Api, Serve, idle
from tests.api.scripted import CHATML, answering, tool_call
from tests.api.streams import posting, typed_events, whole_message
from tests.support.fakes import FakeLoader
from tests.support.mcp_server import Tools, served

URL = "/v1/responses"
ANSWER = TypeAdapter[Response](Response)
EVENT = TypeAdapter[ResponseStreamEvent](ResponseStreamEvent)


SUM = {"Add": tool_call("calc__add", a=1, b=2), "tool:3": "It is 3."}


@asynccontextmanager
async def serving(
    serve: Serve, replies: Mapping[str, str] | FakeLoader, timeout_ms: int = 60_000, **server: Any
) -> AsyncIterator[tuple[Api, Tools]]:
    """A server with one MCP server over HTTP, ``calc``, that requests may use."""
    tools = Tools()
    loader = replies if isinstance(replies, FakeLoader) else answering(replies, n_ctx=16384)
    async with served(tools) as url:
        settings = {"mcp_servers": {"calc": {"url": url, "timeout_ms": timeout_ms}}, "mcp_api": "calc", **server}
        async with serve(loader, models=CHATML, server=settings) as api:
            yield api, tools


def mcp(label: str = "calc", **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": label, "require_approval": "never", **fields}


async def ask(api: Api, said: Any, *, stream: bool = False, **fields: Any) -> Response:
    """The response, whose events and body are the SDK's."""
    body = {"input": said, "temperature": 0, "max_output_tokens": 500, "tools": [mcp()], "stream": stream, **fields}
    reply = await api.expect(f"POST {URL}", body)
    if not stream:
        return ANSWER.validate_python(reply.json())
    found = [EVENT.validate_python(event) for event in typed_events(reply.text)]
    assert [event.sequence_number for event in found] == list(range(len(found)))
    check_items(found)
    last = found[-1]
    assert last.type in ("response.completed", "response.incomplete"), last
    return last.response


def check_items(found: list[Any]) -> None:
    """Every item is added once and done once, as it is in the response."""
    added = [event.output_index for event in found if event.type == "response.output_item.added"]
    done = {event.output_index: event.item for event in found if event.type == "response.output_item.done"}
    assert added == list(range(len(added)))
    assert [done[index].model_dump() for index in added] == [item.model_dump() for item in found[-1].response.output]


def kinds(response: Response) -> list[str]:
    return [item.type for item in response.output]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_loop_runs_inside_one_response(serve: Serve, stream: bool) -> None:
    async with serving(serve, SUM, mcp_web_search="calc") as (api, tools):
        response = await ask(api, "Add", stream=stream)
        assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
        listed, made, _ = response.output
        assert {tool.name for tool in listed.tools} >= {"add", "a/b:c"}  # type: ignore[union-attr]
        assert (made.name, made.server_label, made.output) == ("add", "calc", "3")  # type: ignore[union-attr]
        assert (made.status, json.loads(made.arguments)) == ("completed", {"a": 1, "b": 2})  # type: ignore[union-attr,arg-type]
        assert response.output_text == "It is 3."
        assert tools.calls == [("add", (1, 2))]
        assert response.usage is not None
        assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
        cached = response.usage.input_tokens_details.cached_tokens
        assert cached > 0  # the second round's prompt begins with the first's
        assert response.tools[0].model_dump(exclude_none=True) == mcp()
        searched = await ask(api, "Add", tools=[{"type": "web_search"}], stream=stream)
        assert kinds(searched) == ["mcp_list_tools", "mcp_call", "message"]
        assert searched.tools[0].type == "web_search"
        started = (await api.client.post(URL, json={"input": "Add", "tools": [mcp()], "background": True})).json()
        text = (await api.client.get(f"{URL}/{started['id']}?stream=true")).text
        assert typed_events(text)[-1]["type"] == "response.completed"
        done = ANSWER.validate_python((await api.client.get(f"{URL}/{started['id']}")).json())
        assert (done.status, done.output_text) == ("completed", "It is 3.")


async def test_a_stored_response_is_continued_without_listing_again(serve: Serve) -> None:
    replies = SUM | {"Again": "Still 3."}
    async with serving(serve, replies) as (api, _):
        first = await ask(api, "Add")
        second = await ask(api, "Again", previous_response_id=first.id)
        assert kinds(second) == ["message"]
        sent = [item.model_dump(exclude_none=True) for item in first.output]
        third = await ask(api, [{"role": "user", "content": "Add"}, *sent, {"role": "user", "content": "Again"}])
        assert kinds(third) == ["message"]
        assert second.usage is not None
        assert third.usage is not None
        assert third.usage.input_tokens == second.usage.input_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_waits_for_approval(serve: Serve, stream: bool) -> None:
    denied = "tool:The user denied this call: too dear"
    async with serving(serve, SUM | {denied: "Then not."}) as (api, tools):
        careful = [mcp(require_approval={"never": {"read_only": False}})]  # add is the one that only reads
        first = await ask(api, "Add", tools=careful, stream=stream)
        assert kinds(first) == ["mcp_list_tools", "mcp_approval_request"]
        wanted = first.output[1]
        assert tools.calls == []
        answer = {"type": "mcp_approval_response", "approval_request_id": wanted.id, "approve": True}
        second = await ask(api, [answer], tools=careful, previous_response_id=first.id, stream=stream)
        assert kinds(second) == ["mcp_call", "message"]
        assert second.output[0].approval_request_id == wanted.id  # type: ignore[union-attr]
        assert second.output_text == "It is 3."
        assert tools.calls == [("add", (1, 2))]
        # The approved call is not made again when the conversation continues.
        third = await ask(api, "Add", tools=careful, previous_response_id=second.id, stream=stream)
        assert kinds(third) == ["mcp_approval_request"]
        assert len(tools.calls) == 1
        no = {**answer, "approve": False, "reason": "too dear"}
        fourth = await ask(api, [no], tools=careful, previous_response_id=first.id, stream=stream)
        assert (kinds(fourth), fourth.output_text) == (["message"], "Then not.")
        body = {"input": [answer], "tools": careful, "previous_response_id": first.id, "background": True}
        started = (await api.client.post(URL, json=body)).json()
        later = typed_events((await api.client.get(f"{URL}/{started['id']}?stream=true")).text)
        assert "response.mcp_call.completed" in [event["type"] for event in later]
        assert later[-1]["type"] == "response.completed"


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_items(serve: Serve, stream: bool) -> None:
    replies = {
        "Fail": tool_call("calc__fail", why="no bread"),
        "tool:no bread": "No bread.",
        "Both": tool_call("calc__add", a=1, b=1) + "\n" + tool_call("calc__fail", why="one"),
        "tool:one": "Half.",
    }
    async with serving(serve, replies) as (api, _):
        failed = (await ask(api, "Fail", stream=stream)).output[1]
        assert (failed.type, failed.status, failed.output) == ("mcp_call", "failed", None)  # type: ignore[union-attr]
        assert failed.error.type == "mcp_tool_execution_error"  # type: ignore[union-attr]
        both = await ask(api, "Both", stream=stream)
        assert [item.status for item in both.output[1:3]] == ["completed", "failed"]  # type: ignore[union-attr]
        assert both.output_text == "Half."


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_takes_too_long_is_an_error_and_cancelled(serve: Serve, stream: bool) -> None:
    replies = {"Go": tool_call("calc__wait"), "tool:Error: no answer within 0.2 s": "Too slow."}
    waits = {"name": "wait", "input_schema": {"type": "object"}}
    listed = {"type": "mcp_list_tools", "id": "l", "server_label": "calc", "tools": [waits]}
    async with serving(serve, replies, timeout_ms=200) as (api, tools):
        late = await ask(api, [listed, {"role": "user", "content": "Go"}], stream=stream)
        assert late.output[0].error.type == "http_error"  # type: ignore[union-attr]
        assert late.output_text == "Too slow."
        if tools.started.is_set():  # on a slow machine the time is over before the tool has heard of the call
            await tools.cancelled.wait()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "mcp", "server_label": "gone"}], ids=str)
async def test_a_server_that_lists_nothing_leaves_the_rest_usable(serve: Serve, stream: bool, choice: Any) -> None:
    server = {"mcp_servers": {"gone": {"command": "/nonexistent"}}, "mcp_api": "*"}
    async with serve(answering({"Hi": "Hello."}, n_ctx=16384), models=CHATML, server=server) as api:
        response = await ask(api, "Hi", tools=[mcp("gone")], tool_choice=choice, stream=stream)
        assert "could not be listed" in response.output[0].error  # type: ignore[union-attr,operator]
        assert response.output_text == "Hello."


@pytest.mark.parametrize("stream", [False, True])
async def test_rounds_and_calls_are_limited(serve: Serve, stream: bool) -> None:
    again = tool_call("calc__add", a=1, b=2)
    async with serving(serve, {"Add": again, "tool:3": again}, mcp_max_rounds=2) as (api, tools):
        response = await ask(api, "Add", stream=stream)
        assert kinds(response)[:3] == ["mcp_list_tools", "mcp_call", "mcp_call"]
        assert len(tools.calls) == 2
        tools.calls.clear()
        await ask(api, "Add", stream=stream, max_tool_calls=1)
        assert len(tools.calls) == 1


async def test_a_name_that_is_taken_or_that_no_format_can_parse_is_changed(serve: Serve) -> None:
    replies = {"Odd": tool_call("calc__a_b_c"), "tool:odd": "Odd.", "Mine": tool_call("calc__add", a=1, b=2)}
    own = {"type": "function", "name": "calc__add", "parameters": {"type": "object"}}
    async with serving(serve, replies) as (api, tools):
        assert (await ask(api, "Odd")).output_text == "Odd."
        assert tools.calls == [("a/b:c", ())]
        mine = await ask(api, "Mine", tools=[mcp(), own])
        assert kinds(mine) == ["mcp_list_tools", "function_call"]
        assert len(tools.calls) == 1


async def test_only_allowed_tools_are_offered_and_choices_name_them(serve: Serve) -> None:
    async with serving(serve, SUM) as (api, _):
        few = await ask(api, "Add", tools=[mcp(allowed_tools=["add", "fail"])])
        assert {tool.name for tool in few.output[0].tools} == {"add", "fail"}  # type: ignore[union-attr]
        only = await ask(api, "Add", tools=[mcp(allowed_tools={"read_only": True})])
        assert {tool.name for tool in only.output[0].tools} == {"add"}  # type: ignore[union-attr]
        chosen = {"type": "mcp", "server_label": "calc", "name": "add"}
        forced = await ask(api, "Add", tool_choice=chosen)
        assert (kinds(forced)[1], forced.output_text) == ("mcp_call", "It is 3.")
        assert forced.tool_choice.model_dump(exclude_none=True) == chosen  # type: ignore[union-attr]


async def test_huge_results_are_cut_and_pictures_are_placeholders_for_a_blind_model(serve: Serve) -> None:
    replies = {"Huge": tool_call("calc__huge", n=3_000_000), "See": tool_call("calc__picture")}
    async with serving(serve, replies, mcp_max_chars=1000) as (api, _):
        huge = (await ask(api, "Huge")).output[1].output  # type: ignore[union-attr]
        assert huge.endswith("[cut off: 2999000 more characters]")  # type: ignore[union-attr]
        seen = (await ask(api, "See")).output[1].output  # type: ignore[union-attr]
        assert seen == "a dot\n[image image/png]"


async def test_a_disconnect_frees_the_slot_and_cancels_the_call(serve: Serve) -> None:
    async with serving(serve, {"Wait": tool_call("calc__wait")}) as (api, tools):
        body = {"input": "Wait", "tools": [mcp()], "max_output_tokens": 100}
        for stream in (False, True):
            tools.started.clear()
            tools.cancelled.clear()
            async with posting(api.app, URL, body | {"stream": stream}) as exchange:
                await tools.started.wait()
                await idle(api.loaded())  # no slot is held while a tool is called
                exchange.disconnect()
                await tools.cancelled.wait()


KEYS = """
keys:
  - {{name: all, hash: "{0}", mcp: ["calc", "127.0.0.1"]}}
  - {{name: none, hash: "{1}"}}
"""


async def test_keys_and_the_server_allow_servers(serve: Serve, tmp_path: Any) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(KEYS.format(hash_of("all"), hash_of("none")))
    async with served(Tools()) as url:
        known = {"calc": {"url": url}, "secret": {"url": url}}
        server = {"keys_file": str(file), "mcp_servers": known, "mcp_api": "calc", "mcp_hosts": "127.0.0.1"}
        async with serve(answering(SUM, n_ctx=16384), models=CHATML, server=server) as api:
            there = {"authorization": "t", "headers": {"X-A": "b"}}
            for key, tool, status, said in (
                ("all", mcp(), 200, '"error":null'),
                ("all", mcp("x", server_url=url, **there), 200, '"error":null'),
                ("none", mcp(), 400, "may use: none"),
                ("none", mcp("x", server_url=url), 403, "may not use MCP servers of the host"),
                ("all", mcp("secret"), 400, "no MCP server is called 'secret' here; this request may use: calc"),
                ("all", mcp("x", server_url="http://10.0.0.1/mcp"), 400, "does not allow the host 10.0.0.1"),
                ("all", mcp("x", server_url="http://u:p@127.0.0.1/mcp"), 400, "tools.0.server_url"),
                ("all", mcp("x", server_url="file:///etc/passwd"), 400, "tools.0.server_url"),
                ("all", mcp("x", server_url=url, headers={"X-A": "b\r\nc: d"}), 400, "tools.0.headers"),
                ("all", mcp("x", server_url=url, headers={"Host": "inner"}), 400, "tools.0.headers': the header Host"),
                ("all", mcp("x", server_url=url, headers={"transfer-encoding": "chunked"}), 400, "tools.0.headers"),
                ("all", mcp("x", server_url=url, headers={"Proxy-Authorization": "x"}), 400, "tools.0.headers"),
                ("all", mcp("x", server_url=url, headers={f"x-{n}": "" for n in range(101)}), 400, "at most 100"),
                ("all", mcp("x", connector_id="connector_gmail"), 400, "tools.0.connector_id"),
                ("all", mcp(headers={"X-A": "b"}), 400, "takes no headers"),
                ("all", mcp(""), 400, "tools.0.server_label"),
                ("all", mcp(allowed_tools=5), 400, "tools.0.allowed_tools"),
                ("all", mcp(require_approval="perhaps"), 400, "tools.0.require_approval"),
            ):
                body = {"input": "Add", "tools": [tool], "max_output_tokens": 16}
                await api.expect(f"POST {URL}", body, status, said, {"authorization": f"Bearer {key}"})
            unknown = {"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": True}
            body = {"input": [unknown], "tools": [mcp()]}
            await api.expect(f"POST {URL}", body, 400, "no approval request", {"authorization": "Bearer all"})


async def test_secrets_are_neither_repeated_nor_stored(serve: Serve) -> None:
    async with serving(serve, SUM, mcp_hosts="127.0.0.1") as (api, tools), served(tools) as url:
        secrets = {"authorization": "SECRET1", "headers": {"X-Key": "SECRET2"}, "authorization_token": "SECRET3"}
        tool = mcp("calc2", server_url=f"{url}?key=SECRET4", **secrets)
        reply = await api.expect(f"POST {URL}", {"input": "Hi", "tools": [tool], "max_output_tokens": 16})
        stored = await api.client.get(f"{URL}/{reply.json()['id']}")
        for shown in (reply, stored):
            assert "SECRET" not in shown.text
            (entry,) = shown.json()["tools"]
            assert entry == {**mcp("calc2"), "server_url": url.removesuffix("/mcp"), "headers": None}


async def test_without_configuration_they_are_left_out_with_a_warning(serve: Serve) -> None:
    async with serving(serve, {"Hi": "Hello."}, mcp_api="") as (api, _):
        for tool in (mcp(), {"type": "web_search"}):
            reply = await api.expect(f"POST {URL}", {"input": "Hi", "tools": [tool]})
            assert tool["type"] in reply.headers["x-llamapool-warning"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_sees_is_shown_the_pictures_of_results(serve: Serve, stream: bool) -> None:
    turn = "<|im_end|>\n<|im_start|>assistant\n"
    replies = {
        f"See{turn}": tool_call("calc__picture"),
        f"<tool_response>\na dot(image 16x12)\n</tool_response>{turn}": "I see it.",
    }
    loader = FakeLoader(n_ctx_seq=16384, replies=replies, media=frozenset({"image"}))
    async with serving(serve, loader) as (api, _):
        response = await ask(api, "See", stream=stream)
        assert response.output_text == "I see it."


MESSAGE = TypeAdapter[BetaMessage](BetaMessage)
MESSAGE_EVENT = TypeAdapter[BetaRawMessageStreamEvent](BetaRawMessageStreamEvent)
OLD = {"anthropic-beta": "mcp-client-2025-04-04"}
NEW = {"anthropic-beta": "mcp-client-2025-11-20"}


def entry(name: str = "calc", **fields: Any) -> dict[str, Any]:
    return {"type": "url", "name": name, "url": "", **fields}


async def post(api: Api, said: Any, headers: dict[str, str] = OLD, **fields: Any) -> Any:
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    body = {"model": "demo", "max_tokens": 500, "messages": messages, "mcp_servers": [entry()], **fields}
    return await api.client.post("/v1/messages", json=body, headers=headers)


async def ask_message(api: Api, said: Any, *, stream: bool = False, **fields: Any) -> BetaMessage:
    """The message; of a stream, put together from its events as the SDK does."""
    reply = await post(api, said, stream=stream, **fields)
    assert reply.status_code == 200, reply.text
    return MESSAGE.validate_python(whole_message(typed_events(reply.text, MESSAGE_EVENT)) if stream else reply.json())


@pytest.mark.parametrize("stream", [False, True])
async def test_the_loop_runs_inside_one_message(serve: Serve, stream: bool) -> None:
    async with serving(serve, SUM | {"Again": "Still 3."}) as (api, tools):
        message = await ask_message(api, "Add", stream=stream, tool_choice={"type": "any"})
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
        again = await ask_message(api, [*history, {"role": "user", "content": "Again"}], stream=stream)
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
        failed = await ask_message(api, "Fail", stream=stream)
        assert failed.content[1].is_error is True  # type: ignore[union-attr]
        assert failed.content[2].text == "No bread."  # type: ignore[union-attr]
        both = await ask_message(api, "Both", stream=stream, tools=[mine])
        assert [block.type for block in both.content] == ["mcp_tool_use", "tool_use", "mcp_tool_result"]
        assert both.stop_reason == "tool_use"
        assert tools.calls == [("add", (1, 2))]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_lists_the_tools_and_later_requests_use_the_list(serve: Serve, stream: bool) -> None:
    """With a toolset the reply starts with the listing; the server is not asked again if the client returns it."""
    toolset = {"type": "mcp_toolset", "mcp_server_name": "calc"}
    async with serving(serve, SUM | {"Again": "Still 3."}) as (api, tools):
        message = await ask_message(api, "Add", stream=stream, tools=[toolset], headers=NEW)
        listing = message.content[0]
        assert listing.type == "mcp_tool_listing"
        assert listing.mcp_server_name == "calc"
        assert "add" in {tool.name for tool in listing.tools}
        assert [block.type for block in message.content[1:]] == ["mcp_tool_use", "mcp_tool_result", "text"]
        said = [block.model_dump(exclude_none=True) for block in message.content]
        history = [{"role": "user", "content": "Add"}, {"role": "assistant", "content": said}]
        again = await ask_message(api, [*history, {"role": "user", "content": "Again"}], tools=[toolset], headers=NEW)
        assert [block.type for block in again.content] == ["text"]
        assert tools.calls == [("add", (1, 2))]
        said[0]["tools"] = []  # what the client returns is used: without tools the prompt is shorter
        shorter = await ask_message(api, [*history, {"role": "user", "content": "Again"}], tools=[toolset], headers=NEW)
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
            ({"mcp_servers": [entry(tool_configuration={"allowed_tools": ["add"]})]}, []),
            ({"tools": [{**toolset, **only}], "headers": NEW}, ["mcp_tool_listing"]),
            ({"tools": [pinned], "headers": NEW}, []),
        ]
        for fields, listed in cases:
            kinds = [block.type for block in (await ask_message(api, "Add", **fields)).content]
            assert kinds[-3:] == ["mcp_tool_use", "mcp_tool_result", "text"]
            assert kinds[:-3] == listed
        assert len(tools.calls) == 3
        counted = {"messages": [{"role": "user", "content": "Add"}], "mcp_servers": [entry()]}
        with_tools = (await api.client.post("/v1/messages/count_tokens", json=counted)).json()["input_tokens"]
        del counted["mcp_servers"]
        assert with_tools > (await api.client.post("/v1/messages/count_tokens", json=counted)).json()["input_tokens"]
        for wrong, says in (
            ({"headers": NEW}, "mcp_servers.0.name: no mcp_toolset"),
            ({"tools": [{**toolset, "mcp_server_name": "x"}]}, "tools.0.mcp_server_name"),
            ({"mcp_servers": [entry("x")]}, "mcp_servers.0.name: no MCP server is called 'x'"),
            ({"mcp_servers": [entry(url="http://10.0.0.1/")]}, "mcp_servers.0.url"),
            ({"mcp_servers": [entry(authorization_token=5)]}, "mcp_servers.0.authorization_token"),
            ({"mcp_servers": [entry(type="stdio")]}, "mcp_servers.0.type"),
            ({"mcp_servers": [entry(), entry()]}, "mcp_servers.1.name"),
            ({"mcp_servers": "calc"}, "mcp_servers"),
            ({"tools": [{**toolset, "configs": {"add": {"enabled": 5}}}]}, "tools.0.configs.add.enabled"),
        ):
            reply = await post(api, "Add", **wrong)
            assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
            assert says in reply.text


async def test_a_server_that_lists_nothing_is_a_warning(serve: Serve) -> None:
    config: dict[str, Any] = {"mcp_servers": {"gone": {"command": "/nonexistent"}}, "mcp_api": "*"}
    async with serving(serve, {"Hi": "Hello."}, **config) as (api, _):
        reply = await post(api, "Hi", mcp_servers=[entry("gone")], tool_choice={"type": "any"})
        assert reply.json()["content"][0]["text"] == "Hello."
        assert "could not be listed" in reply.headers["x-llamapool-warning"]
