"""What every slot does, as llama-server shows it (tools/server/server-context.cpp, server_slot::to_json)."""

from typing import Any

from fastapi import APIRouter, Request, Response

from server.engine.snapshot import SlotSnapshot
from server.errors import InvalidRequest, ModelLoading, NotSupported, Unavailable
from server.pool.state import ModelState
from server.routes.generation_settings import generation_settings
from server.routes.health import is_pending
from server.routes.services import services
from server.transport.reply import json_reply

router = APIRouter(tags=["monitoring"])


@router.get("/slots")
async def slots(request: Request, model: str = "", fail_on_no_slot: str = "") -> Response:
    """One entry per slot. Never loads or wakes a model: a sleeping one shows its slots idle.

    With ``fail_on_no_slot`` 503 when every slot is busy.
    """
    used = services(request)
    if not used.options.slots:
        raise NotSupported("This server does not support slots endpoint. Start it with `--slots`")
    found = slots_of(used.pool.state(model or None))
    if fail_on_no_slot and not any(not slot.is_processing for slot in found):
        raise Unavailable("no slot available")
    return json_reply([slot_object(slot) for slot in found])


def slots_of(state: ModelState) -> list[SlotSnapshot]:
    """The model's slots. Raises `ModelLoading`, or `InvalidRequest` when the model is not loaded."""
    if state.loaded is not None:
        return state.loaded.engine.slots()
    if state.facts is not None:
        facts = state.facts
        return [SlotSnapshot(i, facts.n_ctx_seq, False, 0, 0) for i in range(facts.n_slots)]
    if is_pending(state):
        raise ModelLoading
    raise InvalidRequest("model is not loaded", "model")


def slot_object(slot: SlotSnapshot) -> dict[str, Any]:
    """One slot; ``id_task`` counts the requests of this slot. Prompts and replies are not shown."""
    shown: dict[str, Any] = {
        "id": slot.id,
        "n_ctx": slot.n_ctx,
        "speculative": False,
        "is_processing": slot.is_processing,
    }
    if slot.request is None:
        return shown
    request = slot.request
    n_remaining = -1 if request.max_tokens < 0 else max(request.max_tokens - slot.n_decoded, 0)
    return shown | {
        "id_task": slot.n_requests,
        "n_prompt_tokens": slot.n_tokens,
        "n_prompt_tokens_processed": slot.n_prompt_computed,
        "n_prompt_tokens_cache": slot.n_prompt_cached,
        "params": generation_settings(
            request.sampling,
            max_tokens=request.max_tokens,
            n_probs=request.n_probs,
            timings_per_token=request.timings_per_token,
        ),
        "next_token": [
            {
                "has_next_token": n_remaining != 0,
                "has_new_line": slot.has_new_line,
                "n_remain": n_remaining,
                "n_decoded": slot.n_decoded,
            }
        ],
    }
