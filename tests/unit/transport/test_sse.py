"""Event streams over a fake connection: disconnects, send timeouts, pings, and HEAD."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.types import Message

from server.transport.options import HttpOptions
from server.transport.sse import HEAD_ONLY, EventStream

SCOPE = {"type": "http", "method": "GET"}


class Client:
    """The ASGI side of a connection. `disconnected` and `reads` control the client, `sent` has the messages."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.disconnected = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()

    async def receive(self) -> Message:
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        self.sent.append(message)

    async def send_one_event(self, message: Message) -> None:
        """Send to a client that stops reading after the first event."""
        await self.send(message)
        if message.get("body"):
            self.reads.clear()

    @property
    def chunks(self) -> list[bytes]:
        return [m["body"] for m in self.sent if m.get("body")]


class Source:
    """A generator of events. `closed` and `released` count its ends and the calls of `on_close`."""

    def __init__(self, *events: bytes, endless: bool = False) -> None:
        self.events = events
        self.endless = endless
        self.closed = 0
        self.released = 0

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            for event in self.events:
                yield event
            if self.endless:
                await asyncio.Event().wait()
        finally:
            self.closed += 1

    def release(self) -> None:
        self.released += 1

    def stream(self, *, ping_s: float = 0, send_timeout_s: float = 30) -> EventStream:
        state = SimpleNamespace(services=SimpleNamespace(options=HttpOptions(idle_s=send_timeout_s)))
        request = Request({**SCOPE, "app": SimpleNamespace(state=state)})
        return EventStream(request, self.chunks(), on_close=self.release, ping_s=ping_s)


async def test_disconnect_before_the_head_calls_on_close() -> None:
    source, client = Source(endless=True), Client()
    client.reads.clear()  # the head is not sent either
    client.disconnected.set()
    await asyncio.wait_for(source.stream()(SCOPE, client.receive, client.send), 60)
    assert (source.closed, source.released) == (0, 1)


@pytest.mark.parametrize(
    "source",
    [Source(b"data: 1\n\n", b"data: 2\n\n", endless=True), Source(b"data: 1\n\n")],
    ids=["second event", "end of stream"],
)
async def test_stream_ends_with_a_timeout_if_the_client_stops_reading(source: Source) -> None:
    client = Client()
    with pytest.raises(SendTimeoutError):
        await asyncio.wait_for(source.stream(send_timeout_s=0.01)(SCOPE, client.receive, client.send_one_event), 60)
    assert (source.closed, source.released) == (1, 1)


class SteppedTimer:
    """Clock and timer of a stream, advanced by the test. `reasons` collects the errors that end the stream."""

    def __init__(self, stream: EventStream) -> None:
        self.now, self.reasons = 1000.0, list[Exception]()
        self.stream = cast(Any, stream)
        self.stream._loop = SimpleNamespace(time=lambda: self.now, call_at=lambda *_: None)

    def run_timer(self, after_s: float) -> list[str]:
        """Run the stream's timer `after_s` seconds later. Returns the names of the errors that ended the stream."""
        self.now += after_s
        self.stream._on_timer(SimpleNamespace(interrupt=self.reasons.append), None)
        return [type(reason).__name__ for reason in self.reasons]


async def test_event_does_not_restart_the_timeout_of_a_blocked_ping() -> None:
    client, stream = Client(), Source(b"data: 1\n\n").stream()
    client.reads.clear()
    timer = SteppedTimer(stream)
    ping = asyncio.create_task(stream._send_ping(client.send))
    await asyncio.sleep(0)
    timer.now += 20
    events = asyncio.create_task(stream._send_all(client.send))
    await asyncio.sleep(0)
    assert timer.run_timer(11) == ["SendTimeoutError"]
    client.reads.set()
    await asyncio.gather(ping, events)
    assert b"data: 1\n\n" in client.chunks


async def test_blocked_event_times_out_although_a_concurrent_ping_ended() -> None:
    client, other, stream = Client(), Client(), Source(b"data: 1\n\n").stream()
    client.reads.clear()
    other.reads.clear()
    timer = SteppedTimer(stream)
    ping = asyncio.create_task(stream._send_ping(other.send))
    await asyncio.sleep(0)
    events = asyncio.create_task(stream._send_all(client.send))
    await asyncio.sleep(0)
    other.reads.set()
    await ping
    assert timer.run_timer(31) == ["SendTimeoutError"]
    client.reads.set()
    await events


async def test_failed_ping_does_not_count_as_a_blocked_send() -> None:
    async def broken(_: Message) -> None:
        raise OSError("gone")

    stream = Source().stream()
    timer = SteppedTimer(stream)
    with pytest.raises(OSError, match="gone"):
        await stream._send_ping(broken)
    assert timer.run_timer(31) == []


async def test_ping_that_is_due_immediately_follows_the_head() -> None:
    client, stream = Client(), Source(b"data: 1\n\n").stream(ping_s=1)
    stream._sent_at -= 2
    await stream(SCOPE, client.receive, client.send)
    assert client.sent[0]["type"] == "http.response.start"


async def test_negative_interval_sends_no_pings() -> None:
    source, client = Source(b"data: 1\n\n"), Client()
    await source.stream(ping_s=-1)(SCOPE, client.receive, client.send)
    assert client.chunks == [b"data: 1\n\n"]


async def test_head_request_does_not_start_the_generator() -> None:
    source, client = Source(b"data: 1\n\n", endless=True), Client()
    await source.stream()({**SCOPE, HEAD_ONLY: True}, client.receive, client.send)
    assert [m["type"] for m in client.sent] == ["http.response.start", "http.response.body"]
    assert dict(client.sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert (client.chunks, source.closed, source.released) == ([], 0, 1)
