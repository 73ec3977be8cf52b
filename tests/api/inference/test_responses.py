"""/v1/responses over HTTP and WebSocket: truncation, storage, custom tools, limits, shutdown."""

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
from tests.api.conftest import TIMEOUT_S, Api, GoLive, Serve, contains, until
from tests.api.scripted import CHATML, answering, tool_call
from tests.api.streams import posting, scope_of, typed_events
from tests.support.fakes import FakeLoader

URL = "/v1/responses"


async def create(client: httpx.AsyncClient, input_: Any = "Hi", **fields: Any) -> dict[str, Any]:
    """Create a response, and return it; of a stream, the response of the last event."""
    reply = await client.post(URL, json={"input": input_, "max_output_tokens": 100, **fields})
    assert reply.status_code == 200, reply.text
    response: dict[str, Any] = typed_events(reply.text)[-1]["response"] if fields.get("stream") else reply.json()
    return response


@pytest.mark.parametrize("stream", [False, True])
async def test_unusable_items_and_tools_are_listed_in_the_warning_header(serve: Serve, stream: bool) -> None:
    items = [{"type": "compaction", "encrypted_content": "x"}, {"role": "user", "content": "Hi"}]
    body = {"input": items, "tools": [{"type": "web_search"}], "truncation": "auto", "stream": stream}
    async with serve(answering({"Hi": "Hello!"})) as api:
        reply = await api.expect(f"POST {URL}", body)
    warnings = reply.headers["X-Llamapool-Warning"].split("; ")
    assert [warning.split(" ")[0] for warning in warnings] == ["tools", "input"]


@pytest.mark.parametrize("stream", [False, True])
async def test_truncation_auto_drops_the_oldest_items(serve: Serve, stream: bool) -> None:
    """After each truncation the first remaining item stays for several turns, so the prefix stays cached."""
    items: list[dict[str, Any]] = []
    replies: list[dict[str, Any]] = []
    fields: dict[str, Any] = {"instructions": "Be brief.", "store": False, "stream": stream}
    async with serve(answering({}), models=CHATML) as api:
        for turn in range(12):
            call = {"type": "function_call", "call_id": f"c{turn}", "name": "f", "arguments": "{}"}
            output = {"type": "function_call_output", "call_id": f"c{turn}", "output": f"{turn}" * 150}
            items += [{"role": "user", "content": f"question {turn}" + "x" * 100}, call, output]
            replies.append(await create(api.client, items, truncation="auto", max_output_tokens=5, **fields))
        error = {"error": {"code": "context_length_exceeded"}}
        await api.expect(f"POST {URL}", {"input": items, **fields}, 400, error)
        too_long = [*items, {"role": "user", "content": "y" * 3000}]
        await api.expect(f"POST {URL}", {"input": too_long, "truncation": "auto", **fields}, 400, error)
    for reply in replies:
        Response.model_validate(reply)
        assert (reply["truncation"], reply["usage"]["input_tokens"] <= 2043) == ("auto", True)
    usages = [reply["usage"] for reply in replies]
    dropped = [n for n in range(1, 12) if usages[n]["input_tokens"] < usages[n - 1]["input_tokens"]]
    assert 0 < len(dropped) < 4
    warm = [usage["input_tokens_details"]["cached_tokens"] for n, usage in enumerate(usages) if n and n not in dropped]
    assert min(warm) > 100


@pytest.mark.parametrize("stream", [False, True])
async def test_stored_response_is_returned_until_it_is_deleted(serve: Serve, stream: bool) -> None:
    async with serve(answering({"Hi": "Hello there!"})) as api:
        response = await create(api.client, stream=stream, metadata={"k": "v"})
        path = f"{URL}/{response['id']}"
        assert (await api.client.get(path)).json() == response
        assert (await api.expect(f"HEAD {path}")).content == b""
        deleted = (await api.client.delete(path)).json()
        for method in ("GET", "DELETE"):
            await api.expect(f"{method} {path}", None, 404, response["id"])
        unstored = await create(api.client, store=False, stream=stream)
        await api.expect(f"GET {URL}/{unstored['id']}", None, 404)
        continuation = {"input": "x", "previous_response_id": unstored["id"]}
        await api.expect(f"POST {URL}", continuation, 400, {"error": {"param": "previous_response_id"}})
    assert (response["metadata"], unstored["store"]) == ({"k": "v"}, False)
    assert deleted == {"id": response["id"], "object": "response", "deleted": True}


