"""``POST /v1/chat/completions`` and ``/apply-template``."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.openai_chat import apply_template, chat_generation, read_chat
from server.routes.generate import compute, reply, stream
from server.transport.body import read_json

router = APIRouter(tags=["chat"])


@router.post("/v1/chat/completions")
@router.post("/chat/completions")
async def chat_completions(request: Request) -> Response:
    """OpenAI chat completions, with llama.cpp's sampling fields beside OpenAI's."""
    chat = read_chat(await read_json(request))
    answer = stream if chat.body.stream else reply
    return await answer(request, chat.body.model, lambda model: chat_generation(chat, model))


@router.post("/apply-template")
async def post_apply_template(request: Request) -> Response:
    """The prompt that a chat body renders to, without generating."""
    chat = read_chat(await read_json(request))
    return await compute(request, chat.body.model, lambda model: apply_template(chat, model))
