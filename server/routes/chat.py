"""``POST /v1/chat/completions``, its ``/input_tokens`` and ``/control``, and ``/apply-template``."""

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.chat.parse import CHAT, ChatBody, ControlBody, apply_template, input_tokens
from server.dialects.fields import parse
from server.routes.openapi import HI, READS, computes, describe
from server.serving.generate import answer, compute
from server.serving.services import key_of, services
from server.transport.body import read_as, read_json
from server.transport.errors import json_reply

router = APIRouter(tags=["chat"])


@router.post("/v1/chat/completions")
@router.post("/chat/completions")
@computes("$ChatCompletion", ChatBody, HI, "$ChatCompletionChunk")
async def chat_completions(request: Request) -> Response:
    """Create a chat completion in OpenAI's format, with llama.cpp's sampling fields."""
    return await answer(request, CHAT)


@router.post("/v1/chat/completions/input_tokens")
@router.post("/chat/completions/input_tokens")
@computes("$InputTokens", ChatBody, HI)
async def chat_input_tokens(request: Request) -> Response:
    """Return the number of prompt tokens of a chat body without generating."""
    chat = await read_as(request, CHAT.parse)
    return await compute(request, chat, partial(input_tokens, chat.conversation), chat.media)


@router.post("/apply-template")
@computes("$Rendered", ChatBody, HI)
async def post_apply_template(request: Request) -> Response:
    """Return the rendered prompt of a chat body without generating."""
    chat = await read_as(request, CHAT.parse)
    documents = [each for each in chat.media if each.kind == "document"]
    return await compute(request, chat, partial(apply_template, chat.conversation), documents)


@router.post("/v1/chat/completions/control")
@describe("$Success", ControlBody, {"id": "chatcmpl-1", "action": "reasoning_end"}, errors=(*READS, 404))
async def control(request: Request) -> Response:
    """End the reasoning of a running chat, or cancel a request.

    ``{"id": completion, "action": "reasoning_end"}`` ends the reasoning of a chat started with ``reasoning_control``;
    ``"cancel"`` (not in llama-server) ends any request, whose client gets an error.

    An unknown id is ``"success": false`` with a message. A key can control requests of keys with its name, or all if
    it may see all. ``model`` may be omitted, since ids are unique.
    """
    app = services(request)
    body = parse(ControlBody, await read_json(request))
    model = app.pool.resolve(body.model).id if body.model else None
    caller, running = key_of(request), app.running.get(body.id)
    if running is None or model not in (None, running.model) or not (caller.sees_all or caller.owner == running.owner):
        return json_reply({"success": False, "message": "no active completion for this id"})
    if body.action == "cancel":
        running.cancel()
    elif running.reasoning is None:
        return json_reply({"success": False, "message": "reasoning control not enabled for this completion"})
    else:
        running.reasoning.end()
    return json_reply({"success": True})