async def test_instructions_apply_to_one_response_only(serve: Serve) -> None:
    async with serve(answering({"Hi": "Hello!"})) as api:
        plain = await create(api.client)
        instructed = await create(api.client, instructions="be brief")
        counts = [
            (await create(api.client, "Hi", previous_response_id=response["id"]))["usage"]["input_tokens"]
            for response in (plain, instructed)
        ]
    assert plain["usage"]["input_tokens"] < instructed["usage"]["input_tokens"]
    assert counts[0] == counts[1]


async def test_streaming_a_stored_foreground_response_is_a_400(api: Api) -> None:
    response = await create(api.client, max_output_tokens=1)
    await api.expect(f"GET {URL}/{response['id']}?stream=true", None, 400, {"error": {"param": "stream"}})


async def test_disconnected_stream_is_not_stored(serve: Serve) -> None:
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
INVALID_CALL = tool_call("patch", input="GO 1")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "custom", "name": "patch"}])
async def test_input_of_a_custom_tool_matches_its_grammar(serve: Serve, stream: bool, choice: object) -> None:
    async with serve(answering({"Hi": INVALID_CALL, "tool:42": "Done."}), models=CHATML) as api:
        fields = {"tools": [PATCH], "tool_choice": choice, "seed": 1, "max_output_tokens": 300}
        reply = await create(api.client, **fields, stream=stream)
        [call] = [item for item in reply["output"] if item["type"] == "custom_tool_call"]
        output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "42"}
        items = [{"role": "user", "content": "Hi"}, call, output]
        after = await create(api.client, items, tools=[PATCH], stream=stream)
    assert call["name"] == "patch"
    if call["status"] == "completed":
        assert re.fullmatch(r'go [a-z"]+\n', call["input"])
    assert re.match(r'g|go|go |go [a-z"]+', call["input"])
    assert after["output"][0]["content"][0]["text"] == "Done."


class Socket:
    """The client side of a WebSocket. `received` has the server's ASGI messages: first, the handshake's result."""

    def __init__(self, api: Api, path: str = "/v1/responses", headers: dict[str, str] | None = None) -> None:
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._sent.put_nowait({"type": "websocket.connect"})
        fields = {"subprotocols": [], "extensions": {"websocket.http.response": {}}}
        scope = scope_of("websocket", path, headers or {}, **fields)
        self.is_lost = False  # whether sending to the client fails
        self.task = asyncio.create_task(api.app(scope, self._sent.get, self._send))  # type: ignore[arg-type]

    async def _send(self, message: dict[str, Any]) -> None:
        if self.is_lost:
            raise OSError("connection lost")
        self.received.put_nowait(message)

    async def message(self) -> dict[str, Any]:
        """Wait for the next ASGI message of the server."""
        return await asyncio.wait_for(self.received.get(), TIMEOUT_S)

    def send(self, message: object) -> None:
        text = message if isinstance(message, str) else orjson.dumps(message).decode()
        self._sent.put_nowait({"type": "websocket.receive", "text": text})

    async def event(self) -> dict[str, Any]:
        message = await self.message()
        assert message["type"] == "websocket.send", message
        event: dict[str, Any] = orjson.loads(message["text"])
        return event

    async def response(self, **body: Any) -> dict[str, Any]:
        """Create a response. Return its last event, or the error event."""
        self.send({"type": "response.create", "max_output_tokens": 100, **body})
        while (event := await self.event())["type"] not in ("error", "response.completed", "response.incomplete"):
            pass
        return event

    async def close(self) -> None:
        self._sent.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await asyncio.wait_for(self.task, TIMEOUT_S)


