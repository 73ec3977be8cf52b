"""Fixtures that run the whole application over a fake model, without sockets and without the native library.

The lifespan runs as under uvicorn. `client` is enough for most tests. `serve(...)` takes settings and a loader::

    async with serve(loader=FakeLoader(replies={"Hi": "there"}), server={"slots": False}) as api:
        reply = await api.client.get("/health")
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from server.app import create_app
from server.engine.embedding import EmbeddingEngine
from server.engine.engine import Engine
from server.hub.hub import Hub
from server.options.model import ModelSettings
from server.options.server import ServerSettings
from server.options.sources import Origin
from server.pool.model import LoadedModel
from server.pool.pool import Pool
from server.routes.health import is_pending
from server.settings import Settings
from server.structured.grammar.sandbox import Sandbox
from tests.support.fakes import FakeLoader
from tests.support.pool_integrity import check_pool

TIMEOUT_S = 100.0
MODELS: Mapping[str, Any] = {"demo": {"path": "demo.gguf", "aliases": ["gpt-4o-mini"], "load": "startup"}}


@dataclass(frozen=True)
class Api:
    """A running application."""

    app: FastAPI
    client: httpx.AsyncClient
    loader: FakeLoader

    @property
    def pool(self) -> Pool:
        pool: Pool = self.app.state.services.pool
        return pool

    def loaded(self, model: str = "demo") -> LoadedModel:
        loaded = self.pool.state(model).loaded
        assert loaded is not None
        return loaded

    async def settled(self) -> None:
        """Wait until every model that loads at start is loaded, or has failed."""
        with self.pool.subscribe() as events:
            while any(is_pending(s) for s in self.pool.states() if s.spec.load == "startup"):
                await anext(events)

    async def expect(
        self, request: str, body: Any = None, status: int = 200, part: Any = "", headers: Any = None
    ) -> httpx.Response:
        """Send ``METHOD /path`` and return the reply, which must have `status` and contain `part`.

        `part` is a substring of the body, JSON members at any depth, or a tuple of both.
        """
        method, path = request.split(" ", 1)
        sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {} if body is None else {"json": body}
        reply = await self.client.request(method, path, headers=headers, **sent)
        assert reply.status_code == status, (request, body, reply.text)
        for each in part if isinstance(part, tuple) else (part,):
            matches = each in reply.text if isinstance(each, str) else contains(reply.json(), each)
            assert matches, (request, body, reply.text)
        return reply


def contains(value: Any, part: Any) -> bool:
    """Return whether `value` has every key of `part`, at any depth, with the same value."""
    if isinstance(part, dict):
        return isinstance(value, dict) and all(key in value and contains(value[key], part[key]) for key in part)
    return bool(value == part)


Serve = Callable[..., AbstractAsyncContextManager[Api]]


def make_settings(
    server: Mapping[str, Any] | None = None, models: Mapping[str, Mapping[str, Any]] | None = None
) -> Settings:
    """Return the settings of a YAML file with these sections. The default model loads at startup."""
    models = MODELS if models is None else models
    return Settings(
        server=ServerSettings.model_validate({"drain_s": 60, "state": "memory", **(server or {})}),
        models={name: ModelSettings.model_validate(dict(fields)) for name, fields in models.items()},
        origins={name: Origin("test") for name in models},
        hub=Hub(offline=True, no_network=True),
    )


@pytest.fixture(autouse=True, scope="session")
def shared_routes() -> Iterator[None]:
    """Share one set of routes between all applications: routes have no state, and building them takes 40 ms."""
    first = create_app(make_settings(), loader=FakeLoader())
    first.state.services.batches.state.database.close()  # this application never starts

    def include(app: FastAPI) -> None:
        app.router.routes[:] = first.router.routes
        app.openapi = first.openapi  # type: ignore[method-assign]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.app.include_routes", include)
        yield


@asynccontextmanager
async def run_app(app: FastAPI) -> AsyncIterator[None]:
    """Start `app` as an ASGI server would, and stop it at the end."""
    async with asyncio.timeout(TIMEOUT_S), app.router.lifespan_context(app):
        yield


@asynccontextmanager
async def running(
    app: FastAPI, loader: FakeLoader, *, address: str = "127.0.0.1", headers: Any = None
) -> AsyncIterator[Api]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=True, client=(address, 1))
    async with run_app(app), httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        yield Api(app, client, loader)


@pytest.fixture
def serve() -> Serve:
    """Return a context manager that runs an application: ``serve(loader, server={...}, models={...}, wait=True)``."""

    @asynccontextmanager
    async def start(
        loader: FakeLoader | None = None,
        *,
        wait: bool = True,
        headers: Any = None,
        sandbox: Sandbox | None = None,
        **settings: Any,
    ) -> AsyncIterator[Api]:
        loader = loader or FakeLoader()
        app = create_app(make_settings(**settings), loader=loader, sandbox=sandbox)
        async with running(app, loader, headers=headers) as api:
            if wait:
                await api.settled()
            yield api
            await check_nothing_leaked(api)
        check_weights_closed(loader)

    return start


def check_weights_closed(loader: FakeLoader) -> None:
    """Assert that the server closed all weights when it stopped. A leaked lease prevents it."""
    assert all(weights.closed for weights in loader.loaded), "weights outlive the server"


async def check_nothing_leaked(api: Api) -> None:
    """Wait until all engines are idle, then assert that every slot is free and every KV cell is accounted for."""
    for state in api.pool.states():
        if state.loaded is not None:
            await idle(state.loaded)
            for engine in (state.loaded.generator, state.loaded.embedding):
                if isinstance(engine, Engine | EmbeddingEngine):
                    engine.check_integrity()
    check_pool(api.pool)


async def idle(engine: Any) -> None:
    """Wait until `engine`, an engine or a loaded model, has no queued or running request."""
    await until(lambda: not engine.busy)


async def until(condition: Callable[[], object]) -> None:
    """Poll until `condition` holds. For conditions that no event announces."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 (no event to wait for)
            await asyncio.sleep(0.001)


