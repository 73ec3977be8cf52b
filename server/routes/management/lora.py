"""The LoRA adapters that requests get which ask for none (tools/server/server-context.cpp, get_lora_adapters)."""

from pathlib import PurePath

from fastapi import APIRouter, Request, Response

from server.dialects.adapters import adapter_objects, read_scales
from server.routes.openapi import FINDS, RUNS, describe
from server.routes.services import lease_for, sees_files
from server.transport.body import read_array
from server.transport.errors import json_reply

router = APIRouter(tags=["models"])


@router.get("/lora-adapters")
@describe(["$LoraAdapter"], errors=(400, *FINDS, 501), loads=True)
async def adapters(request: Request, model: str = "") -> Response:
    """Return the loaded adapters with their scales. Loads or wakes the model unless ``autoload`` is off."""
    with await lease_for(request, model or None) as lease:
        shown = adapter_objects(lease.model.engine.adapters, lease.model.vocab)
    if not sees_files(request):
        for adapter in shown:
            adapter["path"] = PurePath(adapter["path"]).name
    return json_reply(shown)


@router.post("/lora-adapters")
@describe("$Success", example=[{"id": 0, "scale": 1.0}], errors=RUNS, loads=True)
async def set_adapters(request: Request, model: str = "") -> Response:
    """Set default scales for new requests; adapters that are not listed are disabled."""
    body = await read_array(request)
    with await lease_for(request, model or None) as lease:
        engine = lease.model.engine
        engine.set_adapter_scales(read_scales(body, engine.adapters))
    return json_reply({"success": True})
