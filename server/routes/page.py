"""What the web page asks its server for, beside the API: live data; and what llama-server's page asks for."""

from fastapi import APIRouter, Request, Response

from server.routes.services import services
from server.transport.reply import json_reply
from server.transport.sse import event_stream

router = APIRouter(include_in_schema=False)

_OFF = {"error": {"code": 403, "message": "this feature is disabled", "type": "feature_disabled"}}


@router.get("/page/live")
async def live(request: Request) -> Response:
    """What engines do, the last requests and the last hour, as events (`server.page.live`)."""
    used = services(request)
    used.live.begin()
    return event_stream(request, used.live.events(used.draining), on_close=used.live.end, ping_s=0)


@router.get("/tools")
@router.post("/tools")
@router.get("/cors-proxy")
@router.post("/cors-proxy")
async def off() -> Response:
    """403: there are no tools on this side, and no way to other hosts."""
    return json_reply(_OFF, status=403)