@pytest.fixture
async def api(serve: Serve) -> AsyncIterator[Api]:
    """Yield a running application with the model "demo" loaded."""
    async with serve() as started:
        yield started


@pytest.fixture
def client(api: Api) -> httpx.AsyncClient:
    return api.client


class LiveServer(uvicorn.Server):
    """Run plain uvicorn in the test's event loop. `config` is passed to `uvicorn.Config`.

    `ready` is set when the server listens.
    """

    def __init__(self, app: FastAPI, **config: Any) -> None:
        super().__init__(uvicorn.Config(app, lifespan="on", log_config=None, access_log=False, **config))
        self.ready = asyncio.Event()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True  # uvicorn's own handler raises the signal again at shutdown

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@dataclass(frozen=True)
class Live:
    """A running application that listens on a real socket."""

    api: Api
    server: LiveServer
    port: int
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    """Writers of all connections. An open transport fails the test that runs when it is garbage-collected."""

    async def connect(self, raw: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection and send `raw` on it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(raw)
        await writer.drain()
        return reader, writer

    async def exchange(self, raw: bytes) -> bytes:
        """Send `raw` on a new connection. Return all bytes until the server closes the connection."""
        reader, writer = await self.connect(raw)
        try:
            return await asyncio.wait_for(reader.read(), TIMEOUT_S)
        finally:
            writer.close()


GoLive = Callable[..., AbstractAsyncContextManager[Live]]


@pytest.fixture
def live() -> GoLive:
    """Return a context manager that runs an application under uvicorn, for tests that need a real socket.

    It takes the arguments of `serve`, overrides of `Services.options`, and ``uvicorn``: arguments of `uvicorn.Config`.
    """

    @asynccontextmanager
    async def start(
        loader: FakeLoader | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        uvicorn: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> AsyncIterator[Live]:
        loader = loader or FakeLoader()
        app = create_app(make_settings(**settings), loader=loader)
        if options:  # e.g. times shorter than the settings allow
            app.state.services = replace(app.state.services, options=replace(app.state.services.options, **options))
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)  # so that a slow client blocks it soon
        port = listening.getsockname()[1]
        server = LiveServer(app, **(uvicorn or {}))
        async with asyncio.timeout(TIMEOUT_S):
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            await server.ready.wait()
            scheme = "https" if server.config.ssl else "http"
            url = f"{scheme}://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, verify=False) as client:
                api = Api(app, client, loader)
                await api.settled()
                running_live = Live(api, server, port)
                try:
                    yield running_live
                    await check_nothing_leaked(api)
                finally:
                    for writer in running_live.writers:
                        writer.close()
                    server.should_exit = True
                    await serving
                    for writer in running_live.writers:
                        with suppress(OSError):  # reset by the server, or aborted by the test
                            await writer.wait_closed()
        check_weights_closed(loader)

    return start


def chat_request(path: str = "/v1/chat/completions", **body: Any) -> bytes:
    """Return the bytes of an HTTP POST with a chat body, which streams by default."""
    payload = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, **body}
    content = json.dumps(payload).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content
