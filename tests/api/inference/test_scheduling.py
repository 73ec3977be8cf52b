"""In which order requests are served, and how many may wait before the queues."""

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from server.serving.session import LONG_BYTES, QUICK_BYTES
from tests.api.conftest import Api, Serve, until
from tests.api.inference.dialects import BY_NAME, Asked, Dialect, of_this_server
from tests.api.streams import Exchange, posting
from tests.support.fakes import FakeLoader, FakeRunner, FakeVocab

SHORT = Asked(limit=2)


class OneSlot:
    """A server that serves one request at a time, each known by its seed, and goes on at `go`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun, self.gate = asyncio.Event(), threading.Event()
        self.runner = FakeRunner(n_seq=1, on_decode=self.hold)
        self.loader = FakeLoader(runner=lambda: self.runner)
        self.asked: list[Exchange] = []

    def hold(self, _: object) -> None:
        """In the step thread."""
        self.loop.call_soon_threadsafe(self.begun.set)
        assert self.gate.wait(100), "the gate was never opened"

    async def ask(self, stack: AsyncExitStack, api: Api, dialect: Dialect, **body: Any) -> None:
        """Post, and return when the engine has it; the first one has begun then."""
        submitted = asyncio.Event()
        with await api.pool.acquire("demo") as lease, pytest.MonkeyPatch.context() as patch:
            engine = lease.model.engine
            submit = engine.submit
            patch.setattr(engine, "submit", lambda *given: (submitted.set(), submit(*given))[1])  # type: ignore[func-returns-value]
            body = {**dialect.body(SHORT), "seed": len(self.asked) + 1, **body}
            self.asked.append(await stack.enter_async_context(posting(api.app, dialect.path, body)))
            await submitted.wait()
        await self.begun.wait()

    async def go(self) -> list[int]:
        """The order in which they were served."""
        self.gate.set()
        for exchange in self.asked:
            assert await exchange.start() == 200
        return [sampler.seed for sampler in self.runner.samplers]


@of_this_server
async def test_a_lower_priority_is_served_earlier(serve: Serve, dialect: Dialect) -> None:
    one = OneSlot()
    async with serve(one.loader) as api, AsyncExitStack() as stack:
        for priority in (0, 5, 0, -5):
            await one.ask(stack, api, dialect, priority=priority)
        assert await one.go() == [1, 4, 3, 2]


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("native", {"user": "anna"}),
        ("chat", {"safety_identifier": "anna"}),
        ("responses", {"user": "anna"}),
        ("messages", {"metadata": {"user_id": "anna"}}),
    ],
)
async def test_a_user_with_one_request_does_not_wait_for_all_of_anothers(
    serve: Serve, name: str, named: dict[str, Any]
) -> None:
    one, dialect = OneSlot(), BY_NAME[name]
    async with serve(one.loader) as api, AsyncExitStack() as stack:
        for _ in range(4):
            await one.ask(stack, api, dialect)
        await one.ask(stack, api, dialect, **named)
        assert await one.go() == [1, 5, 2, 3, 4]


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
LATE = {"b": {"path": "b.gguf", "load": "on_demand"}}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions/input_tokens"])
async def test_who_waits_for_a_load_counts_and_the_next_one_is_told(serve: Serve, path: str) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=LATE, server={"max_preparing": 2}, wait=False) as api:

        async def ask() -> httpx.Response:
            return await api.client.post(path, json=CHAT)

        waiting = [asyncio.create_task(ask()) for _ in range(2)]
        await until(lambda: api.app.state.services.preparing.n == 2)
        refused = await ask()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert b'reason="preparing_full"' in api.app.state.services.metrics.render("")[0]
        gate.set()
        assert [(await one).status_code for one in waiting] == [200, 200]
        assert api.app.state.services.preparing.n == 0
        assert (await ask()).status_code == 200


async def test_who_leaves_gives_the_place_back(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=LATE, server={"max_preparing": 1}, wait=False) as api:
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


async def test_short_texts_are_tokenized_on_the_event_loop(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others, and what needs a template or a grammar, could hold it up."""
    found: list[bool] = []
    tokenize = FakeVocab.tokenize

    def tokenized(vocab: FakeVocab, text: str, **options: bool) -> list[int]:
        if "Hi" in text:
            found.append(threading.current_thread() is threading.main_thread())
        return tokenize(vocab, text, **options)

    monkeypatch.setattr(FakeVocab, "tokenize", tokenized)
    long = {"user": "a" * QUICK_BYTES}
    async with serve(FakeLoader()) as api:
        for name, more, is_quick in (
            ("native", {}, True),
            ("completions", {}, True),
            ("completions", long, False),
            ("completions", {"grammar": 'root ::= "a"'}, False),
            ("chat", {}, False),
        ):
            found.clear()
            dialect = BY_NAME[name]
            reply = await api.client.post(dialect.path, json=dialect.body(SHORT) | more)
            assert reply.status_code == 200, reply.text
            assert found == [is_quick], (name, more)
        monkeypatch.setattr(FakeVocab, "quick_bytes", 10)  # it has thousands of special tokens
        found.clear()
        native = BY_NAME["native"]
        await api.client.post(native.path, json=native.body(SHORT))
        assert found == [False]
