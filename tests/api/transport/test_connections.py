"""More connections than there is room for."""

import asyncio
import threading

import pytest

from server.transport.limits import most_connections, most_handshakes
from tests.api.conftest import GoLive, Live, chat_request, until
from tests.support.fakes import FakeLoader, FakeRunner

MOST = {"max_connections": 3}
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
HEAD = b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"


async def streams(server: Live, n: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """So many that are under way."""
    opened = [await server.connect(chat_request(max_tokens=50)) for _ in range(n)]
    await until(lambda: len(server.server.server_state.tasks) == n)
    return opened


async def test_who_has_been_idle_for_the_longest_time_makes_room(live: GoLive) -> None:
    async with live(server=MOST) as server:
        first, second, third = [await server.connect(HEAD) for _ in range(3)]
        for reader, _ in (first, second, third):
            await reader.readuntil(b"\r\n\r\n")
        first[1].write(HEAD)  # it is idle since later than the second now
        await first[0].readuntil(b"\r\n\r\n")
        assert (await server.exchange(HEALTH)).startswith(b"HTTP/1.1 200 ")
        assert await second[0].read() == b""
        second[1].close()
        for reader, writer in (first, third):
            writer.write(HEAD)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            writer.close()


async def test_with_requests_on_all_the_next_is_told_to_come_back(live: GoLive) -> None:
    steps = threading.Semaphore(0)
    async with live(FakeLoader(runner=lambda: FakeRunner(steps=steps)), server=MOST) as server:
        opened = await streams(server, 3)
        reply = await server.exchange(chat_request())
        assert reply.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in reply
        assert b"Connection: close\r\n" in reply
        assert b"there are too many connections" in reply
        assert (await server.exchange(HEALTH)).startswith(b"HTTP/1.1 200 ")
        steps.release(1000)
        for reader, writer in opened:
            assert b"data: [DONE]" in await reader.readuntil(b"[DONE]")
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in opened))
        assert (await server.api.client.get("/v1/models")).status_code == 200


async def test_what_comes_beyond_those_who_are_told_is_closed(live: GoLive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.transport.uvicorn_protocols.SPARE", 0)
    steps = threading.Semaphore(0)
    async with live(FakeLoader(runner=lambda: FakeRunner(steps=steps)), server=MOST) as server:
        opened = await streams(server, 3)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b""
        steps.release(1000)
        for _, each in (*opened, (reader, writer)):
            each.close()


async def test_a_reply_that_nobody_reads_is_given_up(live: GoLive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.transport.uvicorn_protocols.UNREAD_S", 0.05)
    async with live() as server:
        content = b'{"content": "%s"}' % (b"a" * 600_000)
        head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content)
        _, writer = await server.connect(head + content)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        connections = server.server.server_state.connections
        await until(lambda: connections)
        await until(lambda: not connections)
        writer.transport.abort()


@pytest.mark.parametrize(
    ("limits", "wanted", "most", "raised"),
    [
        ((1024, 1 << 20), 0, 8192, 8448),
        ((1024, 4096), 0, 3840, 4096),
        ((1024, 1024), 0, 768, None),
        ((64, 64), 0, 32, None),
        ((1024, 1 << 20), 5000, 5000, 5256),
        ((1024, 1 << 20), 100, 100, None),
        ((-1, -1), 0, 8192, None),
        ((1024, -1), 0, 8192, 8448),
    ],
)
def test_there_are_descriptors_for_all(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], wanted: int, most: int, raised: int | None
) -> None:
    import resource

    asked: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: asked.append(pair[0]))
    assert most_connections(wanted) == most
    assert asked == ([] if raised is None else [raised])
    with_tls = most_connections(wanted, tls=True)
    assert with_tls <= most
    n_descriptors = asked[-1] if asked else limits[0]
    assert n_descriptors < 128 or n_descriptors == -1 or with_tls + most_handshakes(with_tls) < n_descriptors
