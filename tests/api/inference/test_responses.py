"""``/v1/responses`` over a fake model: what needs the whole application, over HTTP and over a WebSocket."""

import asyncio
import contextlib
import logging
import re
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from openai.types.responses import Response
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from server.transport.body import MAX_VALUES
from server.transport.websocket import MAX_WAITING
from tests.api.conftest import TIMEOUT_S, Api, GoLive, Serve, until
from tests.api.scripted import CHATML, answering, tool_call
from tests.api.streams import posting, scope_of, typed_events
from tests.support.fakes import FakeLoader

URL = "/v1/responses"


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
        at = f"{URL}/{response['id']}"
        assert (await api.client.get(at)).json() == response
        assert (await api.expect(f"HEAD {at}")).content == b""
        gone = (await api.client.delete(at)).json()
        for method in ("GET", "DELETE"):
            await api.expect(f"{method} {at}", None, 404, response["id"])
        unstored = await ask(api.client, store=False, stream=stream)
        await api.expect(f"GET {URL}/{unstored['id']}", None, 404)
        follow = {"input": "x", "previous_response_id": unstored["id"]}
        await api.expect(f"POST {URL}", follow, 400, {"error": {"param": "previous_response_id"}})
    assert (response["metadata"], unstored["store"]) == ({"k": "v"}, False)
    assert gone == {"id": response["id"], "object": "response", "deleted": True}


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
    async with serve(FakeLoader(n_ctx_seq=2048, steps=steps)) as api:
        async with posting(api.app, URL, {"input": "Hi", "stream": True, "ignore_eos": True}) as exchange:
            assert await exchange.start() == 200
            created = typed_events((await exchange.chunk()).decode())[0]["response"]
            assert created["store"] is True
        steps.release(5000)
        await api.expect(f"GET {URL}/{created['id']}", None, 404)


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


class Socket:
    """A connection under way. `said` are its messages; the first is what became of the handshake."""

    def __init__(self, api: Api, path: str = "/v1/responses", headers: dict[str, str] | None = None) -> None:
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._heard.put_nowait({"type": "websocket.connect"})
        more = {"subprotocols": [], "extensions": {"websocket.http.response": {}}}
        scope = scope_of("websocket", path, headers or {}, **more)
        self.is_lost = False  # whether messages to the client are errors
        self.task = asyncio.create_task(api.app(scope, self._heard.get, self._send))  # type: ignore[arg-type]

    async def _send(self, message: dict[str, Any]) -> None:
        if self.is_lost:
            raise OSError("the client is gone")
        self.said.put_nowait(message)

    async def began(self) -> dict[str, Any]:
        """What became of the handshake."""
        return await asyncio.wait_for(self.said.get(), TIMEOUT_S)

    def tell(self, message: object) -> None:
        text = message if isinstance(message, str) else orjson.dumps(message).decode()
        self._heard.put_nowait({"type": "websocket.receive", "text": text})

    async def event(self) -> dict[str, Any]:
        message = await asyncio.wait_for(self.said.get(), TIMEOUT_S)
        assert message["type"] == "websocket.send", message
        event: dict[str, Any] = orjson.loads(message["text"])
        return event

    async def response(self, **body: Any) -> dict[str, Any]:
        """The last event of a new response, or the error in its place."""
        self.tell({"type": "response.create", "max_output_tokens": 100, **body})
        while (event := await self.event())["type"] not in ("error", "response.completed", "response.incomplete"):
            pass
        return event

    async def close(self) -> None:
        self._heard.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await asyncio.wait_for(self.task, TIMEOUT_S)


@asynccontextmanager
async def opened(api: Api, **options: Any) -> AsyncIterator[Socket]:
    socket = Socket(api, **options)
    assert (await socket.began())["type"] == "websocket.accept"
    yield socket
    await socket.close()


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
async def test_a_connection_remembers_what_is_not_stored(serve: Serve, path: str) -> None:
    loader = answering({"Hi": "Hello!", "Bye": "Farewell."})
    async with serve(loader, models=CHATML) as api, opened(api, path=path) as socket:
        socket.tell({"type": "response.create", "input": "Hi", "store": False})
        found = [await socket.event()]
        while found[-1]["type"] != "response.completed":
            found.append(await socket.event())
        first = found[-1]["response"]
        asked = {"input": "Bye", "previous_response_id": first["id"], "store": False}
        second = (await socket.response(**asked))["response"]
        async with opened(api) as other:
            lost = await other.response(**asked)
        await api.expect(f"GET {URL}/{first['id']}", None, 404)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[0]["type"] == "response.created"
    assert "".join(event["delta"] for event in found if "delta" in event) == "Hello!"
    assert (first["store"], second["output"][0]["content"][0]["text"]) == (False, "Farewell.")
    assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]
    assert (lost["status"], lost["error"]["code"]) == (400, "previous_response_not_found")


@pytest.mark.parametrize("prefix", ["", "/llm"])
async def test_a_prompt_may_be_computed_ahead(serve: Serve, prefix: str) -> None:
    loader, server = answering({"Hi": "Hello!"}), {"api_prefix": prefix}
    async with serve(loader, models=CHATML, server=server) as api, opened(api, path=f"{prefix}{URL}") as socket:
        ahead = (await socket.response(input="Hi", generate=False, store=False))["response"]
        after = (await socket.response(input=[], previous_response_id=ahead["id"], store=False))["response"]
    assert (ahead["status"], ahead["output"]) == ("completed", [])
    assert after["output"][0]["content"][0]["text"] == "Hello!"
    assert after["usage"]["input_tokens_details"]["cached_tokens"] > 0


