"""MCP tools that the server itself calls within one reply of Responses or Messages, over a scripted model."""

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
RESPONSE = TypeAdapter[Response](Response)
EVENT = TypeAdapter[ResponseStreamEvent](ResponseStreamEvent)
SUM = {"Add": tool_call("calc__add", a=1, b=2), "tool:3": "It is 3."}


@asynccontextmanager
async def serving(
    serve: Serve, replies: Mapping[str, str] | FakeLoader, timeout_ms: int = 60_000, **server: Any
) -> AsyncIterator[tuple[Api, Tools]]:
    """Serve a scripted model and one MCP server over HTTP, ``calc``, which requests may use."""
    tools = Tools()
    loader = replies if isinstance(replies, FakeLoader) else answering(replies, n_ctx=16384)
    async with served(tools) as url:
        settings = {"mcp_servers": {"calc": {"url": url, "timeout_ms": timeout_ms}}, "mcp_api": "calc", **server}
        async with serve(loader, models=CHATML, server=settings) as api:
            yield api, tools


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def mcp(label: str = "calc", **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": label, "require_approval": "never", **fields}


async def create_response(api: Api, input_: Any, *, stream: bool = False, **fields: Any) -> Response:
    """Create a response. Validate its body or its events by the types of OpenAI's client."""
    body = {"input": input_, "temperature": 0, "max_output_tokens": 500, "tools": [mcp()], "stream": stream, **fields}
    reply = await api.expect(f"POST {URL}", body)
    if not stream:
        return RESPONSE.validate_python(reply.json())
    events = [EVENT.validate_python(event) for event in typed_events(reply.text)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    check_items(events)
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete"), last
    return last.response


def check_items(events: list[Any]) -> None:
    """Assert that every item of the response is added once, and done once with its final value."""
    added = [event.output_index for event in events if event.type == "response.output_item.added"]
    done = {event.output_index: event.item for event in events if event.type == "response.output_item.done"}
    assert added == list(range(len(added)))
    assert [done[index].model_dump() for index in added] == [item.model_dump() for item in events[-1].response.output]


def item_types(response: Response) -> list[str]:
    return [item.type for item in response.output]


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_rounds_are_items_of_one_response(serve: Serve, stream: bool) -> None:
    async with serving(serve, SUM, mcp_web_search="calc") as (api, tools):
        response = await create_response(api, "Add", stream=stream)
        assert item_types(response) == ["mcp_list_tools", "mcp_call", "message"]
        listed, call, _ = response.output
        assert {tool.name for tool in listed.tools} >= {"add", "a/b:c"}  # type: ignore[union-attr]
        assert (call.name, call.server_label, call.output) == ("add", "calc", "3")  # type: ignore[union-attr]
        assert (call.status, json.loads(call.arguments)) == ("completed", {"a": 1, "b": 2})  # type: ignore[union-attr,arg-type]
        assert response.output_text == "It is 3."
        assert tools.calls == [("add", (1, 2))]
        assert response.usage is not None
        assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
        cached = response.usage.input_tokens_details.cached_tokens
        assert cached > 0  # the prompt of the second round starts with that of the first
        assert response.tools[0].model_dump(exclude_none=True) == mcp()
        searched = await create_response(api, "Add", tools=[{"type": "web_search"}], stream=stream)
        assert item_types(searched) == ["mcp_list_tools", "mcp_call", "message"]
        assert searched.tools[0].type == "web_search"
        started = (await api.client.post(URL, json={"input": "Add", "tools": [mcp()], "background": True})).json()
        text = (await api.client.get(f"{URL}/{started['id']}?stream=true")).text
        assert typed_events(text)[-1]["type"] == "response.completed"
        done = RESPONSE.validate_python((await api.client.get(f"{URL}/{started['id']}")).json())
        assert (done.status, done.output_text) == ("completed", "It is 3.")


async def test_continued_response_does_not_list_the_tools_again(serve: Serve) -> None:
    replies = SUM | {"Again": "Still 3."}
    async with serving(serve, replies) as (api, _):
        first = await create_response(api, "Add")
        second = await create_response(api, "Again", previous_response_id=first.id)
        assert item_types(second) == ["message"]
        output = [item.model_dump(exclude_none=True) for item in first.output]
        third = await create_response(api, [user("Add"), *output, user("Again")])
        assert item_types(third) == ["message"]
        assert second.usage is not None
        assert third.usage is not None
        assert third.usage.input_tokens == second.usage.input_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_call_runs_only_after_approval(serve: Serve, stream: bool) -> None:
    denied = "tool:The user denied this call: too dear"
    async with serving(serve, SUM | {denied: "Then not."}) as (api, tools):
        # `add` is the only tool with the read-only hint, so it needs an approval.
        careful = [mcp(require_approval={"never": {"read_only": False}})]
        first = await create_response(api, "Add", tools=careful, stream=stream)
        assert item_types(first) == ["mcp_list_tools", "mcp_approval_request"]
        approval = first.output[1]
        assert tools.calls == []
        answer = {"type": "mcp_approval_response", "approval_request_id": approval.id, "approve": True}
        second = await create_response(api, [answer], tools=careful, previous_response_id=first.id, stream=stream)
        assert item_types(second) == ["mcp_call", "message"]
        assert second.output[0].approval_request_id == approval.id  # type: ignore[union-attr]
        assert second.output_text == "It is 3."
        assert tools.calls == [("add", (1, 2))]
        # The approved call is not made again when the conversation continues.
        third = await create_response(api, "Add", tools=careful, previous_response_id=second.id, stream=stream)
        assert item_types(third) == ["mcp_approval_request"]
        assert len(tools.calls) == 1
        denial = {**answer, "approve": False, "reason": "too dear"}
        for replies in ([denial], [answer, denial]):
            fourth = await create_response(api, replies, tools=careful, previous_response_id=first.id, stream=stream)
            assert (item_types(fourth), fourth.output_text) == (["message"], "Then not.")
        body = {"input": [answer], "tools": careful, "previous_response_id": first.id, "background": True}
        started = (await api.client.post(URL, json=body)).json()
        later = typed_events((await api.client.get(f"{URL}/{started['id']}?stream=true")).text)
        assert "response.mcp_call.completed" in [event["type"] for event in later]
        assert later[-1]["type"] == "response.completed"


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_errors_are_failed_items_of_the_response(serve: Serve, stream: bool) -> None:
    replies = {
        "Fail": tool_call("calc__fail", why="no bread"),
        "tool:no bread": "No bread.",
        "Both": tool_call("calc__add", a=1, b=1) + "\n" + tool_call("calc__fail", why="one"),
        "tool:one": "Half.",
    }
    async with serving(serve, replies) as (api, _):
        failed = (await create_response(api, "Fail", stream=stream)).output[1]
        assert (failed.type, failed.status, failed.output) == ("mcp_call", "failed", None)  # type: ignore[union-attr]
        assert failed.error.type == "mcp_tool_execution_error"  # type: ignore[union-attr]
        both = await create_response(api, "Both", stream=stream)
        assert [item.status for item in both.output[1:3]] == ["completed", "failed"]  # type: ignore[union-attr]
        assert both.output_text == "Half."


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_call_that_times_out_is_cancelled_and_fails(serve: Serve, stream: bool) -> None:
    replies = {"Go": tool_call("calc__wait"), "tool:Error: no answer within 0.2 s": "Too slow."}
    waits = {"name": "wait", "input_schema": {"type": "object"}}
    listed = {"type": "mcp_list_tools", "id": "l", "server_label": "calc", "tools": [waits]}
    async with serving(serve, replies, timeout_ms=200) as (api, tools):
        slow = await create_response(api, [listed, user("Go")], stream=stream)
        assert slow.output[0].error.type == "http_error"  # type: ignore[union-attr]
        assert slow.output_text == "Too slow."
        if tools.started.is_set():  # on a slow machine the timeout may expire before the call reaches the tool
            await tools.cancelled.wait()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "mcp", "server_label": "gone"}], ids=str)
