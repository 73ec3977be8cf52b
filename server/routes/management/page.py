"""What the web page asks its server for, beside the API: live data; and what llama-server's page asks for."""

from fastapi import APIRouter, Request, Response

from server.routes.services import services
from server.transport.bodies.read import read_body
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


@router.get("/cors-proxy")
@router.post("/cors-proxy")
async def cors_proxy(request: Request, url: str = "") -> Response:
    """What the address ``url`` says to the same request, for a page's MCP clients. 403 without ``--ui-mcp-proxy``."""
    if not services(request).options.proxy:
        return json_reply(_OFF, status=403)
    return await forward(request, url, await read_body(request))


@router.get("/tools")
@router.post("/tools")
async def tools() -> Response:
    """403: there are no tools on this side."""
    return json_reply(_OFF, status=403)
