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

URL = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HI = {"role": "user", "content": "Hi"}
BODY: dict[str, Any] = {"model": "demo", "max_tokens": 200, "messages": [HI]}
TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}
CALL = tool_call("look", at="sky")
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def with_tools(**replies: str) -> dict[str, Any]:
    """What `serve` needs for a model whose template knows tools."""
    return {"loader": answering(replies), "models": CHATML}


async def message(api: Api, **more: object) -> Any:
    reply = await api.expect(f"POST {URL}", {**BODY, **more})
    Message.model_validate(reply.json())
    return reply.json()


async def events(api: Api, **more: object) -> list[Any]:
    """The parsed events of a stream; each is one that the official client knows, under its own name."""
    reply = await api.expect(f"POST {URL}", {**BODY, **more, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    return typed_events(reply.text, EVENT)


async def test_a_tool_that_was_found_is_used_and_leaves_the_cached_prompt_as_it_is(serve: Serve) -> None:
    search = {"name": "search", "description": "Finds tools. " * 20, "input_schema": {"type": "object"}}
    use = {"type": "tool_use", "id": "c1", "name": "search", "input": {}}
    found = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "tool_reference", "tool_name": "look"}]}
    turns = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [found]}]
    async with serve(**with_tools(Hi="No.", **{"</tool_response>": CALL})) as api:
        await message(api, tools=[search])
        answer = await message(api, tools=[search, {**TOOL, "defer_loading": True}], messages=turns)
    assert [(block["type"], block["name"]) for block in answer["content"]] == [("tool_use", "look")]
    assert answer["usage"]["cache_read_input_tokens"] > answer["usage"]["input_tokens"]


async def test_two_calls_are_two_blocks_unless_only_one_may_come(serve: Serve) -> None:
    async with serve(**with_tools(Hi=f"{CALL}\n{CALL}")) as api:
        both = await message(api, tools=[TOOL])
        one = await message(api, tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [len(found["content"]) for found in (both, one)] == [2, 1]


async def test_a_full_context_is_its_own_reason(serve: Serve) -> None:
    async with serve(FakeLoader(replies={f"Hi{TURN}": "x" * 500})) as api:
        found, streamed = await message(api, max_tokens=64000), await events(api, max_tokens=64000)
        exact = await message(api, max_tokens=found["usage"]["output_tokens"])
    assert found["stop_reason"] == streamed[-2]["delta"]["stop_reason"] == "model_context_window_exceeded"
    assert exact["stop_reason"] == "max_tokens"


async def test_only_what_continues_the_beginning_of_an_answer_comes_back(serve: Serve) -> None:
    async with serve(FakeLoader(replies={"assistant\nHello": " there!"})) as api:
        found = await message(api, messages=[HI, {"role": "assistant", "content": "Hello"}])
        for nothing in ([], [{"role": "user", "content": []}]):  # a conversation may have no message yet
            assert (await message(api, messages=nothing, max_tokens=None))["role"] == "assistant"
    assert found["content"] == [{"type": "text", "text": " there!"}]


@pytest.mark.parametrize("path", [URL, COUNT])
async def test_fields_of_other_apis_and_headers_are_ignored(client: httpx.AsyncClient, path: str) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "x-2025"}
    more = {"metadata": {"user_id": "me"}, "context_management": {"edits": []}, "n": 5, "frobnicate": True}
    reply = await client.post(f"{path}?beta=true", json={**BODY, **more}, headers=headers)
    assert reply.status_code == 200
    assert reply.headers["X-Llamapool-Warning"] == "; ".join(
        f"'{name}' is ignored: unknown field" for name in ("n", "frobnicate")
    )


async def test_a_replys_id_has_the_name_that_anthropics_clients_read(client: httpx.AsyncClient) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    for body in (BODY, {**BODY, "max_tokens": -1}):
        reply = await client.post(URL, json=body, headers=headers)
        assert reply.headers["request-id"] == reply.headers["x-request-id"]
        assert reply.json().get("request_id", reply.headers["request-id"]) == reply.headers["request-id"]
    assert "request-id" not in (await client.post(URL, json=BODY)).headers