async def test_unreachable_mcp_server_does_not_fail_the_response(serve: Serve, stream: bool, choice: Any) -> None:
    server = {"mcp_servers": {"gone": {"command": "/nonexistent"}}, "mcp_api": "*"}
    async with serve(answering({"Hi": "Hello."}, n_ctx=16384), models=CHATML, server=server) as api:
        response = await create_response(api, "Hi", tools=[mcp("gone")], tool_choice=choice, stream=stream)
        assert "could not be listed" in response.output[0].error  # type: ignore[union-attr,operator]
        assert response.output_text == "Hello."


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_rounds_and_calls_per_response_are_limited(serve: Serve, stream: bool) -> None:
    again = tool_call("calc__add", a=1, b=2)
    async with serving(serve, {"Add": again, "tool:3": again}, mcp_max_rounds=2) as (api, tools):
        response = await create_response(api, "Add", stream=stream)
        assert item_types(response)[:3] == ["mcp_list_tools", "mcp_call", "mcp_call"]
        assert len(tools.calls) == 2
        tools.calls.clear()
        await create_response(api, "Add", stream=stream, max_tool_calls=1)
        assert len(tools.calls) == 1


async def test_duplicate_or_unparsable_tool_names_are_replaced(serve: Serve) -> None:
    replies = {"Odd": tool_call("calc__a_b_c"), "tool:odd": "Odd.", "Own": tool_call("calc__add", a=1, b=2)}
    own = {"type": "function", "name": "calc__add", "parameters": {"type": "object"}}
    async with serving(serve, replies) as (api, tools):
        assert (await create_response(api, "Odd")).output_text == "Odd."
        assert tools.calls == [("a/b:c", ())]
        response = await create_response(api, "Own", tools=[mcp(), own])
        assert item_types(response) == ["mcp_list_tools", "function_call"]
        assert len(tools.calls) == 1


