"""``POST /v1/responses``, its ``/input_tokens``, and the responses that are stored."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.errors import InvalidRequest, NotFound, short
from server.media.source import Seen
from server.pool.model import LoadedModel
from server.routes.generate import StreamWords, answer, compute
from server.routes.services import owner_of, services
from server.transport.bodies.read import read_as
from server.transport.reply import json_reply
from server.transport.streams.event_socket import CONNECTION
from server.wire.chat.read import input_tokens
from server.wire.common import Json
from server.wire.generation import Generation
from server.wire.responses.read import FIELDS, ResponseAsked, read_response, response_generation
from server.wire.responses.store import ClientResponses, ResponseStore
from server.wire.responses.write import EARLY_PING, ResponseStream, failed_early
from server.wire.warnings import warning_headers

router = APIRouter(tags=["responses"])
OWN_RESPONSES, OWN_BYTES = 32, 16 * 1024 * 1024
"""Of one WebSocket, for those that are not stored."""


@router.post("/v1/responses")
@router.post("/responses")
async def create_response(request: Request) -> Response:
    """OpenAI's Responses, with llama.cpp's fields beside OpenAI's."""
    stored = _stored(request)
    asked, headers = await read_as(request, lambda given: _read(given, stored))
    writers: list[ResponseStream] = []

    def prepare(model: LoadedModel, seen: Seen) -> Generation:
        generation = response_generation(asked, model, stored, seen)
        if isinstance(generation.writer, ResponseStream):
            writers.append(generation.writer)
        return generation

    def failed(status: int, error: Json) -> bytes:
        return b"".join(writers[-1].fail(status, error["error"])) if writers else failed_early(status, error["error"])

    def ping() -> bytes:
        return writers[-1].ping() if writers else EARLY_PING

    words = StreamWords(failed, ping)
    return await answer(request, asked.fields, prepare, headers, asked.conversation.media, words)


def _read(given: dict[str, Any], stored: ClientResponses) -> tuple[ResponseAsked, dict[str, str]]:
    asked = read_response(given, stored)
    return asked, warning_headers(given, FIELDS, warnings=asked.conversation.warnings)


@router.post("/v1/responses/input_tokens")
@router.post("/responses/input_tokens")
async def count_input_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a body has, without generating."""
    stored = _stored(request)
    asked, headers = await read_as(request, lambda given: _read(given, stored))
    return await compute(
        request,
        asked.fields.model,
        lambda model, seen: input_tokens(asked.conversation, model, seen),
        headers,
        asked.conversation.media,
        asked.fields.cache_salt or "",
    )


@router.get("/v1/responses/{response_id}")
@router.get("/responses/{response_id}")
async def get_response(request: Request, response_id: str) -> Response:
    """A stored response of this client."""
    if request.query_params.get("stream", "false").lower() not in ("false", "0", ""):
        raise InvalidRequest("stream: a stored response can't be streamed again", "stream")
    found = _stored(request).reply(response_id)
    if found is None:
        raise _not_found(response_id)
    return json_reply(found)


@router.delete("/v1/responses/{response_id}")
@router.delete("/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a stored response of this client. Those that follow it stay."""
    if not _stored(request).remove(response_id):
        raise _not_found(response_id)
    return json_reply({"id": response_id, "object": "response", "deleted": True})


def _stored(request: Request) -> ClientResponses:
    kept: dict[str, Any] | None = request.scope.get(CONNECTION)
    own = None if kept is None else kept.setdefault("responses", ResponseStore(OWN_RESPONSES, OWN_BYTES))
    return services(request).responses.of(owner_of(request), own)


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{short(response_id)}' not found.")
