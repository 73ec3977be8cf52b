"""The application gives the uvicorn that runs it its own limits, also where ``uvicorn server.app:app`` started it."""

import logging

import pytest

from tests.api.conftest import GoLive, Serve
from tests.api.transport.test_connections import HEAD

PROXIES_KEEP_S = 60  # nginx's keepalive_timeout of an upstream, and ALB's idle timeout


async def test_a_connection_without_a_request_stays_open_longer_than_proxies_keep_theirs(live: GoLive) -> None:
    async with live() as server:
        assert server.server.config.timeout_keep_alive > PROXIES_KEEP_S


async def test_a_connection_without_a_request_is_closed_in_the_end(live: GoLive) -> None:
    async with live(server={"keep_alive_s": 1}) as server:
        reader, writer = await server.connect(HEAD)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await reader.read() == b""
        writer.close()


async def test_flags_of_uvicorn_win(live: GoLive) -> None:
    async with live(uvicorn={"timeout_keep_alive": 7, "ws_max_size": 5}) as server:
        config = server.server.config
        assert (config.timeout_keep_alive, config.ws_max_size) == (7, 5)
        assert config.timeout_graceful_shutdown is not None  # not given: the server's own


async def test_another_http_protocol_of_uvicorn_serves(live: GoLive) -> None:
    async with live(uvicorn={"http": "h11"}) as server:
        assert (await server.api.client.get("/health")).status_code == 200


async def test_an_administration_port_that_uvicorn_does_not_open_is_named(
    live: GoLive, caplog: pytest.LogCaptureFixture
) -> None:
    async with live(server={"admin_port": 8081, "metrics": True}) as server:
        assert (await server.api.client.get("/metrics")).status_code == 404
    assert "server.admin_port: this uvicorn does not listen on port 8081" in caplog.text
    caplog.clear()
    async with live():
        pass
    assert "admin_port" not in caplog.text


async def test_the_reply_names_one_server(live: GoLive) -> None:
    async with live() as server:
        assert (await server.api.client.get("/health")).headers.get_list("server") == ["llamapool"]


async def test_options_that_only_uvicorn_can_have_are_named_under_another_server(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(server={"keep_alive_s": 9, "max_connections": 3}):
        pass
    assert "server.keep_alive_s, server.max_connections: no effect" in caplog.text
    caplog.clear()
    async with serve():
        pass
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
