"""Events that are there together: chunks of their own for clients, one write for the system."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

from starlette.types import Message, Receive, Scope, Send

from server.transport.middleware import Middleware
from server.transport.options import HttpOptions
from server.transport.sse import Parts

EVENTS = [b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"]


class Cycle:
    """What uvicorn's is to its application: `send` knows the transport."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.transport = SimpleNamespace(write=self.writes.append)

    async def send(self, message: Message) -> None:
        if body := message.get("body"):
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))


async def through(send: Send, parts: Sequence[bytes]) -> None:
    """An application's events on their way out."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": Parts(parts), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def receive() -> Message:
        raise AssertionError

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    await Middleware(app, HttpOptions(), asyncio.Event(), lambda _: None)(scope, receive, send)


async def test_each_is_a_chunk_and_all_are_one_write() -> None:
    cycle = Cycle()
    transport = cycle.transport
    await through(cycle.send, EVENTS)
    assert cycle.writes == [b"".join(b"9\r\n%b\r\n" % event for event in EVENTS)]
    assert cycle.transport is transport


async def test_a_server_without_such_a_transport_gets_each() -> None:
    got: list[bytes] = []

    async def send(message: Message) -> None:
        got.append(message.get("body", b""))

    await through(send, EVENTS)
    assert got == [b"", *EVENTS, b""]


def test_who_knows_of_no_parts_sees_bytes() -> None:
    assert Parts(EVENTS) == b"".join(EVENTS)
