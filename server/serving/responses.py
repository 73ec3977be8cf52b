"""Parses Responses bodies with the stored items that they continue, and stores responses."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
from fastapi import Request

from server.dialects.responses.input import NO_HISTORY, History, references
from server.dialects.responses.parse import ResponseRequest, Store, parse_response
from server.dialects.responses.tools import is_mcp, read_mcp
from server.errors import InvalidRequest, LlamapoolError, NotFound, invalid, short
from server.serving.mcp import read_with_servers
from server.serving.services import key_of, owner_of, services
from server.serving.stored import find_object
from server.state.objects import Json
from server.transport.body import read_as, read_later
from server.transport.websocket import CONNECTION, Remembered

logger = logging.getLogger(__name__)
MAX_REMEMBERED, MAX_REMEMBERED_ITEMS = 32, 16384
"""Responses with ``store: false``, and their items in total, that a WebSocket connection keeps. The JSON bytes of these
items are at most ``max_body_bytes``. Items of several responses are counted for each."""


async def read_response(request: Request, change: Callable[[Json], Json] = lambda body: body) -> ResponseRequest:
    """Parse the body with the stored items that it continues, after `change` has replaced the body."""
    cipher = services(request).reasoning
    servers, key = services(request).mcp, key_of(request)
    web_search = servers.rules.web_search
    web_search = web_search if key.may_call(web_search) else ""

    def uses_mcp(body: dict[str, Any]) -> bool:
        tools = body.get("tools")
        return servers.is_for_requests and isinstance(tools, list) and any(is_mcp(entry, web_search) for entry in tools)

    def parse_without_state(body: dict[str, Any]) -> ResponseRequest | dict[str, Any]:
        """Parse a body that needs neither stored items nor MCP servers. Return another one unparsed."""
        body = change(body)
        names_state = any(body.get(name) for name in ("previous_response_id", "conversation"))
        needs_more = names_state or references(body.get("input")) or uses_mcp(body)
        return body if needs_more else parse_response(body, NO_HISTORY, cipher)

    body = await read_as(request, parse_without_state)
    if isinstance(body, ResponseRequest):
        return body
    history = await _history(request, body)
    if not uses_mcp(body):
        return await read_later(request, lambda: parse_response(body, history, cipher))
    inputs = body.get("input")
    items = [*history.items, *(inputs if isinstance(inputs, list) else ())]
    named = read_mcp(body["tools"], web_search, items)
    return await read_with_servers(request, body, named, lambda body, mcp: parse_response(body, history, cipher, mcp))


async def _history(request: Request, body: dict[str, Any]) -> History:
    """Load the stored items that a body names. Raises `InvalidRequest` for items that the client does not own."""
    state, owner = services(request).state, owner_of(request)
    previous, conversation = body.get("previous_response_id"), body.get("conversation")
    if previous and conversation:
        raise invalid("conversation", "cannot be combined with previous_response_id; send one")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    items: list[Json] = []
    field = "previous_response_id"
    if isinstance(previous, str) and previous:
        remembered, _ = _histories(request).get(previous, (None, 0))
        chain = remembered or await state.chain(owner, previous)
        if chain is None:
            raise InvalidRequest(f"Previous response with id '{short(previous)}' not found.", "previous_response_id")
        items = chain
    elif isinstance(conversation, str) and conversation:
        if await state.get(owner, "conversation", conversation) is None:
            raise InvalidRequest(f"Conversation with id '{short(conversation)}' not found.", "conversation")
        items, field = await state.items(owner, conversation), "conversation"
    ids = references(body.get("input"))
    local = {item["id"]: item for each, _ in _histories(request).values() for item in each if item["id"] in ids}
    referenced = {**await state.find_items(owner, ids - set(local)), **local} if ids else {}
    return History(items, field, referenced)


def store_of(request: Request, parsed: ResponseRequest) -> Store:
    """Return a function that stores the finished response and returns whether it was stored."""
    app, owner, histories = services(request), owner_of(request), _histories(request)
    options, earlier, is_websocket = parsed.options, parsed.history.items, CONNECTION in request.scope

    async def store(response: Json, inputs: list[Json]) -> bool:
        if is_websocket and not options.stored:
            items = [*earlier, *inputs, *response["output"]]
            histories[response["id"]] = items, len(orjson.dumps(items))
            while histories and not _may_remember(histories, app.options.max_body_bytes):
                histories.popitem(last=False)
        conversation = options.conversation_id
        try:
            if options.stored:
                await put_response(request, parsed, response, inputs, append_to=conversation)
            elif conversation is not None:
                await app.state.append(owner, conversation, [*inputs, *response["output"]])
        except LlamapoolError as error:
            logger.warning("a response was not stored: %s", error.message)
            return False
        return options.stored

    return store


def _may_remember(histories: Remembered, max_bytes: int) -> bool:
    n_items, n_bytes = (
        sum(counts) for counts in zip(*((len(items), n) for items, n in histories.values()), strict=True)
    )
    return len(histories) <= MAX_REMEMBERED and n_items <= MAX_REMEMBERED_ITEMS and n_bytes <= max_bytes


async def put_response(
    request: Request, parsed: ResponseRequest, response: Json, inputs: list[Json], append_to: str | None = None
) -> None:
    """Store a response with `inputs`, the items since the response that it continues; with all if that is not stored.

    Raises `Unavailable` and `QuotaExceeded`.
    """
    app, parent = services(request), parsed.options.previous_response_id or None
    put = partial(
        app.state.put,
        *(owner_of(request), "response"),
        outputs=response["output"],
        expires_at=None if app.options.keep_s is None else time.time() + app.options.keep_s,
        append_to=append_to,
    )
    body = {**response, "output": []}
    try:
        await put(body, parent=parent, inputs=inputs)
    except NotFound:  # the parent was deleted meanwhile, or only the connection of a WebSocket remembers it
        await put(body, inputs=[*parsed.history.items, *inputs])


async def stored_response(request: Request, response_id: str) -> Json:
    """Return a stored response of this client with its output. Raises `NotFound`."""
    response = await find_object(request, "response", response_id)
    return {**response, "output": await services(request).state.items(owner_of(request), response_id, is_output=True)}


def _histories(request: Request) -> Remembered:
    """Return the responses that the request's WebSocket connection keeps; none over HTTP."""
    histories: Remembered = request.scope.get(CONNECTION, OrderedDict())
    return histories
