"""What llama-server's web page asks its server for, beside the API."""

from fastapi import APIRouter, Response

from server.transport.reply import json_reply

router = APIRouter(include_in_schema=False)

_OFF = {"error": {"code": 403, "message": "this feature is disabled", "type": "feature_disabled"}}


@router.get("/tools")
@router.post("/tools")
@router.get("/cors-proxy")
@router.post("/cors-proxy")
async def off() -> Response:
    """403: there are no tools on this side, and no way to other hosts."""
    return json_reply(_OFF, status=403)
