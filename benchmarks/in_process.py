"""Run the server on the event loop of this process, for measurements inside it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import uvicorn

from server.app import create_app
from server.routes.health import is_pending
from server.settings import load_settings


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@asynccontextmanager
async def serving(flags: Sequence[str]) -> AsyncIterator[int]:
    """Run a server with `flags` during the block. Yields its port once its models are loaded."""
    settings = load_settings(list(flags), {})
    app = create_app(settings)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = _Server(uvicorn.Config(app, lifespan="on", log_config=None, access_log=False))
        running = asyncio.create_task(server.serve([listener]))
        await server.listening.wait()
        try:
            with app.state.services.pool.subscribe() as events:
                while any(is_pending(state) for state in app.state.services.pool.states()):
                    await anext(events)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running
