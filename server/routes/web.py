"""Endpoints of the web UI besides the API: live data; and those that llama-server's UI needs."""

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response

from server.dialects.common import event
from server.dialects.fields import parse
from server.engine.request import NUMBERS
from server.errors import NotFound, NotSupported, ShuttingDown, invalid
from server.routes.models import model_named
from server.serving.services import key_of, services, target_of, whole_number
from server.transport.body import read_body, read_json
from server.transport.errors import json_reply
from server.transport.keys import given_key
from server.transport.sse import EventStream, Watch, while_connected, written
from server.web.bench import SCENARIOS, Address, BenchBody, measured

T = TypeVar("T")
router = APIRouter(include_in_schema=False)

_OFF = {"error": {"code": 403, "message": "this feature is disabled", "type": "feature_disabled"}}


@router.get("/page/live")
async def live(request: Request) -> Response:
    """Stream engine activity, recent requests and the last hour as events (`server.web.live`)."""
    used = services(request)
    used.live.begin()
    return EventStream(request, used.live.events(used.draining), on_close=used.live.end, ping_s=0)


@router.get("/page/config")
async def config(request: Request) -> Response:
    """Return the web UI's default settings."""
    used = services(request)
    known = {"settings": used.options.ui_config, "tools": bool(used.tools), "log_bodies": used.bodies.on}
    return json_reply(known | {"proxy": used.options.proxy, "scenarios": SCENARIOS, "sampling": NUMBERS})


@router.get("/page/log")
async def log(request: Request) -> Response:
    """Return the last lines of the server's log, of those ``after`` a number."""
    after = whole_number(request, "after", 0)
    return json_reply({"lines": services(request).log.after(after)})


@router.get("/page/bodies")
async def bodies(request: Request, request_id: Annotated[str, Query(alias="id")] = "") -> Response:
    """Return the bodies of the request with this ``X-Request-Id`` and of its reply; needs ``log_bodies``."""
    found = services(request).bodies.of(request_id)
    if found is None:
        raise NotFound("its bodies are not stored: log_bodies is off, or newer requests replaced them")
    return json_reply({"path": found.path, "request": found.request.shown, "reply": found.reply.shown})


@router.post("/page/bench")
async def bench(request: Request) -> Response:
    """`llamapool bench` against this server and, if one is named, another address: events with each scenario's
    figures. It ends when the client leaves."""
    body = await read_json(request)
    host, port = request.scope.get("server") or ("", None)
    if port is None:
        raise NotSupported("the benchmark needs a TCP address, and this server listens on a Unix socket only")
    host = f"[{host}]" if ":" in host else host
    own = f"{request.scope['scheme']}://{host}:{port}{target_of(request).base}"
    key = given_key(dict(request.scope["headers"])).decode("latin-1")
    this = Address("this", own, model_named(request, body), key)
    return EventStream(request, written(measured(parse(BenchBody, body), this), event))


@router.get("/cors-proxy")
@router.post("/cors-proxy")
async def cors_proxy(request: Request, url: str = "") -> Response:
    """Forward the request to ``url``, for a UI's MCP clients. 403 without ``--ui-mcp-proxy``."""
    if not services(request).options.proxy:
        return json_reply(_OFF, status=403)
    from server.transport.forward import forward  # with httpcore2: only the proxy of the web UI needs it

    body = await read_body(request)
    return await while_connected(request, forward(request, url, body))


@router.get("/tools")
async def tools(request: Request) -> Response:
    """List the built-in tools and those of MCP servers. 403 if there are none on this server."""
    found = services(request).tools
    return json_reply(found.shown(key_of(request).may_call)) if found else json_reply(_OFF, status=403)


@router.post("/tools")
async def call_tool(request: Request) -> Response:
    """Call a tool with ``params``; the reply has an ``error`` if it fails. ``stream`` sends output as it is written.
    ``x-tool-cwd`` is the folder of relative paths, ``x-resp-type: base64`` asks for a file's bytes."""
    found = services(request).tools
    if not found:
        return json_reply(_OFF, status=403)
    body = await read_json(request)
    name, params, stream = body.get("tool"), body.get("params", {}), body.get("stream", False)
    if not isinstance(name, str):
        raise invalid("tool", "must be the name of a tool")
    if not isinstance(params, dict):
        raise invalid("params", "must be an object")
    if stream is True:
        return EventStream(request, written(found.stream(name, params, request.headers), event))
    called = found.call(name, params, request.headers, key_of(request).may_call)
    return json_reply(await _watched(request, called))


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
