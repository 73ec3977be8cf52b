"""The whole API on one screen: one module for each part.

Handlers name a dialect (`server.dialects`) and call `server.serving`. `transport.endpoints` has the key scope of every
path; docs/endpoints.md is generated from it and from the handlers.
"""

import inspect
from functools import cache

from fastapi import FastAPI, Request
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from server.routes import (
    audio,
    batches,
    chat,
    completions,
    conversations,
    embeddings,
    files,
    health,
    messages,
    metrics,
    models,
    ollama,
    openapi,
    props,
    responses,
    slots,
    streams,
    tokens,
    vertex,
    web,
)
from server.transport.endpoints import PAGE_FILE, TARGET, Target
from server.transport.sse import compressed, is_sent_as_it_is

_MODULES = (  # generating endpoints first
    chat,  # OpenAI's /v1/chat/completions with its token count and control; /apply-template
    streams,  # resumable streams: /v1/stream
    batches,  # requests that run with spare capacity: /v1/batches, /v1/messages/batches
    messages,  # Anthropic's /v1/messages with its token count
    responses,  # OpenAI's /v1/responses over HTTP and WebSocket (`transport.websocket`), stored, compacted
    conversations,  # lists of items that responses continue: /v1/conversations
    files,  # uploads, and the results of batches: /v1/files
    completions,  # OpenAI's /v1/completions, llama-server's /completion and /infill
    embeddings,  # /v1/embeddings, /embedding, /rerank, /v2/rerank
    audio,  # speech to text: /v1/audio/transcriptions, /v1/audio/translations
    tokens,  # /tokenize, /detokenize, vLLM's /tokenizer_info
    ollama,  # Ollama's API below /api
    vertex,  # Vertex AI's /predict
    health,  # /health, /livez, /readyz; / without a web UI
    models,  # /v1/models, /models: list, load, unload, pin, download, delete, events
    props,  # /props, /lora-adapters
    slots,  # /slots: list, save, restore, erase; /cache/pin, /cache/reset
    metrics,  # Prometheus' /metrics; /v1/usage
    web,  # live data of the web UI (its files are `server.web`); /tools, /cors-proxy
    openapi,  # /openapi.json, /docs
)
ROUTERS = tuple(module.router for module in _MODULES)


def include_routes(app: FastAPI) -> None:
    """Add every route to `app`. The middleware removes ``--api-prefix`` from the path first."""
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = cache(lambda: openapi.document(app, ROUTERS))  # type: ignore[method-assign]


def _app_of(route: APIRoute) -> ASGIApp:
    """Return the ASGI application of a route.

    A handler that takes only the request is called without FastAPI's exit stacks and dependencies.
    """
    handler = route.endpoint
    annotations = [each.annotation for each in inspect.signature(handler).parameters.values()]

    async def plain(scope: Scope, receive: Receive, send: Send) -> None:
        reply = await handler(Request(scope, receive, send))
        await (reply if is_sent_as_it_is(reply) else compressed(reply))(scope, receive, send)

    if annotations == [Request] and inspect.iscoroutinefunction(handler):
        return plain
    app = compressed(AsyncExitStackMiddleware(route.app))

    async def with_parameters(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, **route.matches(scope)[1]}, receive, send)

    return with_parameters


class Dispatch:
    """Calls the handler of the endpoint that the middleware has resolved and whose key scope it has checked.

    FastAPI would match its routes again, one after the other. `router` serves the lifespan, WebSockets, and routes that
    a program adds to the application; `page` serves the files of the web UI.
    """

    def __init__(self, router: ASGIApp, page: ASGIApp) -> None:
        self._router = router
        self._added = compressed(AsyncExitStackMiddleware(router))
        routes = [route for each in ROUTERS for route in each.routes if isinstance(route, APIRoute)]
        self._apps = {(method, route.path): _app_of(route) for route in routes for method in route.methods or ()}
        self._apps[PAGE_FILE.method, PAGE_FILE.path] = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request. Raises what the handler raises."""
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        target: Target = scope[TARGET]
        app = self._apps.get((target.endpoint.method, target.endpoint.path), self._added)
        await app(scope, receive, send)