@asynccontextmanager
async def connected(api: Api, **options: Any) -> AsyncIterator[Socket]:
    socket = Socket(api, **options)
    assert (await socket.message())["type"] == "websocket.accept"
    yield socket
    await socket.close()


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
async def test_websocket_keeps_responses_that_are_not_stored(serve: Serve, path: str) -> None:
    loader = answering({"Hi": "Hello!", "Bye": "Farewell."})
    async with serve(loader, models=CHATML) as api, connected(api, path=path) as socket:
        socket.send({"type": "response.create", "input": "Hi", "store": False})
        events = [await socket.event()]
        while events[-1]["type"] != "response.completed":
            events.append(await socket.event())
        first = events[-1]["response"]
        continuation = {"input": "Bye", "previous_response_id": first["id"], "store": False}
        second = (await socket.response(**continuation))["response"]
        async with connected(api) as other:
            error = await other.response(**continuation)
        await api.expect(f"GET {URL}/{first['id']}", None, 404)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert "".join(event["delta"] for event in events if "delta" in event) == "Hello!"
    assert (first["store"], second["output"][0]["content"][0]["text"]) == (False, "Farewell.")
    assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]
    assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")


async def test_websocket_forgets_the_oldest_of_large_responses(serve: Serve) -> None:
    loader, server = answering({"Hi": "Hello!"}), {"max_body_bytes": 9000}
    item = {"role": "user", "content": "Hi", "metadata": "x" * 4000}
    async with serve(loader, models=CHATML, server=server) as api, connected(api) as socket:
        ids = [(await socket.response(input=[item], store=False))["response"]["id"] for _ in range(3)]
        after = [await socket.response(input="Hi", previous_response_id=each, store=False) for each in reversed(ids)]
    assert [event["type"] for event in after] == ["response.completed", "error", "error"]


@pytest.mark.parametrize("prefix", ["", "/llm"])
async def test_generate_false_only_caches_the_prompt(serve: Serve, prefix: str) -> None:
    loader, server = answering({"Hi": "Hello!"}), {"api_prefix": prefix}
    async with serve(loader, models=CHATML, server=server) as api, connected(api, path=f"{prefix}{URL}") as socket:
        ahead = (await socket.response(input="Hi", generate=False, store=False))["response"]
        after = (await socket.response(input=[], previous_response_id=ahead["id"], store=False))["response"]
    assert (ahead["status"], ahead["output"]) == ("completed", [])
    assert after["output"][0]["content"][0]["text"] == "Hello!"
    assert after["usage"]["input_tokens_details"]["cached_tokens"] > 0


async def test_invalid_websocket_messages_get_an_error_and_keep_the_connection(serve: Serve) -> None:
    async with serve(answering({"Hi": "Hello!"})) as api, connected(api) as socket:
        for message, param, text in (
            ("{", None, ""),
            ([1], "type", ""),
            ({"type": "response.steer"}, "type", ""),
            ({}, "type", "type: messages of type null are not supported"),
            ({"type": "response.create", "input": "Hi", "temperature": "hot"}, "temperature", ""),
        ):
            socket.send(message)
            event = await socket.event()
            assert (event["type"], event["status"], event["error"]["param"]) == ("error", 400, param)
            assert text in event["error"]["message"]
        socket.send({"type": "response.processed", "response_id": "x"})
        assert (await socket.response(input="Hi"))["type"] == "response.completed"


async def test_closed_websocket_frees_the_slot(serve: Serve) -> None:
    steps = threading.Semaphore(3)
    async with serve(FakeLoader(steps=steps)) as api:
        async with connected(api) as socket:
            socket.send({"type": "response.create", "input": "Hi"})
            assert (await socket.event())["type"] == "response.created"
        steps.release(10_000)  # `serve` checks that no request is running