async def test_allowed_tools_and_tool_choice_select_mcp_tools(serve: Serve) -> None:
    async with serving(serve, SUM) as (api, _):
        few = await create_response(api, "Add", tools=[mcp(allowed_tools=["add", "fail"])])
        assert {tool.name for tool in few.output[0].tools} == {"add", "fail"}  # type: ignore[union-attr]
        only = await create_response(api, "Add", tools=[mcp(allowed_tools={"read_only": True})])
        assert {tool.name for tool in only.output[0].tools} == {"add"}  # type: ignore[union-attr]
        chosen = {"type": "mcp", "server_label": "calc", "name": "add"}
        forced = await create_response(api, "Add", tool_choice=chosen)
        assert (item_types(forced)[1], forced.output_text) == ("mcp_call", "It is 3.")
        assert forced.tool_choice.model_dump(exclude_none=True) == chosen  # type: ignore[union-attr]


async def test_long_tool_results_are_truncated_and_images_become_placeholders(serve: Serve) -> None:
    replies = {"Huge": tool_call("calc__huge", n=3_000_000), "See": tool_call("calc__image")}
    async with serving(serve, replies, mcp_max_chars=1000) as (api, _):
        truncated = (await create_response(api, "Huge")).output[1].output  # type: ignore[union-attr]
        assert truncated.endswith("[cut off: 2999000 more characters]")  # type: ignore[union-attr]
        placeholder = (await create_response(api, "See")).output[1].output  # type: ignore[union-attr]
        assert placeholder == "a dot\n[image image/png]"


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"truncation": "auto"}], ids=str)
async def test_result_that_exceeds_the_context_is_shortened_for_the_model(serve: Serve, fields: Any) -> None:
    ends = {"Huge": tool_call("calc__huge", n=50_000), " more characters]\n</tool_response>": "Long."}
    async with serving(serve, ends) as (api, _):
        response = await create_response(api, "Huge", **fields)
        assert (item_types(response), response.output_text) == (["mcp_list_tools", "mcp_call", "message"], "Long.")
        assert response.output[1].output == "x" * 50_000  # type: ignore[union-attr]
        assert response.usage is not None
        assert response.usage.total_tokens - response.usage.output_tokens > 14_000
        message = await create_message(api, "Huge", stream="stream" in fields)
        assert message.content[-1].text == "Long."  # type: ignore[union-attr]


