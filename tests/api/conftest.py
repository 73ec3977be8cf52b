"""The whole application over a fake model: no native library, no sockets, the lifespan run as uvicorn does.

`client` is enough for most tests. `serve(...)` starts an application with other settings or another loader::

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
        found = self.pool.state(model).loaded
        assert found is not None
        return found

    async def settled(self) -> None:
        """Wait until every model that loads at start is loaded, or has failed."""
        with self.pool.subscribe() as events:
            while any(is_pending(s) for s in self.pool.states() if s.spec.load == "startup"):
                await anext(events)

    async def expect(
        self, request: str, body: Any = None, status: int = 200, part: Any = "", headers: Any = None
    ) -> httpx.Response:
        """Send ``METHOD /path``. The reply must have this status and contain `part`: a text, or members of its JSON at
        any depth, or a tuple of both."""
        method, path = request.split(" ", 1)
        sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {} if body is None else {"json": body}
        reply = await self.client.request(method, path, headers=headers, **sent)
        assert reply.status_code == status, (request, body, reply.text)
        for each in part if isinstance(part, tuple) else (part,):
            assert each in reply.text if isinstance(each, str) else has(reply.json(), each), (request, body, reply.text)
        return reply


def has(found: Any, part: Any) -> bool:
    """Return whether every key of `part`, at any depth, is in `found` with its value."""
    if isinstance(part, dict):
        return isinstance(found, dict) and all(key in found and has(found[key], part[key]) for key in part)
    return bool(found == part)


Serve = Callable[..., AbstractAsyncContextManager[Api]]


def make_settings(
    server: Mapping[str, Any] | None = None, models: Mapping[str, Mapping[str, Any]] | None = None
) -> Settings:
    """Settings as a YAML file would give them, by default one model that loads at start."""
    models = MODELS if models is None else models
    return Settings(
        server=ServerSettings.model_validate({"drain_s": 60, "state": "memory", **(server or {})}),
        models={name: ModelSettings.model_validate(dict(fields)) for name, fields in models.items()},
        origins={name: Origin("test") for name in models},
        hub=Hub(offline=True, no_network=True),
    )


@pytest.fixture(autouse=True, scope="session")
def shared_routes() -> Iterator[None]:
    """Give every application the same routes: they know nothing of it, and FastAPI needs 40 ms to make them."""
    first = create_app(make_settings(), loader=FakeLoader())
    first.state.services.batches.state.database.close()  # it never runs

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
    """Starts applications: ``serve(loader=..., server={...}, models={...}, wait=True)``."""

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
        assert all(weights.closed for weights in loader.loaded), "weights outlive the server"

    return start


async def check_nothing_leaked(api: Api) -> None:
    """Every slot is free and every KV cell accounted for. (A lease that is left keeps the weights from closing.)"""
    for state in api.pool.states():
        if state.loaded is not None:
            await idle(state.loaded)
            for engine in (state.loaded.generator, state.loaded.embedding):
                if isinstance(engine, Engine | EmbeddingEngine):
                    engine.check_integrity()
    check_pool(api.pool)


async def idle(engine: Any) -> None:
    """Wait until no request waits or runs in an engine, or in all of a loaded model."""
    await until(lambda: not engine.busy)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until `condition` holds; for what announces itself by no event."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 (see above; time decides nothing but a failure)
            await asyncio.sleep(0.001)


@pytest.fixture
async def api(serve: Serve) -> AsyncIterator[Api]:
    """One running application with the model "demo" loaded."""
    async with serve() as started:
        yield started


@pytest.fixture
def client(api: Api) -> httpx.AsyncClient:
    return api.client


class LiveServer(uvicorn.Server):
    """Run plain uvicorn in the test's event loop. `config` is `uvicorn.Config`'s; `ready` is set when it listens."""

    def __init__(self, app: FastAPI, **config: Any) -> None:
        super().__init__(uvicorn.Config(app, lifespan="on", log_config=None, access_log=False, **config))
        self.ready = asyncio.Event()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True  # uvicorn would raise the signal once more at its end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@dataclass(frozen=True)
class Live:
    """A running application behind a real socket."""

    api: Api
    server: LiveServer
    port: int
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    """Of all connections: a transport that is left open is an error of whatever test runs when it is collected."""

    async def connect(self, raw: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection on which `raw` was sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(raw)
        await writer.drain()
        return reader, writer

    async def exchange(self, raw: bytes) -> bytes:
        """All that the server says to `raw` until it closes the connection."""
        reader, writer = await self.connect(raw)
        try:
            return await asyncio.wait_for(reader.read(), TIMEOUT_S)
        finally:
            writer.close()


GoLive = Callable[..., AbstractAsyncContextManager[Live]]


@pytest.fixture
def live() -> GoLive:
    """Starts applications behind uvicorn: for what only a socket can show. Takes what `serve` takes, and
    ``uvicorn``: options of uvicorn."""

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
        if options:  # e.g. shorter than the settings allow
            app.state.services = replace(app.state.services, options=replace(app.state.services.options, **options))
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)  # so that little fits on the way
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
        assert all(weights.closed for weights in loader.loaded), "weights outlive the server"

    return start


def chat_request(path: str = "/v1/chat/completions", **body: Any) -> bytes:
    """The bytes of a POST with a chat body, by default a stream."""
    payload = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, **body}
    content = json.dumps(payload).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content
