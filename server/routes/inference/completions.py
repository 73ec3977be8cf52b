"""``POST /v1/completions``. llama-server's own ``/completion`` and ``/completions`` are `native`."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.routes.generate import answer
from server.routes.services import services
from server.transport.bodies.read import read_as
from server.wire.completions.read import completion_generation, read_completion
from server.wire.verbose import verbosely
from server.wire.warnings import warning_headers

router = APIRouter(tags=["completions"])


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """OpenAI completions, with llama.cpp's sampling fields beside OpenAI's."""
    completion, headers = await read_as(request, lambda given: (read_completion(given), warning_headers(given)))
    detailed = services(request).options.verbose
    prepare = verbosely(
        lambda model, seen: completion_generation(completion, model, seen), completion.body, default=detailed
    )
    return await answer(request, completion.body, prepare, headers, completion.media)
