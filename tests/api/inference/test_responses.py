"""``/v1/responses`` over a fake model: what needs the whole application."""

import re
import threading
from typing import Any

import httpx
import pytest
from openai.types.responses import Response

from tests.api.conftest import Serve
from tests.api.scripted import CHATML, answering, tool_call
from tests.api.streams import posting, typed_events
from tests.support.fakes import FakeLoader, FakeRunner

URL = "/v1/responses"
KEYS = {"api_keys": ["sk-one", "sk-two"]}


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def ask(client: httpx.AsyncClient, said: Any = "Hi", **fields: Any) -> dict[str, Any]:
    reply = await client.post(URL, json={"input": said, "max_output_tokens": 100, **fields})
    assert reply.status_code == 200, reply.text
    if fields.get("stream"):
        body: dict[str, Any] = typed_events(reply.text)[-1]["response"]
        return body
    whole: dict[str, Any] = reply.json()
    return whole


@pytest.mark.parametrize("stream", [False, True])
async def test_what_can_be_left_out_is_named_in_a_header(serve: Serve, stream: bool) -> None:
    items = [{"type": "compaction", "encrypted_content": "x"}, {"role": "user", "content": "Hi"}]
    asked = {"input": items, "tools": [{"type": "web_search"}], "truncation": "auto", "stream": stream}
    async with serve(answering({"Hi": "Hello!"})) as api:
        reply = await api.client.post(URL, json=asked)
    assert reply.status_code == 200
    told = reply.headers["X-Llamapool-Warning"].split("; ")
    assert [warning.split(" ")[0] for warning in told] == ["tools", "input"]


