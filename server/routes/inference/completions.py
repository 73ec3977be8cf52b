"""OpenAI's ``POST /v1/completions``, and llama-server's own: ``/completion``, ``/completions`` and ``/infill``."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.completions.prompt import PROMPT
from server.dialects.completions.read import CompletionBody, completion_generation, read_completion
from server.dialects.generation import INNER_FIELDS
from server.dialects.known import Fields, fields_of
from server.dialects.native.body import NativeBody
from server.dialects.native.infill import InfillBody, infill_generation, read_infill
from server.dialects.native.read import native_generation, read_native
from server.dialects.verbose import verbosely
from server.dialects.warnings import warning_headers
from server.routes.generate import answer
from server.routes.services import services
from server.transport.body import read_as

router = APIRouter(tags=["completions"])
_OPENAI, _NATIVE = (INNER_FIELDS | fields_of(body, prompt=PROMPT) for body in (CompletionBody, NativeBody))
_INFILL = INNER_FIELDS | fields_of(InfillBody, input_extra=Fields("filename text"))


@router.post("/v1/completions")
async def openai_completions(request: Request) -> Response:
    """OpenAI completions, with llama.cpp's sampling fields."""
    completion, headers = await read_as(
        request, lambda given: (read_completion(given), warning_headers(given, _OPENAI))
    )
    detailed = services(request).options.verbose
    prepare = verbosely(
        lambda model, seen: completion_generation(completion, model, seen), completion.body, default=detailed
    )
    return await answer(request, completion.body, prepare, headers, completion.media)


@router.post("/completion")
@router.post("/completions")
async def native_completions(request: Request) -> Response:
    """A native completion of one prompt or of several."""
    wanted, headers = await read_as(
        request, lambda given: (read_native(given), warning_headers(given, _NATIVE, native=True))
    )
    return await answer(
        request, wanted.body, lambda model, seen: native_generation(wanted, model, seen), headers, wanted.media
    )


@router.post("/infill")
async def infill(request: Request) -> Response:
    """Code between a prefix and a suffix."""
    wanted, headers = await read_as(
        request, lambda given: (read_infill(given), warning_headers(given, _INFILL, native=True))
    )
    return await answer(request, wanted.body, lambda model, _: infill_generation(wanted, model), headers)
