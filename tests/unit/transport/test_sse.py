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
    """The server's side of a connection: what was sent, and when the client leaves."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.got = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        self.sent.append(message)
        self.got.set()

    async def send_one_event(self, message: Message) -> None:
        """`send` to a client that reads nothing more behind the first event."""
        await self.send(message)
        if message.get("body"):
            self.reads.clear()

    @property
    def chunks(self) -> list[bytes]:
        return [m["body"] for m in self.sent if m.get("body")]


class Source:
    """Events, and whether their generator was closed."""

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


async def test_what_was_acquired_is_released_though_the_generator_never_started() -> None:
    source, client = Source(endless=True), Client()
    client.reads.clear()  # not even the head gets out
    client.left.set()
    await asyncio.wait_for(source.stream()(SCOPE, client.receive, client.send), 60)
    assert (source.closed, source.released) == (0, 1)


@pytest.mark.parametrize(
    "source",
    [Source(b"data: 1\n\n", b"data: 2\n\n", endless=True), Source(b"data: 1\n\n")],
    ids=["the second event", "the end of the stream"],
)
async def test_a_client_that_does_not_read_is_given_up(source: Source) -> None:
    client = Client()
    with pytest.raises(SendTimeoutError):
        await asyncio.wait_for(source.stream(send_timeout_s=0.01)(SCOPE, client.receive, client.send_one_event), 60)
    assert (source.closed, source.released) == (1, 1)


class Hand:
    """A stream's clock, and its timer in the test's hand. `reasons`: why the stream was ended."""

    def __init__(self, stream: EventStream) -> None:
        self.now, self.reasons = 1000.0, list[Exception]()
        self.stream = cast(Any, stream)
        self.stream._loop = SimpleNamespace(time=lambda: self.now, call_at=lambda *_: None)

    def looked(self, after_s: float) -> list[str]:
        """Return why the stream is ended, if it looks for pings and timeouts then."""
        self.now += after_s
        self.stream._look(SimpleNamespace(interrupt=self.reasons.append), None)
        return [type(reason).__name__ for reason in self.reasons]


async def test_an_event_beside_a_ping_that_is_stuck_does_not_begin_the_time_anew() -> None:
    client, stream = Client(), Source(b"data: 1\n\n").stream()
    client.reads.clear()
    hand = Hand(stream)
    ping = asyncio.create_task(stream._send_ping(client.send))
    await asyncio.sleep(0)
    hand.now += 20
    events = asyncio.create_task(stream._send_all(client.send))
    await asyncio.sleep(0)
    assert hand.looked(11) == ["SendTimeoutError"]
    client.reads.set()
    await asyncio.gather(ping, events)
    assert b"data: 1\n\n" in client.chunks


async def test_an_event_is_timed_though_a_ping_beside_it_has_ended() -> None:
    client, other, stream = Client(), Client(), Source(b"data: 1\n\n").stream()
    client.reads.clear()
    other.reads.clear()
    hand = Hand(stream)
    ping = asyncio.create_task(stream._send_ping(other.send))
    await asyncio.sleep(0)
    events = asyncio.create_task(stream._send_all(client.send))
    await asyncio.sleep(0)
    other.reads.set()
    await ping
    assert hand.looked(31) == ["SendTimeoutError"]
    client.reads.set()
    await events


async def test_a_ping_that_fails_is_no_send_that_lasts() -> None:
    async def broken(_: Message) -> None:
        raise OSError("gone")

    stream = Source().stream()
    hand = Hand(stream)
    with pytest.raises(OSError, match="gone"):
        await stream._send_ping(broken)
    assert hand.looked(31) == []


async def test_a_ping_that_is_due_at_once_follows_the_head() -> None:
    client, stream = Client(), Source(b"data: 1\n\n").stream(ping_s=1)
    stream._sent_at -= 2
    await stream(SCOPE, client.receive, client.send)
    assert client.sent[0]["type"] == "http.response.start"


async def test_no_pings_when_they_are_off() -> None:
    source, client = Source(b"data: 1\n\n"), Client()
    await source.stream(ping_s=-1)(SCOPE, client.receive, client.send)
    assert client.chunks == [b"data: 1\n\n"]


async def test_a_head_gets_the_head_and_the_generator_never_starts() -> None:
    source, client = Source(b"data: 1\n\n", endless=True), Client()
    await source.stream()({**SCOPE, HEAD_ONLY: True}, client.receive, client.send)
    assert [m["type"] for m in client.sent] == ["http.response.start", "http.response.body"]
    assert dict(client.sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert (client.chunks, source.closed, source.released) == ([], 0, 1)
