"""The stored items that a body of the Responses API continues, and the responses that are stored."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from fastapi import Request

from server.dialects.responses.input import NO_HISTORY, History, references
from server.dialects.responses.parse import ResponseRequest, Store, parse_response
from server.dialects.responses.tools import is_mcp, read_mcp
from server.errors import InvalidRequest, LlamapoolError, invalid, short
from server.serving.mcp import read_with_servers
from server.serving.services import Services, key_of, owner_of, services
from server.serving.stored import find_object
from server.state.objects import Json
from server.transport.body import read_as, read_later
from server.transport.websocket import CONNECTION, Remembered

logger = logging.getLogger(__name__)
MAX_REMEMBERED, MAX_REMEMBERED_ITEMS = 32, 16384
"""Responses, and items in all of them, that a WebSocket connection remembers although ``store`` is false."""


async def read_response(request: Request, change: Callable[[Json], Json] = lambda given: given) -> ResponseRequest:
    """Parse the body and the stored items that it continues. `change` returns the body to parse in its place."""
    cipher = services(request).reasoning
    servers, key = services(request).mcp, key_of(request)
    web_search = servers.rules.web_search
    web_search = web_search if key.may_call(web_search) else ""

    def uses_mcp(given: dict[str, Any]) -> bool:
        tools = given.get("tools")
        return servers.is_for_requests and isinstance(tools, list) and any(is_mcp(entry, web_search) for entry in tools)

    def first(given: dict[str, Any]) -> ResponseRequest | dict[str, Any]:
        given = change(given)
        names_state = any(given.get(name) for name in ("previous_response_id", "conversation"))
        later = names_state or references(given.get("input")) or uses_mcp(given)
        return given if later else parse_response(given, NO_HISTORY, cipher)

    found = await read_as(request, first)
    if isinstance(found, ResponseRequest):
        return found
    history = await _history(request, found)
    if not uses_mcp(found):
        return await read_later(request, lambda: parse_response(found, history, cipher))
    given_items = found.get("input")
    items = [*history.items, *(given_items if isinstance(given_items, list) else ())]
    named = read_mcp(found["tools"], web_search, items)
    return await read_with_servers(request, found, named, lambda body, mcp: parse_response(body, history, cipher, mcp))


async def _history(request: Request, given: dict[str, Any]) -> History:
    """Fetch the stored items that a body names. Raises `InvalidRequest` for those that its client does not have."""
    state, owner = services(request).state, owner_of(request)
    previous, conversation = given.get("previous_response_id"), given.get("conversation")
    if previous and conversation:
        raise invalid("conversation", "cannot be combined with previous_response_id; send one")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    items: list[Json] = []
    named = "previous_response_id"
    if isinstance(previous, str) and previous:
        found = _histories(request).get(previous) or await state.chain(owner, previous)
        if found is None:
            raise InvalidRequest(f"Previous response with id '{short(previous)}' not found.", "previous_response_id")
        items = found
    elif isinstance(conversation, str) and conversation:
        if await state.get(owner, "conversation", conversation) is None:
            raise InvalidRequest(f"Conversation with id '{short(conversation)}' not found.", "conversation")
        items, named = await state.items(owner, conversation), "conversation"
    wanted = references(given.get("input"))
    remembered = {item["id"]: item for each in _histories(request).values() for item in each if item["id"] in wanted}
    referenced = {**await state.find_items(owner, wanted - set(remembered)), **remembered} if wanted else {}
    return History(items, named, referenced)


def store_of(request: Request, parsed: ResponseRequest) -> Store:
    """Return the function that stores the finished response."""
    used, owner, histories = services(request), owner_of(request), _histories(request)
    options, earlier, remembers = parsed.options, parsed.history.items, CONNECTION in request.scope

    async def store(response: Json, inputs: list[Json]) -> bool:
        if remembers and not options.stored:
            histories[response["id"]] = [*earlier, *inputs, *response["output"]]
            while len(histories) > MAX_REMEMBERED or sum(map(len, histories.values())) > MAX_REMEMBERED_ITEMS:
                histories.popitem(last=False)
        conversation = options.conversation_id
        try:
            if options.stored:
                previous = options.previous_response_id
                parent = None if previous in histories else previous
                await used.state.put(
                    *(owner, "response", {**response, "output": []}),
                    parent=parent,
                    inputs=[*earlier, *inputs] if previous and parent is None else inputs,
                    outputs=response["output"],
                    expires_at=expiry(used),
                    append_to=conversation,
                )
            elif conversation is not None:
                await used.state.append(owner, conversation, [*inputs, *response["output"]])
        except LlamapoolError as error:
            logger.warning("a response was not stored: %s", error.message)
            return False
        return options.stored

    return store


def expiry(used: Services) -> float | None:
    """Return when a response that is stored now expires, in seconds since the epoch."""
    keep_s = used.options.keep_s
    return None if keep_s is None else time.time() + keep_s


async def stored_response(request: Request, response_id: str) -> Json:
    """Return a stored response of this client with its output. Raises `NotFound`."""
    found = await find_object(request, "response", response_id)
    return {**found, "output": await services(request).state.items(owner_of(request), response_id, is_output=True)}


def _histories(request: Request) -> Remembered:
    """Return the responses that the WebSocket connection of the request remembers; none over HTTP."""
    found: Remembered = request.scope.get(CONNECTION, OrderedDict())
    return found
