"""``POST /v1/embeddings`` and llama-server's own ``/embedding`` and ``/embeddings``."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.routes.embed import embed, read_able
from server.wire.completions.prompt import prompt_media
from server.wire.vectors.embeddings import embeddings_job, read_embeddings
from server.wire.warnings import warning_headers

router = APIRouter(tags=["embeddings"])


@router.post("/v1/embeddings")
async def openai_embeddings(request: Request) -> Response:
    """OpenAI embeddings."""
    return await _embeddings(request, openai=True)


@router.post("/embedding")
@router.post("/embeddings")
async def native_embeddings(request: Request) -> Response:
    """llama-server's own reply: a list, with a vector for each token where the pooling is none."""
    return await _embeddings(request, openai=False)


async def _embeddings(request: Request, *, openai: bool) -> Response:
    wanted, headers = await read_able(
        request, "embed", lambda given: (read_embeddings(given, native=not openai), warning_headers(given))
    )
    return await embed(
        request,
        wanted.body.model,
        "embed",
        lambda model, seen: embeddings_job(wanted, model, seen, openai=openai),
        headers,
        media=prompt_media(wanted.prompts),
    )
