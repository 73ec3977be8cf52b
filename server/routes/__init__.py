"""The whole API on one screen.

==================================================  =============================================
``GET  /``                                          the web page: `server.web`, before any route; open without a key
``GET  /health  /v1/health  /livez  /readyz``       `health`: open without a key
``GET  /v1/models  /v1/models/{id}  /models``       `models`: every model, its status and facts
``POST /models/load  /models/unload  /models/pin``
``GET  /models/sse``                                events: status changes, load progress
``GET  /props``, ``POST /props``                    `props`: one model's properties
``GET  /slots``                                     `slots`: what every slot does
``POST /slots/{id}?action=...``                     `slots`: save, restore, erase a slot
``POST /cache/pin  /cache/reset``                   keep a prompt's KV state in RAM; drop all states
``GET/POST /lora-adapters``                         `props`: the adapters of all requests
``GET  /metrics``                                   `metrics`: Prometheus
``GET  /v1/usage``                                  `metrics`: requests and tokens by key, model and day
``POST /v1/chat/completions  /apply-template``      `chat`: OpenAI chat; also without ``/v1``
``POST /v1/chat/completions/input_tokens``          `chat`: count a prompt's tokens
``POST /v1/chat/completions/control``               `chat`: end a running chat's reasoning
``GET/DELETE /v1/stream``                           `streams`: replies that outlive their client
``POST /v1/streams/lookup``
``POST /v1/messages  /v1/messages/count_tokens``    `messages`: Anthropic's Messages API
``POST /v1/responses  /v1/responses/input_tokens``  `responses`: OpenAI's Responses API; also without ``/v1``
``POST /v1/responses/compact``                      a conversation as one opaque item
``GET/DELETE /v1/responses/{id}``                   those that are stored; ``/cancel``, ``/input_items``
``/v1/conversations  /v1/conversations/{id}/items`` `conversations`: lists of items that responses continue
``/v1/files  /v1/files/{id}/content``               `files`: uploads for batches, and their results
``/v1/batches  /v1/messages/batches``               `batches`: requests that run when there is capacity left
``WebSocket /v1/responses``                         the same, each message a request (`transport.websocket`)
``POST /v1/completions``                            `completions`: OpenAI text completions
``POST /completion  /completions  /infill``         `completions`: llama-server's own
``POST /v1/audio/transcriptions  /translations``    `audio`: the text of a recording
``POST /v1/moderations``                            `completions`: not supported (501)
``POST /v1/embeddings  /embedding  /embeddings``    `embeddings`: OpenAI's reply, and llama-server's own
``POST /rerank  /reranking  /v2/rerank``            `embeddings`: scores; the first two also under ``/v1``
``POST /tokenize  /detokenize``                     `tokens`; ``GET /tokenizer_info`` as in vLLM
``POST /predict``                                   `vertex`: Vertex AI's predictions; the path is configurable
``POST /api/chat  /api/generate``                   `ollama`: Ollama's API
``POST /api/embed  /api/embeddings``
``GET  /api/tags  /api/ps  /api/version``           its models; ``POST /api/show`` has one model's facts
``GET  /page/live  /page/config``                   `web`: engine state for the web UI, and its settings
``GET  /page/log  /page/bodies  POST /page/bench``  the log, recorded bodies, `llamapool bench`
``GET/POST /tools  /cors-proxy``                    endpoints of llama-server's web UI
``GET  /docs  /openapi.json``                       `openapi`: this API as a page and as OpenAPI; open without a key
==================================================  =============================================

Handlers name a dialect (`server.dialects`) and call `server.serving`. `openapi` describes all endpoints.
"""

import inspect
from collections.abc import Iterable
from functools import cache

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, request_response
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
from server.transport.endpoints import TARGET, Target

_GENERATING = (chat, streams, batches, messages, responses, conversations, files, completions, embeddings, audio)
_MODULES = (*_GENERATING, tokens, ollama, vertex, health, models, props, slots, metrics, web, openapi)
ROUTERS = tuple(module.router for module in _MODULES)


def include_routes(app: FastAPI) -> None:
    """Add every route to `app`. The middleware has removed ``--api-prefix`` from the path before they see it."""
    for router in ROUTERS:
        app.include_router(router)
    app.router.routes.insert(0, Dispatch(each for router in ROUTERS for each in router.routes))
    app.openapi = cache(lambda: openapi.document(app, ROUTERS))  # type: ignore[method-assign]


class Dispatch(BaseRoute):
    """Calls the handler of the endpoint that the middleware has found, so that no other endpoint answers than the one
    that was checked.

    It is also fast: FastAPI would try its routers and routes one after the other. It wraps each call in exit stacks and
    dependencies, which a handler that needs only the request can do without.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes: dict[tuple[str, str], tuple[APIRoute, ASGIApp]] = {}
        for route in routes:
            if isinstance(route, APIRoute):
                kinds = [each.annotation for each in inspect.signature(route.endpoint).parameters.values()]
                is_plain = kinds == [Request] and inspect.iscoroutinefunction(route.endpoint)
                handler = request_response(route.endpoint) if is_plain else route.app
                self._routes |= {(method, route.path): (route, handler) for method in route.methods or ()}

    def _found(self, scope: Scope) -> tuple[APIRoute, ASGIApp] | None:
        target: Target | None = scope.get(TARGET)  # none for a lifespan
        return None if target is None else self._routes.get((target.endpoint.method, target.endpoint.path))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the request is one for a known endpoint, and its path parameters."""
        found = self._found(scope)
        return (Match.NONE, {}) if found is None else found[0].matches(scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        found = self._found(scope)
        assert found is not None, "matches said so"
        await found[1](scope, receive, send)
