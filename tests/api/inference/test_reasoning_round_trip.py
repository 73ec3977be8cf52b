"""Agents send reasoning back in opaque fields: the next prompt has it, streamed or not, visible or not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from server.templates.built_in import source_of
from tests.api.conftest import Serve
from tests.api.inference.test_tool_calls import message as ask_message
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


def model() -> FakeLoader:
    """A model that reasons and calls a tool in three rounds, and then answers."""
    said = [f"<think>\n{text}\n</think>\n\n{tool_call('look', n=n)}" for n, text in enumerate(REASONING)]
    ends = ["Hi", *(f"tool:result {n}" for n in range(N_ROUNDS))]
    return answering(dict(zip(ends, [*said, "It is blue."], strict=True)), n_ctx=4096)


async def count(client: httpx.AsyncClient, body: Mapping[str, Any]) -> int:
    reply = await client.post(f"{MESSAGES}/count_tokens", json=body)
    return int(reply.json()["input_tokens"])


@pytest.mark.parametrize("display", ["summarized", "omitted"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_loop_keeps_its_thinking(serve: Serve, stream: bool, display: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "Hi"}]
    thinking = {"type": "adaptive", "display": display}
    body = {"model": "demo", "max_tokens": 400, "tools": [ANTHROPIC_TOOL], "thinking": thinking, "messages": messages}
    async with serve(model(), models=MODELS) as api:
        for n in range(N_ROUNDS):
            content = (await ask_message(api, **body, stream=stream))["content"]
            assert [block["type"] for block in content] == ["thinking", "tool_use"]
            assert content[0]["thinking"] == (REASONING[n] if display == "summarized" else "")
            assert REASONING[n] not in content[0]["signature"]
            result = {"type": "tool_result", "tool_use_id": content[1]["id"], "content": f"result {n}"}
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        last = await ask_message(api, **body, stream=stream)
        assert last["content"][-1] == {"type": "text", "text": "It is blue."}
        n_tokens = await count(api.client, body)
        for message in messages[1::2]:
            message["content"] = message["content"][1:]
        n_without = await count(api.client, body)
    # A character of the fake vocabulary is a token.
    n_rendered = sum(len(f"<think>\n{text}\n</think>\n\n") for text in REASONING)
    assert (n_tokens, n_tokens - n_without) == (last["usage"]["input_tokens"] + cached(last), n_rendered)


def cached(message: Any) -> int:
    return int(message["usage"]["cache_read_input_tokens"])


async def ask_response(client: httpx.AsyncClient, body: Mapping[str, Any], *, stream: bool) -> tuple[Any, list[Any]]:
    """The response, and its events."""
    reply = await client.post(RESPONSES, json={**body, "stream": stream})
    assert (reply.status_code, reply.headers.get("X-Llamapool-Warning")) == (200, None), reply.text
    events = typed_events(reply.text, TypeAdapter(ResponseStreamEvent)) if stream else []
    response = events[-1]["response"] if stream else reply.json()
    TypeAdapter(Response).validate_python(response)
    return response, events


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stateless_loop_keeps_its_reasoning(serve: Serve, stream: bool) -> None:
    """As Codex: no store, the encrypted content alone comes back, a summary is shown."""
    items: list[Any] = [{"role": "user", "content": "Hi"}]
    body = {"input": items, "tools": [OPENAI_TOOL], "store": False, "reasoning": {"summary": "auto"}}
    async with serve(model(), models=MODELS) as api:
        for n in range(N_ROUNDS):
            response, events = await ask_response(api.client, body, stream=stream)
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
        last, _ = await ask_response(api.client, body, stream=stream)
        assert last["output"][-1]["content"][0]["text"] == "It is blue."
        without = [item for item in items if item.get("type") != "reasoning"]
        shorter, _ = await ask_response(api.client, {**body, "input": without}, stream=stream)
    n_rendered = sum(len(f"<think>\n{text}\n</think>\n\n") for text in REASONING)
    assert last["usage"]["input_tokens"] - shorter["usage"]["input_tokens"] == n_rendered


SUMMARY = [f"reasoning_summary_{each}" for each in ("part.added", "text.delta", "text.done", "part.done")]


RAW = ["content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done"]


@pytest.mark.parametrize(("summary", "shown", "deltas"), [(None, "content", RAW), ("auto", "summary", SUMMARY)])
async def test_reasoning_events_are_raw_or_a_summary(
    serve: Serve, summary: str | None, shown: str, deltas: list[str]
) -> None:
    body = {"input": "Hi", "tools": [OPENAI_TOOL], "reasoning": {"summary": summary}}
    async with serve(model(), models=MODELS) as api:
        response, events = await ask_response(api.client, body, stream=True)
        for needed in ({"include": ["reasoning.encrypted_content"], "store": True}, {"include": [], "store": False}):
            other, _ = await ask_response(api.client, body | needed, stream=False)
            assert other["output"][0]["encrypted_content"]
    reasoning = response["output"][0]
    assert reasoning["encrypted_content"] is None  # it is stored, and nobody asked for it
    assert [part["text"] for part in reasoning[shown]] == [REASONING[0]]
    assert response["reasoning"]["summary"] == summary
    own = [event for event in events if event.get("item_id") == reasoning["id"]]
    assert list(dict.fromkeys(event["type"].removeprefix("response.") for event in own)) == deltas
    assert "".join(event["delta"] for event in own if "delta" in event) == REASONING[0]


async def test_a_tampered_value_is_an_error_as_in_the_reference_apis(serve: Serve) -> None:
    hi = {"role": "user", "content": "Hi"}
    async with serve(model(), models=MODELS) as api:
        whole = api.app.state.services.reasoning.encrypt("x")
        for value in (whole[:-4], whole[:-4] + "AAA=", whole[:12]):
            for kind, field in (("thinking", "signature"), ("redacted_thinking", "data")):
                block = {"type": kind, "thinking": "x", field: value}
                turns = {"max_tokens": 5, "messages": [hi, {"role": "assistant", "content": [block]}, hi]}
                said = f"messages.1.content.0: Invalid `{field}` in `{kind}` block"
                error = {"type": "invalid_request_error", "message": said}
                await api.expect(f"POST {MESSAGES}", turns, 400, {"error": error})
            item: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": value}
            error = {"code": "invalid_encrypted_content", "param": "input.0.encrypted_content"}
            await api.expect(f"POST {RESPONSES}", {"input": [item, hi]}, 400, {"error": error})


async def test_a_value_stands_only_for_what_it_was_made_for(serve: Serve) -> None:
    async with serve(model(), models=MODELS) as api:
        reasoning = api.app.state.services.reasoning.encrypt('{"summary": "x", "messages": []}')
        reply = await api.client.post(f"{RESPONSES}/compact", json={"input": "Hi"})
        compacted = reply.json()["output"][0]["encrypted_content"]
        for kind, value in (("compaction", reasoning), ("reasoning", compacted)):
            item: Any = {"type": kind, "summary": [], "encrypted_content": value}
            body = {"input": [item, {"role": "user", "content": "Hi"}]}
            await api.expect(f"POST {RESPONSES}", body, 400, {"error": {"code": "invalid_encrypted_content"}})


async def test_a_value_of_an_earlier_key_is_ignored_with_a_warning(serve: Serve, tmp_path: Path) -> None:
    """A session goes on, with the visible text; with the same state file or key file nothing is lost."""
    settings = {"server": {"state": str(tmp_path / "state.sqlite3")}, "models": MODELS}

    async def values(**given: Any) -> tuple[str, str | None, int]:
        async with serve(model(), **given) as api:
            made = api.app.state.services.reasoning.encrypt(REASONING[0])
            block = {"type": "thinking", "thinking": "", "signature": earlier or made}
            turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [block]}]
            reply = await api.client.post(f"{MESSAGES}/count_tokens", json={"messages": [*turns, turns[0]]})
            item: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": earlier or made}
            body = {"input": [item, {"role": "user", "content": "Hi"}]}
            responded = await api.client.post(f"{RESPONSES}/input_tokens", json=body)
        warning = reply.headers.get("X-Llamapool-Warning")
        assert (warning is None) == (responded.headers.get("X-Llamapool-Warning") is None)
        return made, warning, reply.json()["input_tokens"]

    earlier = ""
    earlier, warning, n_tokens = await values(**settings)
    assert warning is None
    assert (await values(**settings))[1:] == (None, n_tokens)
    _, warning, n_fewer = await values(models=MODELS)
    assert warning is not None
    assert "earlier key" in warning
    assert n_fewer < n_tokens - len(REASONING[0])
