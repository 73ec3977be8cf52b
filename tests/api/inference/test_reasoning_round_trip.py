"""Encrypted reasoning that clients send back (Messages signatures, Responses items) is part of the next prompt."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from server.templates.built_in import source_of
from tests.api.conftest import Serve
from tests.api.inference.test_tool_calls import create_message
from tests.api.scripted import answering, tool_call
from tests.api.streams import typed_events
from tests.support.fakes import FakeLoader

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
TEMPLATE = source_of("chatml").replace(
    "+ message.role + '\\n' + message.content }}",
    "+ message.role + '\\n' }}"
    "{%- if message.reasoning_content %}"
    "{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{{- message.content }}",
)
MODELS = {"demo": {"path": "demo.gguf", "load": "startup", "chat_template": TEMPLATE}}
N_ROUNDS = 3
REASONING = [f"Round {n}: the sky is far, so I must look at it again, and longer." for n in range(N_ROUNDS)]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
ANTHROPIC_TOOL = {"name": "look", "input_schema": SCHEMA}
OPENAI_TOOL = {"type": "function", "name": "look", "parameters": SCHEMA}


def reasoning_model() -> FakeLoader:
    """Return a loader of a model that reasons and calls a tool in three rounds, and then answers."""
    outputs = [f"<think>\n{text}\n</think>\n\n{tool_call('look', n=n)}" for n, text in enumerate(REASONING)]
    ends = ["Hi", *(f"tool:result {n}" for n in range(N_ROUNDS))]
    return answering(dict(zip(ends, [*outputs, "It is blue."], strict=True)), n_ctx=4096)


async def count_tokens(client: httpx.AsyncClient, body: Mapping[str, Any]) -> int:
    reply = await client.post(f"{MESSAGES}/count_tokens", json=body)
    return int(reply.json()["input_tokens"])


@pytest.mark.parametrize("display", ["summarized", "omitted"])
@pytest.mark.parametrize("stream", [False, True])
async def test_tool_loop_of_messages_keeps_its_reasoning(serve: Serve, stream: bool, display: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "Hi"}]
    thinking = {"type": "adaptive", "display": display}
    body = {"model": "demo", "max_tokens": 400, "tools": [ANTHROPIC_TOOL], "thinking": thinking, "messages": messages}
    async with serve(reasoning_model(), models=MODELS) as api:
        for n in range(N_ROUNDS):
            content = (await create_message(api, **body, stream=stream))["content"]
            assert [block["type"] for block in content] == ["thinking", "tool_use"]
            assert content[0]["thinking"] == (REASONING[n] if display == "summarized" else "")
            assert REASONING[n] not in content[0]["signature"]
            result = {"type": "tool_result", "tool_use_id": content[1]["id"], "content": f"result {n}"}
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        last = await create_message(api, **body, stream=stream)
        assert last["content"][-1] == {"type": "text", "text": "It is blue."}
        n_tokens = await count_tokens(api.client, body)
        for message in messages[1::2]:
            message["content"] = message["content"][1:]
        n_without = await count_tokens(api.client, body)
    # each byte is a token of the fake vocabulary
    n_rendered = sum(len(f"<think>\n{text}\n</think>\n\n") for text in REASONING)
    assert (n_tokens, n_tokens - n_without) == (last["usage"]["input_tokens"] + cached(last), n_rendered)


def cached(message: Any) -> int:
    return int(message["usage"]["cache_read_input_tokens"])


async def create_response(client: httpx.AsyncClient, body: Mapping[str, Any], *, stream: bool) -> tuple[Any, list[Any]]:
    """Create a response without warnings. Return it, and its events if it is streamed."""
    reply = await client.post(RESPONSES, json={**body, "stream": stream})
    assert (reply.status_code, reply.headers.get("X-Llamapool-Warning")) == (200, None), reply.text
    events = typed_events(reply.text, TypeAdapter(ResponseStreamEvent)) if stream else []
    response = events[-1]["response"] if stream else reply.json()
    TypeAdapter(Response).validate_python(response)
    return response, events


@pytest.mark.parametrize("stream", [False, True])
async def test_stateless_tool_loop_of_responses_keeps_its_reasoning(serve: Serve, stream: bool) -> None:
    """Codex sends ``store: false``, shows the summary, and returns only the encrypted content."""
    items: list[Any] = [{"role": "user", "content": "Hi"}]
    body = {"input": items, "tools": [OPENAI_TOOL], "store": False, "reasoning": {"summary": "auto"}}
    async with serve(reasoning_model(), models=MODELS) as api:
        for n in range(N_ROUNDS):
            response, events = await create_response(api.client, body, stream=stream)
            reasoning, call = response["output"]
            assert (reasoning["type"], reasoning["content"]) == ("reasoning", [])
            assert reasoning["summary"] == [{"type": "summary_text", "text": REASONING[n]}]
            if stream:
                [done] = [event["item"] for event in events if event["type"] == "response.output_item.done"][:1]
                assert done == reasoning
            items += [
                {**reasoning, "summary": [], "content": None},
                call,
                {"type": "function_call_output", "call_id": call["call_id"], "output": f"result {n}"},
            ]
        last, _ = await create_response(api.client, body, stream=stream)
        assert last["output"][-1]["content"][0]["text"] == "It is blue."
        without = [item for item in items if item.get("type") != "reasoning"]
        shorter, _ = await create_response(api.client, {**body, "input": without}, stream=stream)
    n_rendered = sum(len(f"<think>\n{text}\n</think>\n\n") for text in REASONING)
    assert last["usage"]["input_tokens"] - shorter["usage"]["input_tokens"] == n_rendered


SUMMARY = [f"reasoning_summary_{each}" for each in ("part.added", "text.delta", "text.done", "part.done")]
RAW = ["content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done"]


@pytest.mark.parametrize(("summary", "field", "event_types"), [(None, "content", RAW), ("auto", "summary", SUMMARY)])
async def test_reasoning_is_streamed_as_content_or_as_summary(
    serve: Serve, summary: str | None, field: str, event_types: list[str]
) -> None:
    body = {"input": "Hi", "tools": [OPENAI_TOOL], "reasoning": {"summary": summary}}
    async with serve(reasoning_model(), models=MODELS) as api:
        response, events = await create_response(api.client, body, stream=True)
        for fields in ({"include": ["reasoning.encrypted_content"], "store": True}, {"include": [], "store": False}):
            other, _ = await create_response(api.client, body | fields, stream=False)
            assert other["output"][0]["encrypted_content"]
    reasoning = response["output"][0]
    assert reasoning["encrypted_content"] is None  # it is stored, and `include` does not request it
    assert [part["text"] for part in reasoning[field]] == [REASONING[0]]
    assert response["reasoning"]["summary"] == summary
    own = [event for event in events if event.get("item_id") == reasoning["id"]]
    assert list(dict.fromkeys(event["type"].removeprefix("response.") for event in own)) == event_types
    assert "".join(event["delta"] for event in own if "delta" in event) == REASONING[0]


async def test_tampered_encrypted_reasoning_is_a_400(serve: Serve) -> None:
    hi = {"role": "user", "content": "Hi"}
    async with serve(reasoning_model(), models=MODELS) as api:
        whole = api.app.state.services.reasoning.encrypt("x")
        for value in (whole[:-4], whole[:-4] + "AAA=", whole[:12]):
            for kind, field in (("thinking", "signature"), ("redacted_thinking", "data")):
                block = {"type": kind, "thinking": "x", field: value}
                turns = {"max_tokens": 5, "messages": [hi, {"role": "assistant", "content": [block]}, hi]}
                message = f"messages.1.content.0: Invalid `{field}` in `{kind}` block"
                error = {"type": "invalid_request_error", "message": message}
                await api.expect(f"POST {MESSAGES}", turns, 400, {"error": error})
            item: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": value}
            error = {"code": "invalid_encrypted_content", "param": "input.0.encrypted_content"}
            await api.expect(f"POST {RESPONSES}", {"input": [item, hi]}, 400, {"error": error})


async def test_encrypted_reasoning_and_compaction_are_not_interchangeable(serve: Serve) -> None:
    async with serve(reasoning_model(), models=MODELS) as api:
        reasoning = api.app.state.services.reasoning.encrypt('{"summary": "x", "messages": []}')
        reply = await api.client.post(f"{RESPONSES}/compact", json={"input": "Hi"})
        compacted = reply.json()["output"][0]["encrypted_content"]
        for kind, value in (("compaction", reasoning), ("reasoning", compacted)):
            item: Any = {"type": kind, "summary": [], "encrypted_content": value}
            body = {"input": [item, {"role": "user", "content": "Hi"}]}
            await api.expect(f"POST {RESPONSES}", body, 400, {"error": {"code": "invalid_encrypted_content"}})


async def test_reasoning_encrypted_with_a_lost_key_is_ignored_with_a_warning(serve: Serve, tmp_path: Path) -> None:
    """The session continues without the reasoning. With the same state file the key survives a restart."""
    settings = {"server": {"state": str(tmp_path / "state.sqlite3")}, "models": MODELS}

    async def count_after_restart(**options: Any) -> tuple[str, str | None, int]:
        async with serve(reasoning_model(), **options) as api:
            encrypted = api.app.state.services.reasoning.encrypt(REASONING[0])
            block = {"type": "thinking", "thinking": "", "signature": earlier or encrypted}
            turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [block]}]
            reply = await api.client.post(f"{MESSAGES}/count_tokens", json={"messages": [*turns, turns[0]]})
            item: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": earlier or encrypted}
            body = {"input": [item, {"role": "user", "content": "Hi"}]}
            response = await api.client.post(f"{RESPONSES}/input_tokens", json=body)
        warning = reply.headers.get("X-Llamapool-Warning")
        assert (warning is None) == (response.headers.get("X-Llamapool-Warning") is None)
        return encrypted, warning, reply.json()["input_tokens"]

    earlier = ""
    earlier, warning, n_tokens = await count_after_restart(**settings)
    assert warning is None
    assert (await count_after_restart(**settings))[1:] == (None, n_tokens)
    _, warning, n_fewer = await count_after_restart(models=MODELS)
    assert warning is not None
    assert "earlier key" in warning
    assert n_fewer < n_tokens - len(REASONING[0])