@pytest.mark.parametrize("stream", [False, True])
async def test_what_no_model_can_use_is_left_out_and_named_in_a_header(serve: Serve, stream: bool) -> None:
    upload = {"type": "container_upload", "file_id": "f"}
    said = {"role": "user", "content": [{"type": "text", "text": "Hi"}, upload]}
    servers = [{"type": "url", "name": "x", "url": "https://a.example"}]
    body = {**BODY, "messages": [said], "tools": [SEARCH], "mcp_servers": servers, "tfs_z": 0.5, "stream": stream}
    async with serve(answering({})) as api:
        reply = await api.expect(f"POST {URL}", body)
    assert reply.headers["X-Llamapool-Warning"].split("; ") == [
        "mcp_servers is ignored: this server allows no MCP servers",
        "blocks of type 'container_upload' are left out",
        "tools of type 'web_search_20250305' are left out: only the provider's servers execute them",
        "tfs_z is ignored: llama.cpp has no tail free sampling any more",
    ]


async def test_what_a_model_cannot_see_is_told_it_where_nobody_can_take_it_back(serve: Serve) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    seen = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a.png"}, image]}
    turns = [
        {"role": "user", "content": [image, PDF]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [seen, {"type": "text", "text": "Hi"}]},
    ]
    async with serve(FakeLoader(n_ctx_seq=2048)) as api:
        warning = (await api.expect(f"POST {URL}", {**BODY, "messages": turns})).headers["X-Llamapool-Warning"]
        await api.expect(f"POST {COUNT}", {"messages": turns[:2]}, 400)  # the newest of the user's
    assert warning.count("not shown, this model takes none]") == 2
    assert "[document: not shown, it could not be read]" in warning


def claude_code(session: str, question: str) -> dict[str, Any]:
    """The first request of a session of Claude Code 2.1.330, without its texts."""
    cached = {"cache_control": {"type": "ephemeral"}}
    stamp = f"x-anthropic-billing-header: cc_version=2.1.330.{session}; cc_entrypoint=sdk-cli;"
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
            "metadata": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}},
            "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
        },
        "required": ["limit"],
        "additionalProperties": False,
    }
    empty = {"type": "object", "properties": {}}

    def text(words: str, **more: Any) -> dict[str, Any]:
        return {"type": "text", "text": words, **more}

    return {
        "model": "claude-opus-4-8",
        "messages": [
            {"role": "user", "content": [text("Today."), text(question, **cached)]},
            {"role": "system", "content": [text("Agents.", **cached)], "output_config": {"effort": "medium"}},
        ],
        "system": [text(stamp), text("You are an agent. " * 5, **cached)],
        "tools": [
            {"name": "Read", "description": "Reads.", "input_schema": schema},
            {"name": "DeferredToolPlaceholder", "description": "Never.", "input_schema": empty, "defer_loading": True},
        ],
        "metadata": {"user_id": orjson.dumps({"device_id": "d", "account_uuid": "", "session_id": session}).decode()},
        "max_tokens": 64000,
        "thinking": {"type": "adaptive", "display": "updates"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "stream": True,
    }


async def test_sessions_of_claude_code_share_their_cached_prompt(serve: Serve) -> None:
    """Its requests as they are: nothing is left out, nothing is wrong."""
    said: list[dict[str, Any]] = []
    async with serve(FakeLoader(n_ctx_seq=2048), models=CHATML) as api:
        for session, question in (("1c0", "Hello?"), ("8a5", "Anybody?")):
            reply = await api.expect(f"POST {URL}?beta=true", claude_code(session, question))
            assert "X-Llamapool-Warning" not in reply.headers
            parts = typed_events(reply.text)
            assert parts[-1]["type"] == "message_stop"
            said.append(parts[0]["message"]["usage"])
    again = said[1]
    assert again["cache_read_input_tokens"] > 0.8 * sum(again.values())


async def test_models_are_listed_in_anthropics_words_too(serve: Serve) -> None:
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
        known = ModelInfo.model_validate(model)
        assert (known.display_name, int(known.created_at.timestamp())) == (model["id"], model["created"])
    assert {"has_more", "first_id"}.isdisjoint(plain)
    assert "display_name" not in plain["data"][0]
