"""Endpoints of the web UI: live data, logs, benchmarks, tools and the CORS proxy."""

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response

from server.dialects.common import event
from server.dialects.fields import parse
from server.engine.request import NUMBERS
from server.errors import NotFound, NotSupported, ShuttingDown, invalid
from server.routes.models import model_field
from server.serving.services import key_of, services, target_of, whole_number
from server.telemetry.record import RECORD, Record
from server.transport.body import read_body, read_json
from server.transport.errors import json_reply
from server.transport.keys import given_key
from server.transport.sse import EventStream, Watch, while_connected, written
from server.web.bench import SCENARIOS, Address, BenchBody, measured

T = TypeVar("T")
router = APIRouter(include_in_schema=False)


def _disabled(request: Request) -> Response:
    """Return llama-server's reply, and record its type as the request's outcome."""
    record: Record = request.scope[RECORD]
    record.error = kind = "feature_disabled"
    return json_reply({"error": {"code": 403, "message": "this feature is disabled", "type": kind}}, status=403)


@router.get("/page/live")
async def live(request: Request) -> Response:
    """Stream engine activity, recent requests and the last hour as events (`server.web.live`)."""
    app = services(request)
    app.live.begin()
    return EventStream(request, app.live.events(app.draining), on_close=app.live.end, ping_s=0)


@router.get("/page/config")
async def config(request: Request) -> Response:
    """Return the web UI's default settings."""
    app = services(request)
    config = {"settings": app.options.ui_config, "tools": bool(app.tools), "log_bodies": app.bodies.on}
    return json_reply(config | {"proxy": app.options.proxy, "scenarios": SCENARIOS, "sampling": NUMBERS})


@router.get("/page/log")
async def log(request: Request) -> Response:
    """Return the last lines of the server's log with a number greater than ``after``."""
    after = whole_number(request, "after", 0)
    return json_reply({"lines": services(request).log.after(after)})


@router.get("/page/bodies")
async def bodies(request: Request, request_id: Annotated[str, Query(alias="id")] = "") -> Response:
    """Return the bodies of the request with this ``X-Request-Id`` and of its reply. Requires ``log_bodies``."""
    stored = services(request).bodies.of(request_id)
    if stored is None:
        raise NotFound("its bodies are not stored: log_bodies is off, or newer requests replaced them")
    return json_reply({"path": stored.path, "request": stored.request.shown, "reply": stored.reply.shown})


@router.post("/page/bench")
async def bench(request: Request) -> Response:
    """Run `llamapool bench` on this server, and optionally on another URL. Stream the measurements of each scenario.

    The benchmark ends if the client disconnects.
    """
    body = await read_json(request)
    host, port = request.scope.get("server") or ("", None)
    if port is None:
        raise NotSupported("the benchmark needs a TCP address, and this server listens on a Unix socket only")
    host = f"[{host}]" if ":" in host else host
    own = f"{request.scope['scheme']}://{host}:{port}{target_of(request).base}"
    key = given_key(dict(request.scope["headers"])).decode("latin-1")
    this = Address("this", own, model_field(request, body), key)
    return EventStream(request, written(measured(parse(BenchBody, body), this), event))


@router.get("/cors-proxy")
@router.post("/cors-proxy")
async def cors_proxy(request: Request, url: str = "") -> Response:
    """Forward the request to ``url``, for a UI's MCP clients. 403 without ``--ui-mcp-proxy``."""
    if not services(request).options.proxy:
        return _disabled(request)
    from server.transport.forward import forward  # imports httpcore2, which only this endpoint needs

    body = await read_body(request)
    return await while_connected(request, forward(request, url, body))


@router.get("/tools")
async def tools(request: Request) -> Response:
    """List the built-in tools and those of MCP servers. 403 if the server has none."""
    available = services(request).tools
    return json_reply(available.shown(key_of(request).may_call)) if available else _disabled(request)


@router.post("/tools")
async def call_tool(request: Request) -> Response:
    """Call a tool with ``params``. The reply has an ``error`` if the call fails; ``stream`` streams the output.

    The header ``x-tool-cwd`` is the folder of relative paths. ``x-resp-type: base64`` requests a file's bytes.
    """
    available = services(request).tools
    if not available:
        return _disabled(request)
    body = await read_json(request)
    name, params, stream = body.get("tool"), body.get("params", {}), body.get("stream", False)
    if not isinstance(name, str):
        raise invalid("tool", "must be the name of a tool")
    if not isinstance(params, dict):
        raise invalid("params", "must be an object")
    if stream is True:
        return EventStream(request, written(available.stream(name, params, request.headers), event))
    result = available.call(name, params, request.headers, key_of(request).may_call)
    return json_reply(await _watched(request, result))


async def _watched(request: Request, result: Coroutine[Any, Any, T]) -> T:
    """Return the result of a tool. It is cancelled if the client disconnects or the server stops."""
    with Watch(request.receive) as watch:
        stopping = asyncio.create_task(_stop(services(request).draining, watch))
        try:
            return await result
        finally:
            stopping.cancel()


async def _stop(draining: asyncio.Event, watch: Watch) -> None:
    await draining.wait()
    watch.interrupt(ShuttingDown())
