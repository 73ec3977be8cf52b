"""Save, restore and erase a slot (tools/server/server-context.cpp, handle_slots_save and its neighbours)."""

import re
from typing import Any

from fastapi import APIRouter, Request, Response

from server.dialects.common import Json
from server.errors import InvalidRequest, NotSupported
from server.pool.model import LoadedModel
from server.pool.saved import slots as saved_slots
from server.pool.saved.slot_files import SavedFiles, check_name
from server.routes.openapi import RUNS, describe
from server.routes.services import cache_owner, caller_of, lease_for, services
from server.transport.body import read_json, read_optional_json
from server.transport.errors import json_reply
from server.transport.sse import while_connected

router = APIRouter(tags=["monitoring"])

ACTIONS = ("save", "restore", "erase")


@router.post("/slots/{id_slot}")
@describe("$SlotAction", example={"filename": "talk.bin", "model?": "demo"}, errors=RUNS, loads=True)
async def act_on_slot(request: Request, id_slot: str, action: str = "", model: str = "") -> Response:
    """``action`` is save, restore or erase; waits until the slot is idle. The query or the body names the model."""
    used = services(request)
    if used.slot_files is None:
        raise NotSupported("This server does not support slots action. Start it with `--slot-save-path`")
    files = used.slot_files.of(file_owner(request))
    slot = _slot_number(id_slot)
    if action not in ACTIONS:
        raise InvalidRequest("Invalid action", "action")
    body = await (read_optional_json if action == "erase" else read_json)(request)
    name = "" if action == "erase" else check_name(body.get("filename"))
    with await lease_for(request, model or _named(body)) as lease:
        if slot >= lease.model.engine.n_slots:
            raise InvalidRequest("Invalid slot ID", "id_slot")
        return json_reply(
            await while_connected(request, _act(lease.model, slot, action, files, name, cache_owner(request)))
        )


def file_owner(request: Request) -> str:
    """In whose folder files lie: with several keys each has one."""
    caller = caller_of(request)
    return caller.owner if caller is not None and services(request).keys.several else ""


async def _act(model: LoadedModel, id_slot: int, action: str, files: SavedFiles, name: str, owner: str) -> Json:
    if action == "erase":
        return {"id_slot": id_slot, "n_erased": await model.engine.erase_slot(id_slot, owner)}
    shown: Json = {"id_slot": id_slot, "filename": name}
    if action == "save":
        saved = await saved_slots.save(model, id_slot, files, name, owner)
        return shown | {"n_saved": saved.n_tokens, "n_written": saved.n_bytes, "timings": {"save_ms": saved.ms}}
    restored = await saved_slots.restore(model, id_slot, files, name, owner)
    return shown | {
        "n_restored": restored.n_tokens,
        "n_read": restored.n_bytes,
        "timings": {"restore_ms": restored.ms},
    }


def _slot_number(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise InvalidRequest("Invalid slot ID", "id_slot")
    return int(text)


def _named(body: dict[str, Any]) -> str | None:
    name = body.get("model")
    if name is not None and not isinstance(name, str):
        raise InvalidRequest("model: must be a string", "model")
    return name or None
