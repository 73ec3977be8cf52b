"""What the web page asks its server for, beside the API: live data; and what llama-server's page asks for."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import orjson
from fastapi import APIRouter, Request, Response

from server.errors import InvalidRequest, NotSupported
from server.page.tools.catalogue import SHELL
from server.page.tools.child import shell, work
from server.routes.services import services
from server.transport.bodies.read import read_body, read_json
from server.transport.forward import forward
from server.transport.reply import json_reply
from server.transport.streams.sse import event_stream

router = APIRouter(include_in_schema=False)

_OFF = {"error": {"code": 403, "message": "this feature is disabled", "type": "feature_disabled"}}


@router.get("/page/live")
async def live(request: Request) -> Response:
    """What engines do, the last requests and the last hour, as events (`server.page.live`)."""
    used = services(request)
    used.live.begin()
    return event_stream(request, used.live.events(used.draining), on_close=used.live.end, ping_s=0)


@router.get("/page/config")
async def config(request: Request) -> Response:
    """What the page begins with."""
    used = services(request)
    return json_reply({"settings": used.options.ui_settings, "tools": bool(used.tools)})


@router.get("/cors-proxy")
@router.post("/cors-proxy")
async def cors_proxy(request: Request, url: str = "") -> Response:
    """What the address ``url`` says to the same request, for a page's MCP clients. 403 without ``--ui-mcp-proxy``."""
    if not services(request).options.proxy:
        return json_reply(_OFF, status=403)
    return await forward(request, url, await read_body(request))


@router.get("/tools")
async def tools(request: Request) -> Response:
    """The built-in tools. 403 without ``--tools``."""
    used = services(request)
    return json_reply(used.tools.shown()) if used.tools else json_reply(_OFF, status=403)


@router.post("/tools")
async def call_tool(request: Request) -> Response:
    """What a tool answers to ``params``, ``error`` if it could not do it; as it comes with ``stream``. ``x-tool-cwd``
    is the folder of relative paths, ``x-resp-type: base64`` asks for a file's bytes."""
    used = services(request)
    if not used.tools:
        return json_reply(_OFF, status=403)
    body = await read_json(request)
    name, params, stream = body.get("tool"), body.get("params", {}), body.get("stream", False)
    if not isinstance(name, str):
        raise InvalidRequest("tool: must be the name of a tool", "tool")
    if not isinstance(params, dict):
        raise InvalidRequest("params: must be an object", "params")
    if request.headers.get("x-tool-runtime"):
        raise NotSupported("x-tool-runtime: tools work on this machine only")
    tool = used.tools.asked(name, params, stream=stream is True)
    folder = Path(request.headers["x-tool-cwd"]) if request.headers.get("x-tool-cwd") else None
    if tool.name == SHELL:
        if stream is True:
            return event_stream(request, _chunks(shell(params, folder)))
        said = "".join([text async for text in shell(params, folder)])
        return json_reply({"plain_text_response": said})
    given = {name: value for name, value in params.items() if name in tool.parameters}
    return json_reply(await work(tool.name, given | {"resp_type": request.headers.get("x-resp-type", "")}, folder))


async def _chunks(texts: AsyncGenerator[str, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(texts):
        async for text in texts:
            yield b"data: %b\n\n" % orjson.dumps({"chunk": text})
    yield b"data: %b\n\n" % orjson.dumps({"done": True})
