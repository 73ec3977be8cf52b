"""``/v1/conversations``: named lists of items that responses continue and are added to (OpenAI's Conversations API)."""

import time

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.errors import InvalidRequest, NotFound, short
from server.routes.listing import ListQuery, list_reply
from server.routes.services import owner_of, services
from server.state.objects import Json, page
from server.transport.bodies.read import read_json, read_optional_json
from server.transport.reply import json_reply
from server.wire.common import random_id
from server.wire.known import Fields
from server.wire.responses.history import items_to_store
from server.wire.responses.input import read_input
from server.wire.responses.known import ITEM
from server.wire.responses.read import read_metadata
from server.wire.warnings import warning_headers

router = APIRouter(tags=["conversations"])
_NEW = Fields("metadata", items=ITEM)
MAX_NEW_ITEMS = 20
"""Items of one request that adds to a conversation, as at OpenAI."""


@router.post("/v1/conversations")
async def create_conversation(request: Request) -> Response:
    """Create a conversation, with up to 20 items."""
    body = await read_optional_json(request)
    items = _items(body) if body.get("items") else []
    found = {
        "id": f"conv_{random_id()}",
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": read_metadata(body),
    }
    await services(request).state.put(owner_of(request), "conversation", found, inputs=items)
    return json_reply(found, headers=warning_headers(body, _NEW))


@router.get("/v1/conversations/{conversation_id}")
async def get_conversation(request: Request, conversation_id: str) -> Response:
    """A conversation of this client."""
    return json_reply(await _found(request, conversation_id))


@router.post("/v1/conversations/{conversation_id}")
async def update_conversation(request: Request, conversation_id: str) -> Response:
    """Replace a conversation's metadata."""
    body = await read_json(request)
    metadata = read_metadata(body)
    changed = await services(request).state.update(
        owner_of(request), "conversation", conversation_id, lambda body: {**body, "metadata": metadata}
    )
    if changed is None:
        raise _not_found(conversation_id)
    return json_reply(changed, headers=warning_headers(body, Fields("metadata")))


@router.delete("/v1/conversations/{conversation_id}")
async def delete_conversation(request: Request, conversation_id: str) -> Response:
    """Delete a conversation and its items. Responses that were added to it stay."""
    if not await services(request).state.remove(owner_of(request), "conversation", conversation_id):
        raise _not_found(conversation_id)
    return json_reply({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.get("/v1/conversations/{conversation_id}/items")
async def list_conversation_items(request: Request, conversation_id: str) -> Response:
    """The items of a conversation."""
    query = ListQuery.of(request)
    await _found(request, conversation_id)
    items = await services(request).state.items(owner_of(request), conversation_id)
    return list_reply(page(items[::-1] if query.newest_first else items, query.after, query.limit))


@router.post("/v1/conversations/{conversation_id}/items")
async def create_conversation_items(request: Request, conversation_id: str) -> Response:
    """Add up to 20 items to the end of a conversation."""
    body = await read_json(request)
    items = _items(body)
    await _found(request, conversation_id)
    await services(request).state.append(owner_of(request), conversation_id, items)
    return list_reply(page(items, None, len(items)), warning_headers(body, Fields("", items=ITEM)))


@router.get("/v1/conversations/{conversation_id}/items/{item_id}")
async def get_conversation_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """One item of a conversation."""
    await _found(request, conversation_id)
    items = await services(request).state.items(owner_of(request), conversation_id)
    found = next((item for item in items if item["id"] == item_id), None)
    if found is None:
        raise NotFound(f"Item with id '{short(item_id)}' not found.")
    return json_reply(found)


@router.delete("/v1/conversations/{conversation_id}/items/{item_id}")
async def delete_conversation_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """Delete one item of a conversation."""
    found = await _found(request, conversation_id)
    if not await services(request).state.remove_item(owner_of(request), conversation_id, item_id):
        raise NotFound(f"Item with id '{short(item_id)}' not found.")
    return json_reply(found)


def _items(body: Json) -> list[Json]:
    """Return the body's items with ids, after checking that a response could continue them."""
    given = body.get("items")
    if not isinstance(given, list) or not 0 < len(given) <= MAX_NEW_ITEMS:
        raise InvalidRequest(f"items: must be an array of 1 to {MAX_NEW_ITEMS} items", "items")
    read_input(given, field="items")
    return items_to_store(given)


async def _found(request: Request, conversation_id: str) -> Json:
    found = await services(request).state.get(owner_of(request), "conversation", conversation_id)
    if found is None:
        raise _not_found(conversation_id)
    return found


def _not_found(conversation_id: str) -> NotFound:
    return NotFound(f"Conversation with id '{short(conversation_id)}' not found.")
