"""Features of Anthropic's Messages API that other dialects do not have, and recorded requests of Claude Code."""

from typing import Any

import httpx
import orjson
import pytest
from anthropic.types import Message, ModelInfo, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.api.conftest import Api, Serve
from tests.api.scripted import CHATML, TURN, answering, tool_call
from tests.api.streams import typed_events
from tests.support.fakes import FakeLoader
from tests.support.real_server import ROOT

URL = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HI = {"role": "user", "content": "Hi"}
BODY: dict[str, Any] = {"model": "demo", "max_tokens": 200, "messages": [HI]}
TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}
CALL = tool_call("look", at="sky")
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
RECORDED = ROOT / "tests/unit/dialects/recorded/claude-code.json"


def with_tools(**replies: str) -> dict[str, Any]:
    """Return arguments of `serve` for a model whose template supports tools, with scripted replies."""
    return {"loader": answering(replies), "models": CHATML}


async def create_message(api: Api, **fields: object) -> Any:
    reply = await api.expect(f"POST {URL}", {**BODY, **fields})
    Message.model_validate(reply.json())
    return reply.json()


async def stream_message(api: Api, **fields: object) -> list[Any]:
    """Return the events of a stream, validated by the types of Anthropic's client."""
    reply = await api.expect(f"POST {URL}", {**BODY, **fields, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    return typed_events(reply.text, EVENT)


async def test_deferred_tool_is_callable_after_a_reference_and_keeps_the_prefix_cached(serve: Serve) -> None:
    search = {"name": "search", "description": "Finds tools. " * 20, "input_schema": {"type": "object"}}
    use = {"type": "tool_use", "id": "c1", "name": "search", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "tool_reference", "tool_name": "look"}]}
    turns = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    async with serve(**with_tools(Hi="No.", **{"</tool_response>": CALL})) as api:
        await create_message(api, tools=[search])
        answer = await create_message(api, tools=[search, {**TOOL, "defer_loading": True}], messages=turns)
    assert [(block["type"], block["name"]) for block in answer["content"]] == [("tool_use", "look")]
    assert answer["usage"]["cache_read_input_tokens"] > answer["usage"]["input_tokens"]


async def test_disable_parallel_tool_use_limits_the_message_to_one_call(serve: Serve) -> None:
    async with serve(**with_tools(Hi=f"{CALL}\n{CALL}")) as api:
        both = await create_message(api, tools=[TOOL])
        one = await create_message(api, tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [len(message["content"]) for message in (both, one)] == [2, 1]


async def test_full_context_has_its_own_stop_reason(serve: Serve) -> None:
    async with serve(FakeLoader(replies={f"Hi{TURN}": "x" * 500})) as api:
        message, streamed = await create_message(api, max_tokens=64000), await stream_message(api, max_tokens=64000)
        exact = await create_message(api, max_tokens=message["usage"]["output_tokens"])
    assert message["stop_reason"] == streamed[-2]["delta"]["stop_reason"] == "model_context_window_exceeded"
    assert exact["stop_reason"] == "max_tokens"


async def test_assistant_prefill_is_continued_and_not_repeated(serve: Serve) -> None:
    async with serve(FakeLoader(replies={"assistant\nHello": " there!"})) as api:
        message = await create_message(api, messages=[HI, {"role": "assistant", "content": "Hello"}])
    assert message["content"] == [{"type": "text", "text": " there!"}]


async def test_conversation_without_messages_gets_a_reply(api: Api) -> None:
    for messages in ([], [{"role": "user", "content": []}]):
        assert (await create_message(api, messages=messages, max_tokens=None))["role"] == "assistant"


@pytest.mark.parametrize("path", [URL, COUNT])
async def test_unknown_fields_are_ignored_with_a_warning(api: Api, path: str) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "x-2025"}
    known = {"metadata": {"user_id": "me"}, "context_management": {"edits": []}}
    body = {**BODY, **known, "n": 5, "frobnicate": True}
    reply = await api.expect(f"POST {path}?beta=true", body, headers=headers)
    warning = "'n' is ignored: unknown field; 'frobnicate' is ignored: unknown field"
    assert reply.headers["X-Llamapool-Warning"] == warning


async def test_request_id_header_has_anthropics_name_for_anthropic_clients(client: httpx.AsyncClient) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    for body in (BODY, {**BODY, "max_tokens": -1}):
        reply = await client.post(URL, json=body, headers=headers)
        assert reply.headers["request-id"] == reply.headers["x-request-id"]
        assert reply.json().get("request_id", reply.headers["request-id"]) == reply.headers["request-id"]
    assert "request-id" not in (await client.post(URL, json=BODY)).headers


