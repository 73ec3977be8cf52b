"""``POST /v1/completions``. llama-server's own ``/completion`` and ``/completions`` are another dialect."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.openai_completions import completion_generation, read_completion
from server.routes.generate import reply, stream
from server.transport.body import read_json

router = APIRouter(tags=["completions"])


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """OpenAI completions, with llama.cpp's sampling fields beside OpenAI's."""
    completion = read_completion(await read_json(request))
    answer = stream if completion.body.stream else reply
    return await answer(request, completion.body.model, lambda model: completion_generation(completion, model))
