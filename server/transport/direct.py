"""A fast path to endpoints at fixed paths that need only the request: they are found in a dictionary.

FastAPI tries routers and routes one after the other and wraps each call in exit stacks and dependencies that such an
endpoint does not need: a third of the server's cost of a one-token chat. Everything else (path parameters, queries,
wrong methods, unknown paths) goes to the application.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server.transport.endpoints import TARGET, Target
from server.transport.errors import EXPECTED, error_response

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """``path`` is the label in metrics."""

    path: str
    endpoint: Endpoint


class DirectRoutes:
    """Serves direct routes itself, everything else through `behind`, which is `app` with its middleware."""

    def __init__(self, app: FastAPI, behind: ASGIApp, routers: Iterable[APIRouter]) -> None:
        self._app = app
        self._behind = behind
        self._routes = dict(_direct(routers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection. Errors before the reply starts are answered here."""
        target: Target | None = scope.get(TARGET)  # none for a lifespan
        route = None if target is None else self._routes.get((target.method, target.path))
        if route is None:
            await self._behind(scope, receive, send)
            return
        scope["app"], scope["route"] = self._app, route
        try:
            response = await route.endpoint(Request(scope, receive, send))
        except ClientDisconnect:
            raise  # nobody is left to answer; the middleware records it
        except Exception as error:
            await error_response(error, scope)(scope, receive, send)
            if not isinstance(error, EXPECTED):
                raise  # the middleware logs whose request it was
            return
        await response(scope, receive, send)


def _direct(routers: Iterable[APIRouter]) -> Iterator[tuple[tuple[str, str], DirectRoute]]:
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute) and not route.param_convertors and _takes_the_request_alone(route.endpoint):
                for method in route.methods or ():
                    yield (method, route.path), DirectRoute(route.path, route.endpoint)


def _takes_the_request_alone(endpoint: Callable[..., object]) -> bool:
    kinds = [parameter.annotation for parameter in inspect.signature(endpoint).parameters.values()]
    return inspect.iscoroutinefunction(endpoint) and kinds == [Request]