@pytest.mark.parametrize("stream", [False, True])
async def test_truncation_auto_drops_the_oldest_items_so_that_the_prompt_fits(serve: Serve, stream: bool) -> None:
    """A growing conversation keeps its first remaining item, and so its cached prefix, for several turns."""
    items: list[dict[str, Any]] = []
    replies: list[dict[str, Any]] = []
    fields: dict[str, Any] = {"instructions": "Be brief.", "store": False, "stream": stream}
    async with serve(answering({}), models=CHATML) as api:
        for turn in range(12):
            call = {"type": "function_call", "call_id": f"c{turn}", "name": "f", "arguments": "{}"}
            output = {"type": "function_call_output", "call_id": f"c{turn}", "output": f"{turn}" * 150}
            items += [{"role": "user", "content": f"question {turn}" + "x" * 100}, call, output]
            replies.append(await ask(api.client, items, truncation="auto", max_output_tokens=5, **fields))
        refused = await api.client.post(URL, json={"input": items, **fields})
        hopeless = [*items, {"role": "user", "content": "y" * 3000}]
        too_long = await api.client.post(URL, json={"input": hopeless, "truncation": "auto", **fields})
    for reply in replies:
        Response.model_validate(reply)
        assert (reply["truncation"], reply["usage"]["input_tokens"] <= 2043) == ("auto", True)
    usages = [reply["usage"] for reply in replies]
    dropped = [n for n in range(1, 12) if usages[n]["input_tokens"] < usages[n - 1]["input_tokens"]]
    assert 0 < len(dropped) < 4
    warm = [usage["input_tokens_details"]["cached_tokens"] for n, usage in enumerate(usages) if n and n not in dropped]
    assert min(warm) > 100
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert (too_long.status_code, too_long.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stored_response_is_given_back_and_forgotten(serve: Serve, stream: bool) -> None:
    async with serve(answering({"Hi": "Hello there!"})) as api:
        response = await ask(api.client, stream=stream, metadata={"k": "v"})
        found = await api.client.get(f"{URL}/{response['id']}")
        head = await api.client.head(f"{URL}/{response['id']}")
        gone = await api.client.delete(f"{URL}/{response['id']}")
        after = [await api.client.request(method, f"{URL}/{response['id']}") for method in ("GET", "DELETE")]
    assert found.json() == response
    assert (head.status_code, head.content) == (200, b"")
    assert response["metadata"] == {"k": "v"}
    assert gone.json() == {"id": response["id"], "object": "response", "deleted": True}
    assert [reply.status_code for reply in after] == [404, 404]
    assert response["id"] in after[0].json()["error"]["message"]


async def test_what_is_not_to_be_stored_is_not(serve: Serve) -> None:
    async with serve(answering({"Hi": "Hello there!"})) as api:
        response = await ask(api.client, store=False)
        found = await api.client.get(f"{URL}/{response['id']}")
        follow = await api.client.post(URL, json={"input": "x", "previous_response_id": response["id"]})
    assert response["store"] is False
    assert found.status_code == 404
    assert follow.status_code == 400
    assert follow.json()["error"]["param"] == "previous_response_id"


async def test_no_key_reaches_what_belongs_to_another(serve: Serve) -> None:
    async with serve(answering({"Hi": "Hello there!"}), server=KEYS, headers=key("sk-one")) as api:
        mine = await ask(api.client)
        name = f"{URL}/{mine['id']}"
        reference = [{"type": "item_reference", "id": mine["output"][0]["id"]}]
        tried = [
            await api.client.get(name, headers=key("sk-two")),
            await api.client.delete(name, headers=key("sk-two")),
            await api.client.post(URL, json={"input": "x", "previous_response_id": mine["id"]}, headers=key("sk-two")),
            await api.client.post(URL, json={"input": reference}, headers=key("sk-two")),
        ]
        same = await api.client.get(name, headers={"Authorization": "", "X-Api-Key": "sk-one"})
    assert [reply.status_code for reply in tried] == [404, 404, 400, 400]
    assert same.json() == mine


async def test_instructions_hold_for_one_response(serve: Serve) -> None:
    async with serve(answering({"Hi": "Hello!"})) as api:
        plain = await ask(api.client)
        told = await ask(api.client, instructions="be brief")
        counts = [
            (await ask(api.client, "Hi", previous_response_id=response["id"]))["usage"]["input_tokens"]
            for response in (plain, told)
        ]
    assert plain["usage"]["input_tokens"] < told["usage"]["input_tokens"]
    assert counts[0] == counts[1]


async def test_only_a_background_response_can_be_streamed_again(client: httpx.AsyncClient) -> None:
    response = await ask(client, max_output_tokens=1)
    reply = await client.get(f"{URL}/{response['id']}", params={"stream": "true"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream")


async def test_a_client_that_leaves_stores_nothing(serve: Serve) -> None:
    steps = threading.Semaphore(3)
    async with serve(FakeLoader(runner=lambda: FakeRunner(n_ctx_seq=2048, steps=steps))) as api:
        async with posting(api.app, URL, {"input": "Hi", "stream": True, "ignore_eos": True}) as exchange:
            assert await exchange.start() == 200
            created = typed_events((await exchange.chunk()).decode())[0]["response"]
            assert created["store"] is True
        steps.release(5000)
        reply = await api.client.get(f"{URL}/{created['id']}")
    assert reply.status_code == 404


GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "go " /[a-z"]+/ "\\n"'}
PATCH = {"type": "custom", "name": "patch", "description": "Edits.", "format": GRAMMAR}
WRONG = tool_call("patch", input="GO 1")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "custom", "name": "patch"}])
async def test_a_custom_tools_input_matches_its_grammar(serve: Serve, stream: bool, choice: object) -> None:
    async with serve(answering({"Hi": WRONG, "tool:42": "Done."}), models=CHATML) as api:
        asked = {"tools": [PATCH], "tool_choice": choice, "seed": 1, "max_output_tokens": 300}
        reply = await ask(api.client, **asked, stream=stream)
        [call] = [item for item in reply["output"] if item["type"] == "custom_tool_call"]
        sent = [{"role": "user", "content": "Hi"}, call]
        sent += [{"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "42"}]
        after = await ask(api.client, sent, tools=[PATCH], stream=stream)
    assert call["name"] == "patch"
    if call["status"] == "completed":
        assert re.fullmatch(r'go [a-z"]+\n', call["input"])
    assert re.match(r'g|go|go |go [a-z"]+', call["input"])
    assert after["output"][0]["content"][0]["text"] == "Done."