@pytest.mark.parametrize("stream", [False, True])
async def test_unusable_blocks_tools_and_fields_are_listed_in_the_warning_header(serve: Serve, stream: bool) -> None:
    upload = {"type": "container_upload", "file_id": "f"}
    user = {"role": "user", "content": [{"type": "text", "text": "Hi"}, upload]}
    servers = [{"type": "url", "name": "x", "url": "https://a.example"}]
    body = {**BODY, "messages": [user], "tools": [SEARCH], "mcp_servers": servers, "tfs_z": 0.5, "stream": stream}
    async with serve(answering({})) as api:
        reply = await api.expect(f"POST {URL}", body)
    assert reply.headers["X-Llamapool-Warning"].split("; ") == [
        "mcp_servers is ignored: this server allows no MCP servers",
        "blocks of type 'container_upload' are left out",
        "tools of type 'web_search_20250305' are left out: only the provider's servers execute them",
        "tfs_z is ignored: llama.cpp has no tail free sampling any more",
    ]


async def test_media_in_the_history_become_placeholders_for_a_text_only_model(serve: Serve) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a.png"}, image]}
    turns = [
        {"role": "user", "content": [image, PDF]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result, {"type": "text", "text": "Hi"}]},
    ]
    async with serve(FakeLoader(n_ctx_seq=2048)) as api:
        warning = (await api.expect(f"POST {URL}", {**BODY, "messages": turns})).headers["X-Llamapool-Warning"]
        await api.expect(f"POST {COUNT}", {"messages": turns[:2]}, 400)  # media in the last user turn are an error
    assert warning.count("not shown, this model takes none]") == 2
    assert "[document: not shown, it could not be read]" in warning


def claude_code(session: str, question: str) -> dict[str, Any]:
    """Return the recorded first request of a Claude Code session, with its billing header and this question."""
    recorded = orjson.loads(RECORDED.read_bytes())
    body: dict[str, Any] = next(each["body"] for each in recorded if len(each["body"]["messages"]) == 2)
    stamp = f"x-anthropic-billing-header: cc_version=2.1.330.{session}; cc_entrypoint=sdk-cli;"
    body["system"][0]["text"] = stamp
    body["messages"][0]["content"][-1]["text"] = question
    body["metadata"]["user_id"] = orjson.dumps({"device_id": "d", "account_uuid": "", "session_id": session}).decode()
    return body


async def test_claude_code_sessions_share_their_cached_prefix_without_warnings(serve: Serve) -> None:
    usages: list[dict[str, Any]] = []
    async with serve(FakeLoader(n_ctx_seq=4096, replies={"assistant\n": "Hi"}), models=CHATML) as api:
        for session, question in (("1c0", "Hello?"), ("8a5", "Anybody?")):
            reply = await api.expect(f"POST {URL}?beta=true", claude_code(session, question))
            assert "X-Llamapool-Warning" not in reply.headers
            parts = typed_events(reply.text)
            assert parts[-1]["type"] == "message_stop"
            usages.append(parts[0]["message"]["usage"])
    assert usages[1]["cache_read_input_tokens"] > 0.8 * sum(usages[1].values())


async def test_errors_of_shared_paths_have_anthropics_format_for_its_clients(api: Api) -> None:
    headers, kind = {"anthropic-version": "2023-06-01"}, {"error": {"type": "not_found_error"}}
    for request in ("GET /v1/models/gpt-9", "GET /v1/files/file-9", "DELETE /v1/files/file-9"):
        await api.expect(request, None, 404, {"type": "error", **kind}, headers)
        await api.expect(request, None, 404, {"error": {"param": None if "files" in request else "model"}})


async def test_models_are_listed_in_anthropics_format_for_its_clients(serve: Serve) -> None:
    models = {"one": {"path": "one.gguf", "load": "startup"}, "two": {"path": "two.gguf", "load": "on_demand"}}
    headers = {"anthropic-version": "2023-06-01"}
    page = {"has_more": False, "first_id": "one", "last_id": "two"}
    async with serve(models=models) as api:
        listed = (await api.expect("GET /v1/models?limit=1000", None, 200, page, headers)).json()
        plain = (await api.client.get("/v1/models")).json()
        one, two = [(await api.client.get(f"/v1/models/{name}", headers=headers)).json() for name in models]
    assert [model["id"] for model in listed["data"]] == [one["id"], two["id"]] == ["one", "two"]
    assert (one["max_input_tokens"], two["max_input_tokens"]) == (256, None)
    for model in (one, two):
        info = ModelInfo.model_validate(model)
        assert (info.display_name, int(info.created_at.timestamp())) == (model["id"], model["created"])
    assert {"has_more", "first_id"}.isdisjoint(plain)
    assert "display_name" not in plain["data"][0]
