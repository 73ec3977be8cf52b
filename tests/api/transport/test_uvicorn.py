"""Settings that the application applies to the uvicorn that runs it, and limits of connections."""

import asyncio
import logging
import threading

import pytest

from server.transport.limits import connection_limit
from tests.api.conftest import GoLive, Live, Serve, chat_request, until
from tests.api.transport.test_framing import HANDSHAKE
from tests.support.fakes import FakeLoader

PROXY_KEEP_ALIVE_S = 60  # nginx's keepalive_timeout of an upstream, and ALB's idle timeout


async def test_idle_connection_is_closed_after_keep_alive_s(live: GoLive) -> None:
    async with live(server={"keep_alive_s": 1}) as server:
        reader, writer = await server.connect(HEAD)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await reader.read() == b""
        writer.close()


async def test_uvicorn_flags_take_precedence(live: GoLive) -> None:
    async with live(uvicorn={"timeout_keep_alive": 7, "ws_max_size": 5}) as server:
        config = server.server.config
        assert (config.timeout_keep_alive, config.ws_max_size) == (7, 5)
        assert config.timeout_graceful_shutdown is not None  # no such flag: the application's value
    async with live() as server:
        assert server.server.config.timeout_keep_alive > PROXY_KEEP_ALIVE_S


async def test_h11_protocol_of_uvicorn_serves(live: GoLive) -> None:
    async with live(uvicorn={"http": "h11"}) as server:
        assert (await server.api.client.get("/health")).status_code == 200


async def test_admin_port_that_uvicorn_does_not_listen_on_is_logged(
    live: GoLive, caplog: pytest.LogCaptureFixture
) -> None:
    async with live(server={"admin_port": 8081, "metrics": True}) as server:
        assert (await server.api.client.get("/metrics")).status_code == 404
    assert "server.admin_port: this uvicorn does not listen on port 8081" in caplog.text
    caplog.clear()
    async with live():
        pass
    assert "admin_port" not in caplog.text


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /v1/responses HTTP/1.1\r\nHost: x\r\n" + HANDSHAKE + b"\r\n", 101),
    ],
)
async def test_every_reply_has_one_server_header(live: GoLive, request_: bytes, status: int) -> None:
    async with live() as server:
        reader, writer = await server.connect(request_)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        writer.close()
        assert head.startswith(b"http/1.1 %d " % status)
        assert head.count(b"\r\nserver: ") == head.count(b"\r\nserver: llamapool\r\n") == 1


async def test_options_without_effect_under_another_asgi_server_are_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(server={"keep_alive_s": 9, "max_connections": 3}):
        pass
    assert "server.keep_alive_s, server.max_connections: no effect" in caplog.text
    caplog.clear()
    async with serve():
        pass
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


LIMITED = {"max_connections": 3}
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
HEAD = b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"


async def open_streams(server: Live, n: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open `n` streams and wait until all of them run."""
    opened = [await server.connect(chat_request(max_tokens=50)) for _ in range(n)]
    await until(lambda: len(server.server.server_state.tasks) == n)
    return opened


async def test_request_over_the_connection_limit_is_refused_with_retry_after(live: GoLive) -> None:
    steps = threading.Semaphore(0)
    async with live(FakeLoader(steps=steps), server=LIMITED) as server:
        opened = await open_streams(server, 3)
        reply = await server.exchange(chat_request())
        assert reply.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in reply
        assert b"connection: close\r\n" in reply
        assert b"there are too many connections" in reply
        assert (await server.exchange(HEALTH)).startswith(b"HTTP/1.1 200 ")
        steps.release(1000)
        for reader, writer in opened:
            assert b"data: [DONE]" in await reader.readuntil(b"[DONE]")
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in opened))
        assert (await server.api.client.get("/v1/models")).status_code == 200


async def test_uvicorn_refuses_connections_beyond_the_spare_ones(live: GoLive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.uvicorn_config.SPARE_CONNECTIONS", 1)
    async with live(server=LIMITED) as server:
        opened = [await server.connect(HEAD) for _ in range(3)]
        for reader, _ in opened:
            await reader.readuntil(b"\r\n\r\n")
        assert (await server.exchange(HEALTH)).startswith(b"HTTP/1.1 503 ")
        opened[0][1].close()
        await until(lambda: len(server.server.server_state.connections) == 2)
        assert (await server.exchange(HEALTH)).startswith(b"HTTP/1.1 200 ")
        for _, writer in opened:
            writer.close()


@pytest.mark.parametrize(
    ("limits", "configured", "expected", "raised"),
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
def test_connection_limit_follows_the_file_descriptor_limit(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], configured: int, expected: int, raised: int | None
) -> None:
    import resource

    soft_limits: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: soft_limits.append(pair[0]))
    assert connection_limit(configured) == expected
    assert soft_limits == ([] if raised is None else [raised])
