"""OpenAI's ``POST /v1/completions``, and llama-server's own: ``/completion``, ``/completions`` and ``/infill``."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.completions.parse import COMPLETIONS
from server.dialects.native.infill import INFILL
from server.dialects.native.parse import NATIVE
from server.routes.generate import answer

router = APIRouter(tags=["completions"])


@router.post("/v1/completions")
async def openai_completions(request: Request) -> Response:
    """OpenAI completions, with llama.cpp's sampling fields."""
    return await answer(request, COMPLETIONS)


@router.post("/completion")
@router.post("/completions")
async def native_completions(request: Request) -> Response:
    """A native completion of one prompt or of several."""
    return await answer(request, NATIVE)


@router.post("/infill")
async def infill(request: Request) -> Response:
    """Code between a prefix and a suffix."""
    return await answer(request, INFILL)
