"""``POST /v1/messages`` and its ``/count_tokens``: Anthropic's Messages API."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.messages.mcp import read_mcp
from server.dialects.messages.parse import MESSAGES, MessagesBody, MessagesRequest, count_message_tokens, parse_messages
from server.routes.openapi import HI, computes
from server.serving.generate import compute, respond
from server.serving.mcp import read_with_servers
from server.serving.services import services
from server.transport.body import read_as

router = APIRouter(tags=["messages"])


@router.post("/v1/messages")
@computes("$AnthropicMessage", MessagesBody, HI, "$AnthropicEvent")
async def post_messages(request: Request) -> Response:
    """Create a message that continues a conversation; with ``stream`` as typed events."""
    return await respond(request, MESSAGES, await _parsed(request))


@router.post("/v1/messages/count_tokens")
@computes("$InputTokens", MessagesBody, HI)
async def post_count_tokens(request: Request) -> Response:
    """Return the number of prompt tokens of a body without generating."""
    parsed = await _parsed(request, generate=False)
    return await compute(request, parsed, partial(count_message_tokens, parsed.conversation), parsed.media)


async def _parsed(request: Request, *, generate: bool = True) -> MessagesRequest:
    """Parse the body. If it names MCP servers, list their tools first."""
    may_name_servers = services(request).mcp.is_for_requests
    parse = partial(parse_messages, cipher=services(request).reasoning, generate=generate)

    def parse_without_mcp(body: dict[str, Any]) -> MessagesRequest | dict[str, Any]:
        return body if may_name_servers and body.get("mcp_servers") else parse(body)

    body = await read_as(request, parse_without_mcp)
    if isinstance(body, MessagesRequest):
        return body
    servers = read_mcp(body, request.headers.get("anthropic-beta", ""))
    return await read_with_servers(request, body, servers, lambda body, mcp: parse(body, mcp=mcp))
