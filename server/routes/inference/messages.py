"""``POST /v1/messages`` and its ``/count_tokens``: Anthropic's Messages API."""

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.messages.errors import error_event
from server.dialects.messages.mcp import offer_tools, pinned_lists, read_mcp, unlisted, uses_mcp, with_functions
from server.dialects.messages.read import (
    FIELDS,
    ParsedMessages,
    count_message_tokens,
    message_generation,
    read_messages,
)
from server.dialects.messages.write import PING
from server.dialects.reasoning_cipher import ReasoningCipher
from server.dialects.warnings import warning_headers
from server.routes.generate import StreamDialect, answer, compute
from server.routes.mcp import offer, server_tools
from server.routes.services import services
from server.transport.body import read_as, read_later

router = APIRouter(tags=["messages"])
_WORDS = StreamDialect(error_event, lambda: PING)


@router.post("/v1/messages")
async def post_messages(request: Request) -> Response:
    """A message that answers a conversation, whole or as a stream of typed events."""
    wanted, headers = await _asked(request)
    media = wanted.conversation.media
    return await answer(
        request, wanted.body, lambda model, seen: message_generation(wanted, model, seen), headers, media, _WORDS
    )


async def _asked(request: Request, *, generate: bool = True) -> tuple[ParsedMessages, dict[str, str]]:
    """Read the body; MCP servers that it names are asked for their tools."""
    cipher, servers = services(request).reasoning, services(request).mcp

    def first(given: dict[str, Any]) -> tuple[ParsedMessages, dict[str, str]] | dict[str, Any]:
        if servers.is_for_requests and uses_mcp(given):
            return given
        return _read(given, cipher, generate=generate)

    given = await read_as(request, first)
    if isinstance(given, tuple):
        return given
    named = read_mcp(given, request.headers.get("anthropic-beta", ""))
    # Nothing is connected to for a body that is wrong anyway.
    without = {**with_functions(given, {}), "tool_choice": None}
    await read_later(request, lambda: read_messages(without, cipher, generate=generate))
    offered = await offer(request, named, "name", pinned_lists(given))
    mcp = offer_tools(offered, given.get("tools"))

    def with_mcp() -> tuple[ParsedMessages, dict[str, str]]:
        asked = read_messages(with_functions(given, mcp), cipher, generate=generate)
        asked = replace(asked, server_tools=server_tools(servers, mcp))
        warnings = [*asked.conversation.warnings, *unlisted(offered)]
        return asked, warning_headers(given, FIELDS, warnings=warnings)

    return await read_later(request, with_mcp)


def _read(
    given: dict[str, Any], cipher: ReasoningCipher, *, generate: bool = True
) -> tuple[ParsedMessages, dict[str, str]]:
    wanted = read_messages(given, cipher, generate=generate)
    return wanted, warning_headers(given, FIELDS, warnings=wanted.conversation.warnings)


@router.post("/v1/messages/count_tokens")
async def post_count_tokens(request: Request) -> Response:
    """How many tokens a body's prompt has, without generating."""
    wanted, headers = await _asked(request, generate=False)
    return await compute(
        request,
        wanted.body.model,
        lambda model, seen: count_message_tokens(wanted, model, seen),
        headers,
        wanted.conversation.media,
        wanted.body.cache_salt or "",
    )
