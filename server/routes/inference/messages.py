"""``POST /v1/messages`` and its ``/count_tokens``: Anthropic's Messages API."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.routes.generate import StreamWords, answer, compute
from server.routes.services import services
from server.transport.bodies.read import read_as
from server.wire.messages.errors import error_event
from server.wire.messages.read import FIELDS, MessagesAsked, count_message_tokens, message_generation, read_messages
from server.wire.messages.write import PING
from server.wire.reasoning_cipher import ReasoningCipher
from server.wire.warnings import warning_headers

router = APIRouter(tags=["messages"])
_WORDS = StreamWords(error_event, lambda: PING)


@router.post("/v1/messages")
async def post_messages(request: Request) -> Response:
    """A message that answers a conversation, whole or as a stream of typed events."""
    cipher = services(request).reasoning
    wanted, headers = await read_as(request, lambda given: _read(given, cipher))
    media = wanted.conversation.media
    return await answer(
        request, wanted.body, lambda model, seen: message_generation(wanted, model, seen), headers, media, _WORDS
    )


def _read(
    given: dict[str, Any], cipher: ReasoningCipher, *, generate: bool = True
) -> tuple[MessagesAsked, dict[str, str]]:
    wanted = read_messages(given, cipher, generate=generate)
    return wanted, warning_headers(given, FIELDS, warnings=wanted.conversation.warnings)


@router.post("/v1/messages/count_tokens")
async def post_count_tokens(request: Request) -> Response:
    """How many tokens a body's prompt has, without generating."""
    cipher = services(request).reasoning
    wanted, headers = await read_as(request, lambda given: _read(given, cipher, generate=False))
    return await compute(
        request,
        wanted.body.model,
        lambda model, seen: count_message_tokens(wanted, model, seen),
        headers,
        wanted.conversation.media,
        wanted.body.cache_salt or "",
    )