async def test_round_whose_results_fit_is_prepared_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.chat.truncation.render", None)  # it counts the tokens of shorter prompts
    ends = {"Huge": tool_call("calc__huge", n=5000), "x\n</tool_response>": "Short."}
    async with serving(serve, ends) as (api, _):
        assert (await create_response(api, "Huge")).output_text == "Short."


async def test_no_slot_is_held_during_a_tool_call_and_a_disconnect_cancels_it(serve: Serve) -> None:
    async with serving(serve, {"Wait": tool_call("calc__wait")}) as (api, tools):
        body = {"input": "Wait", "tools": [mcp()], "max_output_tokens": 100}
        for stream in (False, True):
            tools.started.clear()
            tools.cancelled.clear()
            async with posting(api.app, URL, body | {"stream": stream}) as exchange:
                await tools.started.wait()
                await idle(api.loaded())
                exchange.disconnect()
                await tools.cancelled.wait()


KEYS = """
keys:
  - {{name: all, hash: "{0}", mcp: ["calc", "127.0.0.1"]}}
  - {{name: none, hash: "{1}"}}
"""


async def test_key_and_settings_restrict_the_mcp_servers_of_requests(serve: Serve, tmp_path: Any) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(KEYS.format(hash_of("all"), hash_of("none")))
    async with served(Tools()) as url:
        known = {"calc": {"url": url}, "secret": {"url": url}}
        server = {"keys_file": str(file), "mcp_servers": known, "mcp_api": "calc", "mcp_hosts": "127.0.0.1"}
        async with serve(answering(SUM, n_ctx=16384), models=CHATML, server=server) as api:
            headers = {"authorization": "t", "headers": {"X-A": "b"}}
            for key, tool, status, message in (
                ("all", mcp(), 200, '"error":null'),
                ("all", mcp("x", server_url=url, **headers), 200, '"error":null'),
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
                await api.expect(f"POST {URL}", body, status, message, {"authorization": f"Bearer {key}"})
            unknown = {"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": True}
            body = {"input": [unknown], "tools": [mcp()]}
            await api.expect(f"POST {URL}", body, 400, "no approval request", {"authorization": "Bearer all"})


async def test_secrets_of_mcp_tools_are_neither_returned_nor_stored(serve: Serve) -> None:
    async with serving(serve, SUM, mcp_hosts="127.0.0.1") as (api, tools), served(tools) as url:
        secrets = {"authorization": "SECRET1", "headers": {"X-Key": "SECRET2"}, "authorization_token": "SECRET3"}
        tool = mcp("calc2", server_url=f"{url}?key=SECRET4", **secrets)
        reply = await api.expect(f"POST {URL}", {"input": "Hi", "tools": [tool], "max_output_tokens": 16})
        stored = await api.client.get(f"{URL}/{reply.json()['id']}")
        for returned in (reply, stored):
            assert "SECRET" not in returned.text
            (tool,) = returned.json()["tools"]
            assert tool == {**mcp("calc2"), "server_url": url.removesuffix("/mcp"), "headers": None}


async def test_mcp_tools_are_ignored_with_a_warning_if_the_server_allows_none(serve: Serve) -> None:
    async with serving(serve, {"Hi": "Hello."}, mcp_api="") as (api, _):
        for tool in (mcp(), {"type": "web_search"}):
            reply = await api.expect(f"POST {URL}", {"input": "Hi", "tools": [tool]})
            assert tool["type"] in reply.headers["x-llamapool-warning"]


@pytest.mark.parametrize("stream", [False, True])
async def test_images_of_tool_results_are_passed_to_multimodal_models(serve: Serve, stream: bool) -> None:
    replies = {"See": tool_call("calc__image"), "tool:a dot(image 16x12)": "I see it."}
    loader = answering(replies, n_ctx=16384, media=frozenset({"image"}))
    async with serving(serve, loader) as (api, _):
        response = await create_response(api, "See", stream=stream)
        assert response.output_text == "I see it."


MESSAGE = TypeAdapter[BetaMessage](BetaMessage)
MESSAGE_EVENT = TypeAdapter[BetaRawMessageStreamEvent](BetaRawMessageStreamEvent)
OLD = {"anthropic-beta": "mcp-client-2025-04-04"}
NEW = {"anthropic-beta": "mcp-client-2025-11-20"}


def server_entry(name: str = "calc", **fields: Any) -> dict[str, Any]:
    return {"type": "url", "name": name, "url": "", **fields}


async def post_message(api: Api, content: Any, headers: dict[str, str] = OLD, **fields: Any) -> Any:
    messages = [user(content)] if isinstance(content, str) else content
    body = {"model": "demo", "max_tokens": 500, "messages": messages, "mcp_servers": [server_entry()], **fields}
    return await api.client.post("/v1/messages", json=body, headers=headers)


async def create_message(api: Api, content: Any, *, stream: bool = False, **fields: Any) -> BetaMessage:
    """Create a message. A stream is assembled from its events."""
    reply = await post_message(api, content, stream=stream, **fields)
    assert reply.status_code == 200, reply.text
    return MESSAGE.validate_python(whole_message(typed_events(reply.text, MESSAGE_EVENT)) if stream else reply.json())


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_rounds_are_blocks_of_one_message(serve: Serve, stream: bool) -> None:
    async with serving(serve, SUM | {"Again": "Still 3."}) as (api, tools):
        message = await create_message(api, "Add", stream=stream, tool_choice={"type": "any"})
        assert [block.type for block in message.content] == ["mcp_tool_use", "mcp_tool_result", "text"]
        use, result, text = message.content
        assert (use.name, use.server_name, use.input) == ("add", "calc", {"a": 1, "b": 2})  # type: ignore[union-attr]
        assert result.tool_use_id == use.id  # type: ignore[union-attr]
        assert (result.is_error, result.content[0].text) == (False, "3")  # type: ignore[union-attr,index]
        assert (text.text, message.stop_reason) == ("It is 3.", "end_turn")  # type: ignore[union-attr]
        assert (message.usage.cache_read_input_tokens or 0) > 0  # by the second round
        assert tools.calls == [("add", (1, 2))]
        blocks = [block.model_dump(exclude_none=True) for block in message.content]
        history = [user("Add"), {"role": "assistant", "content": blocks}]
        again = await create_message(api, [*history, user("Again")], stream=stream)
        assert again.content[0].text == "Still 3."  # type: ignore[union-attr]


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_errors_are_blocks_and_client_tool_calls_end_the_message(serve: Serve, stream: bool) -> None:
    own = {"name": "own", "input_schema": {"type": "object"}}
    replies = {
        "Fail": tool_call("calc__fail", why="no bread"),
        "tool:no bread": "No bread.",
        "Both": tool_call("calc__add", a=1, b=2) + "\n" + tool_call("own"),
    }
    async with serving(serve, replies) as (api, tools):
        failed = await create_message(api, "Fail", stream=stream)
        assert failed.content[1].is_error is True  # type: ignore[union-attr]
        assert failed.content[2].text == "No bread."  # type: ignore[union-attr]
        both = await create_message(api, "Both", stream=stream, tools=[own])
        assert [block.type for block in both.content] == ["mcp_tool_use", "tool_use", "mcp_tool_result"]
        assert both.stop_reason == "tool_use"
        assert tools.calls == [("add", (1, 2))]


@pytest.mark.parametrize("stream", [False, True])
async def test_message_lists_the_tools_and_later_requests_reuse_the_list(serve: Serve, stream: bool) -> None:
    """With a toolset the reply starts with the listing. A client that returns it saves the next listing."""
    toolset = {"type": "mcp_toolset", "mcp_server_name": "calc"}
    async with serving(serve, SUM | {"Again": "Still 3."}) as (api, tools):
        message = await create_message(api, "Add", stream=stream, tools=[toolset], headers=NEW)
        listing = message.content[0]
        assert listing.type == "mcp_tool_listing"
        assert listing.mcp_server_name == "calc"
        assert "add" in {tool.name for tool in listing.tools}
        assert [block.type for block in message.content[1:]] == ["mcp_tool_use", "mcp_tool_result", "text"]
        blocks = [block.model_dump(exclude_none=True) for block in message.content]
        history = [user("Add"), {"role": "assistant", "content": blocks}]
        again = await create_message(api, [*history, user("Again")], tools=[toolset], headers=NEW)
        assert [block.type for block in again.content] == ["text"]
        assert tools.calls == [("add", (1, 2))]
        blocks[0]["tools"] = []  # an empty list from the client must be used: the prompt is shorter
        shorter = await create_message(api, [*history, user("Again")], tools=[toolset], headers=NEW)
        used = [reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) for reply in (shorter, again)]
        assert used[0] < used[1]
        invalid = [{"role": "user", "content": [{"type": "mcp_tool_listing", "mcp_server_name": "calc", "tools": []}]}]
        assert (await post_message(api, invalid, headers=NEW, tools=[toolset])).status_code == 400


