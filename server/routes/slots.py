"""``/slots`` in llama-server's format (tools/server/server-context.cpp, server_slot::to_json), ``/cache``."""

import asyncio
import re
import time
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from server.dialects.common import Json
from server.dialects.native.write import generation_settings
from server.engine.cache.scope import owner_of as scope_owner
from server.engine.snapshots import SlotSnapshot
from server.errors import (
    InvalidRequest,
    ModelLoading,
    ModelNotFound,
    NotSupported,
    PermissionDenied,
    Unavailable,
    invalid,
)
from server.pool.model import LoadedModel
from server.pool.saved import slots as saved_slots
from server.pool.saved.state_cache import remove_states
from server.pool.saved.store import SavedFiles, check_name
from server.pool.state import ModelState
from server.routes.health import NO_SLOT, is_pending
from server.routes.openapi import FINDS, RUNS, computes, describe
from server.serving.services import cache_owner, caller_of, key_of, lease_for, model_name, owner_of, services
from server.serving.session import PIN
from server.transport.body import read_json
from server.transport.errors import json_reply
from server.transport.internal import post_json
from server.transport.sse import while_connected

router = APIRouter(tags=["monitoring"])


@router.get("/slots")
@describe(["$Slot"], errors=(400, *FINDS, 501))
async def slots(request: Request, model: str = "", fail_on_no_slot: str = "") -> Response:
    """Return one entry per slot. Loads or wakes no model: the slots of a sleeping model are idle.

    Only slots with the client's own requests have counts and parameters; all slots with the scope ``metrics``. With
    ``fail_on_no_slot`` 503 if every slot is busy.
    """
    app = services(request)
    if not app.options.slots:
        raise NotSupported("This server does not support slots endpoint. Start it with `--slots`")
    state = app.pool.state(model or None)
    snapshots = slots_of(state)
    if fail_on_no_slot and all(slot.is_processing for slot in snapshots):
        raise Unavailable(NO_SLOT)
    configured = state.spec.chat.reasoning_format
    reasoning_format = "deepseek" if configured == "auto" else configured  # the default of requests
    caller, owner = caller_of(request), cache_owner(request)
    sees_all = caller is not None and caller.sees_all
    visible = [
        slot
        if sees_all or scope_owner(slot.scope) in ("", owner)
        else SlotSnapshot(slot.id, slot.n_ctx, slot.is_processing, spec_type=slot.spec_type)
        for slot in snapshots
    ]
    return json_reply([slot_object(slot, reasoning_format) for slot in visible])


def slots_of(state: ModelState) -> list[SlotSnapshot]:
    """Return the model's slots. Raises `ModelLoading`, or `InvalidRequest` if the model is not loaded."""
    if state.loaded is not None:
        return state.loaded.slots()
    if state.facts is not None:
        facts = state.facts
        return [SlotSnapshot(i, facts.n_ctx_seq) for i in range(facts.n_slots)]
    if is_pending(state):
        raise ModelLoading
    raise InvalidRequest("model is not loaded", "model")


def slot_object(slot: SlotSnapshot, reasoning_format: str) -> dict[str, Any]:
    """Return one slot without prompts and replies. ``id_task`` counts the requests of this slot.

    An idle slot has the parameters of its last request, but not its counts.
    """
    state: dict[str, Any] = {
        "id": slot.id,
        "n_ctx": slot.n_ctx,
        "speculative": slot.spec_type != "none",
        "is_processing": slot.is_processing,
    }
    if slot.request is None:
        return state
    request, choice, busy = slot.request, slot.choice, slot.is_processing
    n_cached, n_decoded = (choice.n_cached, choice.n_predicted) if choice is not None and busy else (0, 0)
    n_remain = max(request.max_tokens - n_decoded, 0) if busy and request.max_tokens >= 0 else -1
    return state | {
        "id_task": slot.n_requests,
        "n_prompt_tokens": slot.n_tokens,
        "n_checkpoints": slot.n_checkpoints,
        "n_prompt_tokens_processed": slot.n_prompt_computed if busy else 0,
        "n_prompt_tokens_cache": n_cached,
        "params": generation_settings(request, slot.spec_type) | {"reasoning_format": reasoning_format},
        "next_token": [
            {
                "has_next_token": busy and n_remain != 0,
                "has_new_line": busy and slot.has_new_line,
                "n_remain": n_remain,
                "n_decoded": n_decoded,
            }
        ],
    }


ACTIONS = ("save", "restore", "erase")