@pytest.mark.parametrize(
    ("n_messages", "fields"), [(MAX_WAITING + 2, {}), (4, {"metadata": {"a": "x" * 400_000}})], ids=["number", "bytes"]
)
@pytest.mark.parametrize("is_lost", [False, True])
async def test_number_and_bytes_of_queued_websocket_messages_are_limited(
    serve: Serve, n_messages: int, fields: dict[str, Any], is_lost: bool
) -> None:
    steps = threading.Semaphore(0)
    limits = {"max_body_bytes": 1_000_000, "max_bodies_bytes": 1_000_000}
    async with serve(FakeLoader(steps=steps), server=limits) as api, connected(api) as socket:
        socket.is_lost = is_lost
        for _ in range(n_messages):
            socket.send({"type": "response.create", "input": "Hi", **fields})
        if not is_lost:
            closed = await socket.message()
            assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
        steps.release(10_000)  # the end of the block waits for the end of the connection


@pytest.mark.parametrize(
    ("message", "status", "error"),
    [
        (
            f'{{"type": "response.create", "input": {"[" * 300 + "]" * 300}}}',
            400,
            {"message": "the message is nested too deeply"},
        ),
        ("[" + "[1]," * MAX_VALUES, 413, {"code": "request_too_large"}),  # no JSON, which only a parser would notice
    ],
    ids=["depth", "values"],
)
async def test_websocket_message_that_would_block_the_event_loop_is_refused(
    serve: Serve, message: str, status: int, error: dict[str, Any]
) -> None:
    async with serve(answering({"Hi": "Hello!"})) as api, connected(api) as socket:
        socket.send(message)
        event = await socket.event()
        assert (event["status"], contains(event["error"], error)) == (status, True)
        assert (await socket.response(input="Hi"))["type"] == "response.completed"


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"headers": {"authorization": "Bearer wrong"}}, 401),
        ({"headers": {"authorization": "Bearer sk-one", "origin": "https://evil.example"}}, 403),
        ({"headers": {"authorization": "Bearer sk-one"}, "path": "/v1/chat/completions"}, 404),
    ],
)
async def test_websocket_handshake_checks_key_origin_and_path(
    serve: Serve, options: dict[str, Any], status: int
) -> None:
    server = {"api_keys": ["sk-one"], "cors_origins": "localhost"}
    async with serve(answering({"Hi": "Hello!"}), server=server) as api:
        socket = Socket(api, **options)
        refused = await socket.message()
        assert (refused["type"], refused["status"]) == ("websocket.http.response.start", status)
        await asyncio.wait_for(socket.task, TIMEOUT_S)
        async with connected(
            api, headers={"authorization": "Bearer sk-one", "origin": "http://localhost:1"}
        ) as accepted:
            assert (await accepted.response(input="Hi"))["type"] == "response.completed"


async def test_refused_websocket_is_not_logged_as_an_error(live: GoLive, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise clients without a key could fill the log with errors."""
    async with live(server={"api_keys": ["sk-one"]}) as server:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{server.port}/v1/responses")
        assert refused.value.response.status_code == 401
        await until(lambda: not server.server.server_state.tasks)
    assert "was refused: Invalid API Key" in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_shutdown_closes_a_websocket_after_its_response(live: GoLive) -> None:
    steps = threading.Semaphore(3)
    async with live(FakeLoader(steps=steps)) as server:
        async with connect(f"ws://127.0.0.1:{server.port}/v1/responses") as socket:
            await socket.send(orjson.dumps({"type": "response.create", "input": "Hi", "max_output_tokens": 20}))
            assert orjson.loads(await socket.recv())["type"] == "response.created"
            signal.raise_signal(signal.SIGTERM)
            await until(server.api.app.state.services.draining.is_set)
            steps.release(10_000)
            events = []
            with contextlib.suppress(ConnectionClosed):
                while True:
                    events.append(orjson.loads(await asyncio.wait_for(socket.recv(), TIMEOUT_S)))
        assert (events[-1]["type"], socket.close_code) == ("response.incomplete", 1012)


async def test_shutdown_closes_idle_websockets(serve: Serve) -> None:
    async with serve() as api, connected(api) as socket:
        api.app.state.services.draining.set()
        closed = await socket.message()
        await asyncio.wait_for(socket.task, TIMEOUT_S)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1012)
