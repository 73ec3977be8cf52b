"""OpenAI's ``POST /v1/completions``, and llama-server's ``/completion``, ``/completions`` and ``/infill``."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.completions.parse import COMPLETIONS, CompletionBody
from server.dialects.native.parse import INFILL, NATIVE, InfillBody, NativeBody
from server.errors import NotSupported
from server.routes.openapi import computes, describe
from server.serving.generate import answer

router = APIRouter(tags=["completions"])
_INFILL = {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "n_predict": 16}


@router.post("/v1/completions")
@computes("$Completion", CompletionBody, {"prompt": "Once", "max_tokens": 16}, "$Completion")
async def openai_completions(request: Request) -> Response:
    """Complete a text in OpenAI's format, with llama.cpp's sampling fields."""
    return await answer(request, COMPLETIONS)


@router.post("/completion")
@router.post("/completions")
@computes("$NativeCompletion", NativeBody, {"prompt": "Once", "n_predict": 16}, "$NativeChunk")
async def native_completions(request: Request) -> Response:
    """Complete one or several prompts in llama-server's own format."""
    return await answer(request, NATIVE)


@router.post("/infill")
@computes("$NativeCompletion", InfillBody, _INFILL, "$NativeChunk")
async def infill(request: Request) -> Response:
    """Generate the code between a prefix and a suffix."""
    return await answer(request, INFILL)


@router.post("/v1/moderations")
@describe(status=None, errors=(501,))
async def create_moderation() -> Response:
    """Reply with 501, because no model returns scores for OpenAI's categories of harmful content."""
    raise NotSupported(
        "moderations: this server has no classifier for OpenAI's categories of harmful content; load a guard model "
        "such as Llama Guard and ask it at /v1/chat/completions"
    )
