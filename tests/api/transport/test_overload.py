"""What stands before the queues is bounded, too."""

import asyncio
import threading
from typing import Any

import httpx
import pytest

from server.serving.session import LONG_BYTES
from tests.api.conftest import Serve, until
from tests.support.fakes import FakeLoader

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
MODELS = {"a": {"path": "a.gguf", "load": "startup"}, "b": {"path": "b.gguf", "load": "on_demand"}}


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/chat/completions/input_tokens", CHAT)]
)
async def test_who_waits_for_a_load_counts_and_the_next_one_is_told(
    serve: Serve, path: str, body: dict[str, Any]
) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models={"b": MODELS["b"]}, server={"max_preparing": 2}, wait=False) as api:

        async def ask() -> httpx.Response:
            return await api.client.post(path, json=body)

        waiting = [asyncio.create_task(ask()) for _ in range(2)]
        await until(lambda: api.app.state.services.preparing.n == 2)
        refused = await ask()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        gate.set()
        assert [(await one).status_code for one in waiting] == [200, 200]
        assert api.app.state.services.preparing.n == 0
        assert (await ask()).status_code == 200


async def test_who_leaves_gives_the_place_back(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models={"b": MODELS["b"]}, server={"max_preparing": 1}, wait=False) as api:
        waiting = asyncio.create_task(api.client.post("/v1/chat/completions", json=CHAT))
        await until(lambda: api.app.state.services.preparing.n == 1)
        waiting.cancel()
        await until(lambda: api.app.state.services.preparing.n == 0)
        gate.set()


@pytest.mark.slow
async def test_long_texts_keep_nobody_else_from_a_thread(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(server={"threads_http": 1}) as api:
        used = api.app.state.services

        async def ask(n: int) -> httpx.Response:
            return await api.client.post("/tokenize", json={"content": "a" * n})

        for threads, waits, passes in ((used.prepare_long, LONG_BYTES, 9), (used.prepare, 9, LONG_BYTES)):
            gate.clear()
            threads.submit(gate.wait, 100)
            waiting = asyncio.create_task(ask(waits))
            assert (await ask(passes)).status_code == 200
            assert not waiting.done()
            gate.set()
            assert (await waiting).status_code == 200
