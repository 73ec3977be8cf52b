"""A replica: the whole server as an ASGI application in a Serve actor, which the front calls without a socket."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence

from fastapi import FastAPI
from ray import serve
from starlette.types import Scope

from llamapool.app import create_app, load_settings
from llamapool.ray.crossing import Exchange, Head, Headers
from llamapool.ray.placement import Aim
from server import logs
from server.errors import Unavailable
from server.pool.state import Status
from server.serving.services import Services

logger = logging.getLogger(__name__)
CANCEL_S = 10.0  # for a request whose client has disconnected


class Replica:
    """Serve's deployment class, whose methods run on one event loop. `flags` are the server's flags."""

    async def __init__(self, flags: Sequence[str]) -> None:  # type: ignore[misc]  # Serve awaits it
        settings = load_settings(list(flags))
        logs.configure(settings.server)
        self._id = serve.get_replica_context().replica_id.unique_id
        self._app: FastAPI = create_app(settings)
        self._services: Services = self._app.state.services
        self._lifespan = self._app.router.lifespan_context(self._app)
        await self._lifespan.__aenter__()

    async def __del__(self) -> None:
        """Shut down after running requests, at most ``drain_s``. Serve awaits it."""
        lifespan = getattr(self, "_lifespan", None)
        if lifespan is not None:
            await lifespan.__aexit__(None, None, None)

    async def answer(self, scope: Scope, body: bytes, aim: Aim) -> AsyncGenerator[Head | bytes, None]:
        """Yield the reply's head, then its body. Closing the generator cancels the request. The router uses `aim`."""
        exchange = Exchange(body, self._id)
        app = asyncio.create_task(self._app(scope, exchange.receive, exchange.send))
        app.add_done_callback(lambda _: exchange.end())
        try:
            while (part := await exchange.next()) is not None:
                yield part
            await app
        finally:
            exchange.disconnect()
            if not app.done():
                await asyncio.wait([app], timeout=CANCEL_S)
                app.cancel()

    async def knows(self, headers: Headers) -> bool:
        """Return whether `headers` contain a valid key, or none is required."""
        return self._services.keys.caller(dict(headers)) is not None

    async def check_health(self) -> None:
        """Raise if a model's steps do not end (``watchdog_s``). Serve then replaces the replica."""
        for state in self._services.pool.states():
            if state.status is Status.READY and state.failed:
                raise Unavailable(f"model '{state.spec.id}': {state.failure}")

    def record_routing_stats(self) -> dict[str, object]:
        """Return the names of the loaded models and their slots. The router calls this each second."""
        ready = [state for state in self._services.pool.states() if state.status is Status.READY]
        return {
            "models": [name for state in ready for name in (state.spec.id, *state.spec.aliases)],
            "n_slots": sum(state.facts.n_slots for state in ready if state.facts is not None),
        }
