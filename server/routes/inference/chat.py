"""``POST /v1/chat/completions``, its ``/input_tokens`` and ``/control``, and ``/apply-template``."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.chat.control import read_control
from server.dialects.chat.read import FIELDS, ParsedChat, apply_template, chat_generation, input_tokens, read_chat
from server.dialects.verbose import verbosely
from server.dialects.warnings import warning_headers
from server.routes.generate import answer, compute
from server.routes.services import caller_of, services
from server.transport.body import read_as, read_json
from server.transport.errors import json_reply
from server.transport.keys import ANYBODY

router = APIRouter(tags=["chat"])


@router.post("/v1/chat/completions")
@router.post("/chat/completions")
async def chat_completions(request: Request) -> Response:
    """OpenAI chat completions, with llama.cpp's sampling fields."""
    chat, headers = await read_as(request, _read)
    detailed = services(request).options.verbose
    prepare = verbosely(lambda model, seen: chat_generation(chat, model, seen), chat.body, default=detailed)
    return await answer(request, chat.body, prepare, headers, chat.conversation.media)


def _read(given: Any) -> tuple[ParsedChat, dict[str, str]]:
    chat = read_chat(given)
    return chat, warning_headers(given, FIELDS, warnings=chat.conversation.warnings)


@router.post("/v1/chat/completions/input_tokens")
@router.post("/chat/completions/input_tokens")
async def chat_input_tokens(request: Request) -> Response:
    """How many tokens a chat body's prompt has, without generating."""
    chat, headers = await read_as(request, _read)
    asked = chat.conversation
    return await compute(
        request,
        chat.body.model,
        lambda model, seen: input_tokens(asked, model, seen),
        headers,
        asked.media,
        chat.body.cache_salt or "",
    )


@router.post("/apply-template")
async def post_apply_template(request: Request) -> Response:
    """The prompt that a chat body renders to, without generating."""
    chat, headers = await read_as(request, _read)
    documents = [each for each in chat.conversation.media if each.kind == "document"]
    return await compute(
        *(request, chat.body.model, lambda model, seen: apply_template(chat, model, seen), headers),
        documents,
        chat.body.cache_salt or "",
    )


@router.post("/v1/chat/completions/control")
async def control(request: Request) -> Response:
    """``{"id": completion, "action": "reasoning_end"}`` ends the reasoning of a chat started with
    ``reasoning_control``; ``"cancel"`` (not in llama-server) ends any request, whose client gets an error.

    An unknown id is ``"success": false`` with a message. A key can control requests of keys with its name, or all if
    it may see all. ``model`` may be omitted, since ids are unique.
    """
    used = services(request)
    wanted = read_control(await read_json(request))
    model = used.pool.resolve(wanted.model).id if wanted.model else None
    act = used.running.cancel if wanted.cancel else used.running.end_reasoning
    caller = caller_of(request) or ANYBODY
    reason = act(wanted.completion_id, model, None if caller.sees_all else caller.owner)
    return json_reply({"success": False, "message": reason} if reason else {"success": True})