async def test_what_is_wrong_is_a_message_and_the_connection_goes_on(serve: Serve) -> None:
    async with serve(answering({"Hi": "Hello!"})) as api, opened(api) as socket:
        for message, param in (("{", None), ([1], "type"), ({"type": "response.steer"}, "type")):
            socket.tell(message)
            event = await socket.event()
            assert (event["type"], event["status"], event["error"]["param"]) == ("error", 400, param)
        socket.tell({})
        assert (await socket.event())["error"]["message"] == "type: messages of type null are not supported"
        wrong = await socket.response(input="Hi", temperature="hot")
        assert (wrong["type"], wrong["status"], wrong["error"]["param"]) == ("error", 400, "temperature")
        socket.tell({"type": "response.processed", "response_id": "x"})
        assert (await socket.response(input="Hi"))["type"] == "response.completed"


async def test_a_client_that_leaves_frees_its_slot(serve: Serve) -> None:
    steps = threading.Semaphore(3)
    async with serve(FakeLoader(steps=steps)) as api:
        async with opened(api) as socket:
            socket.tell({"type": "response.create", "input": "Hi"})
            assert (await socket.event())["type"] == "response.created"
        steps.release(10_000)  # `serve` checks that nothing runs on


@pytest.mark.parametrize(
    ("n_messages", "fields"), [(MAX_WAITING + 2, {}), (4, {"metadata": {"a": "x" * 400_000}})], ids=["number", "bytes"]
)
async def test_messages_that_wait_are_bounded(serve: Serve, n_messages: int, fields: dict[str, Any]) -> None:
    """In number, and in bytes as bodies are."""
    steps = threading.Semaphore(0)
    limits = {"max_body_bytes": 1_000_000, "max_bodies_bytes": 1_000_000}
    async with serve(FakeLoader(steps=steps), server=limits) as api, opened(api) as socket:
        for _ in range(n_messages):
            socket.tell({"type": "response.create", "input": "Hi", **fields})
        closed = await socket.began()
        assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
        steps.release(10_000)


async def test_a_client_that_is_gone_when_its_messages_are_too_many_leaves_nothing_behind(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with serve(FakeLoader(steps=steps)) as api, opened(api) as socket:
        socket.is_lost = True
        for _ in range(MAX_WAITING + 2):
            socket.tell({"type": "response.create", "input": "Hi"})
        steps.release(10_000)  # leaving the block waits for the end of the connection


async def test_a_message_that_is_nested_too_deeply_is_told(serve: Serve) -> None:
    async with serve() as api, opened(api) as socket:
        socket.tell(f'{{"type": "response.create", "input": {"[" * 300 + "]" * 300}}}')
        said = await socket.event()
        assert (said["status"], said["error"]["message"]) == (400, "the message is nested too deeply")


async def test_a_message_of_millions_of_values_is_refused_before_it_is_parsed(serve: Serve) -> None:
    """The parser would stall every stream; that this is not JSON is found by nobody."""
    async with serve(answering({"Hi": "Hello!"})) as api, opened(api) as socket:
        socket.tell("[" + "[1]," * MAX_VALUES)
        said = await socket.event()
        assert (said["status"], said["error"]["code"]) == (413, "request_too_large")
        assert (await socket.response(input="Hi"))["type"] == "response.completed"


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"headers": {"authorization": "Bearer wrong"}}, 401),
        ({"headers": {"authorization": "Bearer sk-one", "origin": "https://evil.example"}}, 403),
        ({"headers": {"authorization": "Bearer sk-one"}, "path": "/v1/chat/completions"}, 404),
    ],
)
async def test_a_connection_that_may_not_be_is_refused(serve: Serve, options: dict[str, Any], status: int) -> None:
    server = {"api_keys": ["sk-one"], "cors_origins": "localhost"}
    async with serve(answering({"Hi": "Hello!"}), server=server) as api:
        socket = Socket(api, **options)
        refused = await socket.began()
        assert (refused["type"], refused["status"]) == ("websocket.http.response.start", status)
        await asyncio.wait_for(socket.task, TIMEOUT_S)
        async with opened(api, headers={"authorization": "Bearer sk-one", "origin": "http://localhost:1"}) as fine:
            assert (await fine.response(input="Hi"))["type"] == "response.completed"


async def test_a_refused_connection_is_no_error_in_the_log(live: GoLive, caplog: pytest.LogCaptureFixture) -> None:
    """A client without a key could fill the log with errors."""
    async with live(server={"api_keys": ["sk-one"]}) as server:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{server.port}/v1/responses")
        assert refused.value.response.status_code == 401
        await until(lambda: not server.server.server_state.tasks)
    assert "was refused: Invalid API Key" in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_server_that_stops_lets_a_response_end_and_closes_behind_it(live: GoLive) -> None:
    steps = threading.Semaphore(3)
    async with live(FakeLoader(steps=steps)) as server:
        async with connect(f"ws://127.0.0.1:{server.port}/v1/responses") as socket:
            await socket.send(orjson.dumps({"type": "response.create", "input": "Hi", "max_output_tokens": 20}))
            assert orjson.loads(await socket.recv())["type"] == "response.created"
            signal.raise_signal(signal.SIGTERM)
            await until(server.api.app.state.services.draining.is_set)
            steps.release(10_000)
            said = []
            with contextlib.suppress(ConnectionClosed):
                while True:
                    said.append(orjson.loads(await asyncio.wait_for(socket.recv(), TIMEOUT_S)))
        assert (said[-1]["type"], socket.close_code) == ("response.incomplete", 1012)


async def test_a_server_that_stops_closes_connections_that_say_nothing(serve: Serve) -> None:
    async with serve() as api, opened(api) as socket:
        api.app.state.services.draining.set()
        closed = await socket.began()
        await asyncio.wait_for(socket.task, TIMEOUT_S)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1012)
