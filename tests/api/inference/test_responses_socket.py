"""``/v1/responses`` over a WebSocket, below any client: one ASGI connection, message by message."""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from server.transport.websocket import MAX_WAITING
from tests.api.conftest import Api, GoLive, Serve, until
from tests.api.scripted import CHATML, answering
from tests.support.fakes import FakeLoader, FakeRunner

TIMEOUT_S = 100.0


class Socket:
    """A connection under way. `said` are its messages; the first is what became of the handshake."""

    def __init__(self, api: Api, path: str = "/v1/responses", headers: dict[str, str] | None = None) -> None:
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._heard.put_nowait({"type": "websocket.connect"})
        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
            "subprotocols": [],
            "state": {},
            "extensions": {"websocket.http.response": {}},
        }
        self.task = asyncio.create_task(api.app(scope, self._heard.get, self.said.put))  # type: ignore[arg-type]

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
async def test_events_come_as_messages(serve: Serve, path: str) -> None:
    async with serve(answering({"Hi": "Hello there!"})) as api, opened(api, path=path) as socket:
        socket.tell({"type": "response.create", "input": "Hi"})
        found = [await socket.event()]
        while found[-1]["type"] != "response.completed":
            found.append(await socket.event())
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[0]["type"] == "response.created"
    assert "".join(event["delta"] for event in found if "delta" in event) == "Hello there!"


async def test_a_connection_remembers_what_is_not_stored(serve: Serve) -> None:
    async with serve(answering({"Hi": "Hello!", "Bye": "Farewell."}), models=CHATML) as api, opened(api) as socket:
        first = (await socket.response(input="Hi", store=False))["response"]
        asked = {"input": "Bye", "previous_response_id": first["id"], "store": False}
        second = (await socket.response(**asked))["response"]
        async with opened(api) as other:
            lost = await other.response(**asked)
        gone = await api.client.get(f"/v1/responses/{first['id']}")
    assert (first["store"], second["output"][0]["content"][0]["text"]) == (False, "Farewell.")
    assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]
    assert (lost["status"], lost["error"]["code"]) == (400, "previous_response_not_found")
    assert gone.status_code == 404


async def test_a_prompt_may_be_computed_ahead(serve: Serve) -> None:
    async with serve(answering({"Hi": "Hello!"}), models=CHATML) as api, opened(api) as socket:
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
        wrong = await socket.response(input="Hi", temperature="hot")
        assert (wrong["type"], wrong["status"], wrong["error"]["param"]) == ("error", 400, "temperature")
        socket.tell({"type": "response.processed", "response_id": "x"})
        assert (await socket.response(input="Hi"))["type"] == "response.completed"


async def test_a_client_that_leaves_frees_its_slot(serve: Serve) -> None:
    steps = threading.Semaphore(3)
    async with serve(FakeLoader(runner=lambda: FakeRunner(steps=steps))) as api:
        async with opened(api) as socket:
            socket.tell({"type": "response.create", "input": "Hi"})
            assert (await socket.event())["type"] == "response.created"
        steps.release(10_000)  # `serve` checks that nothing runs on


async def test_messages_that_wait_are_bounded(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with serve(FakeLoader(runner=lambda: FakeRunner(steps=steps))) as api:
        socket = Socket(api)
        assert (await socket.began())["type"] == "websocket.accept"
        for _ in range(MAX_WAITING + 2):
            socket.tell({"type": "response.create", "input": "Hi"})
        closed = await socket.began()
        assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
        steps.release(10_000)
        await socket.close()


async def test_messages_that_wait_count_as_bodies_do(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with serve(
        FakeLoader(runner=lambda: FakeRunner(steps=steps)),
        server={"max_body_bytes": 1_000_000, "max_bodies_bytes": 1_000_000},
    ) as api:
        socket = Socket(api)
        assert (await socket.began())["type"] == "websocket.accept"
        for _ in range(4):
            socket.tell({"type": "response.create", "input": "Hi", "metadata": {"a": "x" * 400_000}})
        closed = await socket.began()
        assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
        steps.release(10_000)
        await socket.close()


async def test_a_message_that_is_nested_too_deeply_is_told(serve: Serve) -> None:
    async with serve() as api:
        socket = Socket(api)
        assert (await socket.began())["type"] == "websocket.accept"
        socket.tell(f'{{"type": "response.create", "input": {"[" * 300 + "]" * 300}}}')
        said = await socket.event()
        assert (said["status"], said["error"]["message"]) == (400, "the message is nested too deeply")
        await socket.close()


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
    async with live(FakeLoader(runner=lambda: FakeRunner(steps=steps))) as server:
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
    async with serve() as api:
        socket = Socket(api)
        assert (await socket.began())["type"] == "websocket.accept"
        api.app.state.services.draining.set()
        closed = await socket.began()
        await asyncio.wait_for(socket.task, TIMEOUT_S)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1012)
