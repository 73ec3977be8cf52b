"""The order in which requests are served, `max_preparing`, and the threads that prepare requests."""

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from server.serving.session import LONG_BYTES, QUICK_BYTES
from tests.api.conftest import Api, Serve, until
from tests.api.inference.dialects import BY_NAME, Dialect, Query, llamapool_dialects
from tests.api.streams import Exchange, posting
from tests.support.fakes import FakeLoader, FakeRunner, FakeVocab

SHORT = Query(limit=2)


class OneSlot:
    """A fake model with one slot. It holds the first request until `serve_all`; seeds number the requests."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.started, self.gate = asyncio.Event(), threading.Event()
        self.runner = FakeRunner(n_seq=1, on_decode=self.wait_for_gate)
        self.loader = FakeLoader(runner=lambda: self.runner)
        self.exchanges: list[Exchange] = []

    def wait_for_gate(self, _: object) -> None:
        """Block the step thread until the gate opens."""
        self.loop.call_soon_threadsafe(self.started.set)
        assert self.gate.wait(100), "the gate was never opened"

    async def post(self, stack: AsyncExitStack, api: Api, dialect: Dialect, **fields: Any) -> None:
        """Post a request. Return when it is in the engine's queue and the first request is running."""
        submitted = asyncio.Event()
        with await api.pool.acquire("demo") as lease, pytest.MonkeyPatch.context() as patch:
            engine = lease.model.engine
            submit = engine.submit
            patch.setattr(engine, "submit", lambda *args: (submitted.set(), submit(*args))[1])  # type: ignore[func-returns-value]
            body = {**dialect.body(SHORT), "seed": len(self.exchanges) + 1, **fields}
            self.exchanges.append(await stack.enter_async_context(posting(api.app, dialect.path, body)))
            await submitted.wait()
        await self.started.wait()

    async def serve_all(self) -> list[int]:
        """Open the gate. Return the numbers of the requests in the order in which they were served."""
        self.gate.set()
        for exchange in self.exchanges:
            assert await exchange.start() == 200
        return [sampler.seed for sampler in self.runner.samplers]


@llamapool_dialects
async def test_lower_priority_value_is_served_first(serve: Serve, dialect: Dialect) -> None:
    server = OneSlot()
    async with serve(server.loader) as api, AsyncExitStack() as stack:
        for priority in (0, 5, 0, -5):
            await server.post(stack, api, dialect, priority=priority)
        assert await server.serve_all() == [1, 4, 3, 2]


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("native", {"user": "anna"}),
        ("chat", {"safety_identifier": "anna"}),
        ("responses", {"user": "anna"}),
        ("messages", {"metadata": {"user_id": "anna"}}),
    ],
)
async def test_users_are_served_in_turn(serve: Serve, name: str, user: dict[str, Any]) -> None:
    server, dialect = OneSlot(), BY_NAME[name]
    async with serve(server.loader) as api, AsyncExitStack() as stack:
        for _ in range(4):
            await server.post(stack, api, dialect)
        await server.post(stack, api, dialect, **user)
        assert await server.serve_all() == [1, 5, 2, 3, 4]


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
ON_DEMAND = {"b": {"path": "b.gguf", "load": "on_demand"}}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions/input_tokens"])
async def test_connected_requests_waiting_for_a_load_count_against_max_preparing(serve: Serve, path: str) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=ON_DEMAND, server={"max_preparing": 2}, wait=False) as api:
        preparing = api.app.state.services.preparing

        async def post() -> httpx.Response:
            return await api.client.post(path, json=CHAT)

        waiting, disconnected = (asyncio.create_task(post()) for _ in range(2))
        await until(lambda: preparing.n == 2)
        refused = await post()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert b'reason="preparing_full"' in api.app.state.services.metrics.render("")[0]
        disconnected.cancel()
        await until(lambda: preparing.n == 1)
        gate.set()
        assert (await waiting).status_code == (await post()).status_code == 200
        assert preparing.n == 0


async def test_client_whose_texts_are_slow_leaves_a_thread_to_others(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, running, original = threading.Event(), list[str](), FakeVocab.tokenize

    def tokenize(vocab: FakeVocab, text: str, **options: bool) -> list[int]:
        if text.startswith("slow"):
            running.append(text)
            assert gate.wait(100), "the gate was never opened"
        return original(vocab, text, **options)

    async with serve() as api:
        monkeypatch.setattr(FakeVocab, "tokenize", tokenize)
        transport = httpx.ASGITransport(api.app, client=("10.0.0.2", 1))
        n = api.app.state.services.prepare._max_workers
        bodies: list[dict[str, object]] = [{"content": f"slow {i}"} for i in range(n + 1)]
        tasks = [asyncio.create_task(api.client.post("/tokenize", json=body)) for body in bodies]
        await until(lambda: len(running) == n - 1)
        for task in tasks[: n - 1]:
            task.cancel()  # a disconnect does not end the work
        await asyncio.wait(tasks[: n - 1])
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as other:
            assert (await other.post("/tokenize", json={"content": "quick"})).status_code == 200
        assert len(running) == n - 1
        gate.set()
        assert [(await task).status_code for task in tasks[n - 1 :]] == [200, 200]


@pytest.mark.slow
async def test_long_and_short_texts_are_prepared_in_separate_threads(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(server={"threads_http": 1}) as api:
        services = api.app.state.services

        async def tokenize(n_bytes: int) -> httpx.Response:
            return await api.client.post("/tokenize", json={"content": "a" * n_bytes})

        for blocked, n_blocked, n_other in ((services.prepare_long, LONG_BYTES, 9), (services.prepare, 9, LONG_BYTES)):
            gate.clear()
            for _ in range(blocked._max_workers):
                blocked.submit(gate.wait, 100)
            waiting = asyncio.create_task(tokenize(n_blocked))
            assert (await tokenize(n_other)).status_code == 200
            assert not waiting.done()
            gate.set()
            assert (await waiting).status_code == 200


async def test_only_short_texts_are_tokenized_on_the_event_loop(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts, templates and grammars would block the event loop."""
    on_event_loop: list[bool] = []
    tokenize = FakeVocab.tokenize

    def record_thread(vocab: FakeVocab, text: str, **options: bool) -> list[int]:
        if "Hi" in text:
            on_event_loop.append(threading.current_thread() is threading.main_thread())
        return tokenize(vocab, text, **options)

    monkeypatch.setattr(FakeVocab, "tokenize", record_thread)
    long = {"user": "a" * QUICK_BYTES}
    async with serve(FakeLoader()) as api:
        for name, fields, is_quick in (
            ("native", {}, True),
            ("completions", {}, True),
            ("completions", long, False),
            ("completions", {"grammar": 'root ::= "a"'}, False),
            ("chat", {}, False),
        ):
            on_event_loop.clear()
            dialect = BY_NAME[name]
            reply = await api.client.post(dialect.path, json=dialect.body(SHORT) | fields)
            assert reply.status_code == 200, reply.text
            assert on_event_loop == [is_quick], (name, fields)
        monkeypatch.setattr(FakeVocab, "quick_bytes", 10)  # as for a vocabulary with thousands of special tokens
        on_event_loop.clear()
        native = BY_NAME["native"]
        await api.client.post(native.path, json=native.body(SHORT))
        assert on_event_loop == [False]
