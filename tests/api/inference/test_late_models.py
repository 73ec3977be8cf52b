"""Streams whose model must be loaded first: they begin when the first ping is due, and tell of errors inside."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from server.pool.state import Status
from tests.api.conftest import Api, Serve, until
from tests.api.streams import posting
from tests.support.fakes import FakeLoader

HI = [{"role": "user", "content": "Hi"}]
LATE = {"late": {"path": "late.gguf"}}
FORMATS: dict[str, tuple[dict[str, Any], bytes, bytes]] = {
    "/v1/chat/completions": ({"messages": HI}, b":\n\n", b"data: [DONE]"),
    "/v1/completions": ({"prompt": "Hi"}, b":\n\n", b"data: [DONE]"),
    "/completion": ({"prompt": "Hi"}, b":\n\n", b'"stop":true'),
    "/v1/messages": ({"messages": HI}, b'event: ping\ndata: {"type":"ping"}\n\n', b"event: message_stop"),
    "/v1/responses": (
        *({"input": "Hi"}, b'event: keepalive\ndata: {"type":"keepalive"}\n\n'),
        b"event: response.incomplete",
    ),
}


def ping_soon(api: Api) -> None:
    """Sooner than the settings allow."""
    used = api.app.state.services
    api.app.state.services = replace(used, options=replace(used.options, sse_ping_interval_s=0.02))


@pytest.mark.parametrize("path", FORMATS)
async def test_pings_come_while_it_is_loaded_then_the_answer(serve: Serve, path: str) -> None:
    body, ping, end = FORMATS[path]
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=LATE) as api:
        ping_soon(api)
        asked = {**body, "stream": True, "max_tokens": 2, "n_predict": 2, "max_output_tokens": 2}
        async with posting(api.app, path, asked) as exchange:
            assert await exchange.start() == 200
            assert [await exchange.chunk() for _ in range(3)] == [ping] * 3
            assert api.pool.state("late").status is Status.LOADING
            gate.set()
            said = b"".join([part async for part in exchange.chunks()])
        assert end in said


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/chat/completions", b"broken file"),
        ("/v1/messages", b"event: error"),
        ("/v1/responses", b"event: response.failed"),
    ],
)
async def test_a_load_that_fails_is_told_in_the_stream(serve: Serve, path: str, told: bytes) -> None:
    body, _, _ = FORMATS[path]
    gate = threading.Event()
    loader = FakeLoader(gate=gate)
    async with serve(loader, models=LATE) as api:
        ping_soon(api)
        async with posting(api.app, path, {**body, "stream": True}) as exchange:
            assert await exchange.start() == 200
            loader.failing["late"] = "broken file"
            gate.set()
            said = b"".join([part async for part in exchange.chunks()])
        assert told in said
        assert b"broken file" in said


async def test_what_fails_before_the_first_ping_has_its_status(serve: Serve) -> None:
    async with serve(FakeLoader(failing={"late": "broken file"}), models=LATE) as api:
        reply = await api.client.post("/v1/chat/completions", json={"messages": HI, "stream": True})
        assert reply.status_code == 503
        reply = await api.client.post("/v1/chat/completions?autoload=0", json={"messages": HI, "stream": True})
        assert reply.status_code == 503


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_meanwhile_leaves_nothing_behind(serve: Serve, begun: bool) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=LATE) as api:
        if begun:
            ping_soon(api)
        async with posting(api.app, "/v1/chat/completions", {"messages": HI, "stream": True}) as exchange:
            if begun:
                assert await exchange.start() == 200
                await exchange.chunk()
            else:
                await until(lambda: api.pool.state("late").status is Status.LOADING)
        gate.set()
        await until(lambda: api.pool.state("late").status is not Status.LOADING)