async def test_toolsets_and_tool_configurations_select_mcp_tools(serve: Serve) -> None:
    only = {"default_config": {"enabled": False}, "configs": {"add": {"enabled": True}}}
    toolset = {"type": "mcp_toolset", "mcp_server_name": "calc"}
    pinned = {**toolset, "tools": [{"name": "add", "input_schema": {"type": "object"}}]}
    async with serving(serve, SUM) as (api, tools):
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"mcp_servers": [server_entry(tool_configuration={"allowed_tools": ["add"]})]}, []),
            ({"tools": [{**toolset, **only}], "headers": NEW}, ["mcp_tool_listing"]),
            ({"tools": [pinned], "headers": NEW}, []),
        ]
        for fields, listed in cases:
            types = [block.type for block in (await create_message(api, "Add", **fields)).content]
            assert types[-3:] == ["mcp_tool_use", "mcp_tool_result", "text"]
            assert types[:-3] == listed
        assert len(tools.calls) == 3
        counted = {"messages": [user("Add")], "mcp_servers": [server_entry()]}
        with_tools = (await api.client.post("/v1/messages/count_tokens", json=counted)).json()["input_tokens"]
        del counted["mcp_servers"]
        assert with_tools > (await api.client.post("/v1/messages/count_tokens", json=counted)).json()["input_tokens"]
        for invalid, message in (
            ({"headers": NEW}, "mcp_servers.0.name: no mcp_toolset"),
            ({"tools": [{**toolset, "mcp_server_name": "x"}]}, "tools.0.mcp_server_name"),
            ({"mcp_servers": [server_entry("x")]}, "mcp_servers.0.name: no MCP server is called 'x'"),
            ({"mcp_servers": [server_entry(url="http://10.0.0.1/")]}, "mcp_servers.0.url"),
            ({"mcp_servers": [server_entry(authorization_token=5)]}, "mcp_servers.0.authorization_token"),
            ({"mcp_servers": [server_entry(type="stdio")]}, "mcp_servers.0.type"),
            ({"mcp_servers": [server_entry(), server_entry()]}, "mcp_servers.1.name"),
            ({"mcp_servers": "calc"}, "mcp_servers"),
            ({"tools": [{**toolset, "configs": {"add": {"enabled": 5}}}]}, "tools.0.configs.add.enabled"),
        ):
            reply = await post_message(api, "Add", **invalid)
            assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
            assert message in reply.text


async def test_unreachable_mcp_server_is_a_warning_in_messages(serve: Serve) -> None:
    config: dict[str, Any] = {"mcp_servers": {"gone": {"command": "/nonexistent"}}, "mcp_api": "*"}
    async with serving(serve, {"Hi": "Hello."}, **config) as (api, _):
        reply = await post_message(api, "Hi", mcp_servers=[server_entry("gone")], tool_choice={"type": "any"})
        assert reply.json()["content"][0]["text"] == "Hello."
        assert "could not be listed" in reply.headers["x-llamapool-warning"]