@router.post("/slots/{id_slot}")
@computes("$SlotAction", example={"filename": "talk.bin", "model?": "demo"})
async def act_on_slot(request: Request, id_slot: str, action: str = "", model: str = "") -> Response:
    """Save, restore or erase a slot (``action``) when it is idle. The query or the body names the model."""
    app = services(request)
    if app.slot_files is None:
        raise NotSupported("This server does not support slots action. Start it with `--slot-save-path`")
    files = app.slot_files.of(owner_of(request) if app.keys.several else "")  # each key has its own folder
    if not re.fullmatch(r"\d{1,9}", id_slot, re.ASCII):
        raise InvalidRequest("Invalid slot ID", "id_slot")
    slot, owner = int(id_slot), cache_owner(request)
    if action not in ACTIONS:
        raise InvalidRequest("Invalid action", "action")
    body = await read_json(request, optional=action == "erase")
    name = "" if action == "erase" else check_name(body.get("filename"))
    with await lease_for(request, model or model_name(body)) as lease:
        if slot >= lease.model.engine.n_slots:
            raise InvalidRequest("Invalid slot ID", "id_slot")
        return json_reply(await while_connected(request, _act(lease.model, slot, action, files, name, owner)))


@router.post("/cache/reset")
@describe({"n_dropped": 19}, example={"model?": "demo"}, errors=RUNS, loads=False)
async def reset_cache(request: Request) -> Response:
    """Remove a model's cached KV states of all keys from slots, RAM and disk.

    If the model is not loaded, only the states on disk are removed.
    """
    pool, model = services(request).pool, model_name(await read_json(request, optional=True))
    if model and not pool.knows(model):  # a server with one model accepts any name elsewhere
        raise ModelNotFound(model, [state.spec.id for state in pool.states()])
    state = pool.state(model)
    n = 0 if state.loaded is None else await while_connected(request, state.loaded.engine.reset_cache())
    # including states of other settings, and those in a folder that the engine no longer uses
    n += await asyncio.to_thread(remove_states, state.spec)
    return json_reply({"n_dropped": n})


MAX_PIN_S = 30 * 86_400
_PINNED = {"object": "cache.pin", "model": "demo", "n_tokens": 19, "expires_at": 1795521600}


@router.post("/cache/pin")
@computes(_PINNED, example={"prompt": "You are a helpful assistant.", "ttl_s": 3600})
async def pin_prefix(request: Request) -> Response:
    """Compute a prompt and pin its KV state in RAM for ``ttl_s`` seconds. Generates nothing.

    The body is that of a chat or a completion. If each key has its own cache namespace, requests of ``key`` use the
    prefix; the default is the caller's key.
    """
    app, body = services(request), await read_json(request)
    ttl_s, name = body.pop("ttl_s", None), body.pop("key", None)
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not 0 < ttl_s <= MAX_PIN_S:
        raise invalid("ttl_s", f"must be a number of seconds, at most {MAX_PIN_S}")
    key = caller = key_of(request)
    if "infer" not in caller.scopes or (name is not None and not caller.sees_all):
        raise PermissionDenied("a pin needs the scope infer, and one for another key the scope metrics as well")
    if name is not None:
        named = app.keys.named(name) if isinstance(name, str) and app.keys.required else None
        if named is None:
            raise invalid("key", "no valid API key has this name")
        key = named
    path = app.options.api_prefix + ("/v1/chat/completions" if "messages" in body else "/v1/completions")
    try:
        internal = orjson.dumps({**body, "max_tokens": 0, "n_predict": 0, "n": 1, "stream": False})
    except TypeError:
        raise InvalidRequest("the body is nested too deeply") from None
    async with app.rates.counted(caller):  # because internal requests are not counted
        with await lease_for(request, model_name(body)):
            reply = await while_connected(request, post_json(request.app, {PIN: float(ttl_s)}, path, internal, key))
    result = orjson.loads(reply.body)
    if reply.status != HTTPStatus.OK:  # endpoints outside of /v1 have the status as `code`
        return json_reply({"error": {**result["error"], "code": reply.status}}, status=reply.status)
    pinned = {"model": result["model"], "n_tokens": result["usage"]["prompt_tokens"]}
    return json_reply({"object": "cache.pin", **pinned, "expires_at": int(time.time() + ttl_s)})


async def _act(model: LoadedModel, id_slot: int, action: str, files: SavedFiles, name: str, owner: str) -> Json:
    if action == "erase":
        return {"id_slot": id_slot, "n_erased": await model.engine.erase_slot(id_slot, owner)}
    result: Json = {"id_slot": id_slot, "filename": name}
    if action == "save":
        saved = await saved_slots.save(model, id_slot, files, name, owner)
        return result | {"n_saved": saved.n_tokens, "n_written": saved.n_bytes, "timings": {"save_ms": saved.ms}}
    restored = await saved_slots.restore(model, id_slot, files, name, owner)
    return result | {
        "n_restored": restored.n_tokens,
        "n_read": restored.n_bytes,
        "timings": {"restore_ms": restored.ms},
    }
