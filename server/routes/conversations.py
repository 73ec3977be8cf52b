"""``/v1/conversations`` (OpenAI): stored lists of items, which responses continue and add to."""

import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.common import random_id
from server.dialects.fields import refuse_deep
from server.dialects.responses.input import History, item_to_store, read_input, references
from server.dialects.responses.parse import read_metadata
from server.dialects.warnings import as_header, unused_fields
from server.errors import InvalidRequest, NotFound, invalid, short
from server.routes.openapi import READS, describe
from server.serving.services import owner_of, services
from server.serving.stored import (
    change_object,
    find_object,
    list_items,
    list_reply,
    not_found,
    object_reply,
    remove_object,
)
from server.state.objects import Json, Page
from server.transport.body import read_as, read_later
from server.transport.errors import json_reply

router = APIRouter(tags=["conversations"])
_MESSAGE = {"role": "user", "content": "Hi"}
MAX_NEW_ITEMS = 20
"""Maximum items that one request adds to a conversation, as in OpenAI's API."""


@router.post("/v1/conversations")
@describe("$Conversation", example={"items": [_MESSAGE], "metadata?": {"*": "foxes"}}, errors=READS)
async def create_conversation(request: Request) -> Response:
    """Create a conversation, with up to 20 items."""
    conversation = {"id": f"conv_{random_id()}", "object": "conversation", "created_at": int(time.time())}

    def read(body: Json) -> tuple[Json, list[Any], dict[str, str]]:
        given = _given(body) if body.get("items") else []
        return read_metadata(body), given, as_header(unused_fields(body, ("metadata", "items")))

    conversation["metadata"], given, headers = await read_as(request, read, optional=True)
    items = await _items(request, given)
    await services(request).state.put(owner_of(request), "conversation", conversation, inputs=items)
    return json_reply(conversation, headers=headers)


@router.get("/v1/conversations/{conversation_id}")
@describe("$Conversation", errors=(404,))
async def get_conversation(request: Request, conversation_id: str) -> Response:
    """Return a conversation of this client."""
    return json_reply(await find_object(request, "conversation", conversation_id))


@router.post("/v1/conversations/{conversation_id}")
@describe("$Conversation", example={"metadata": {"topic": "foxes"}}, errors=(*READS, 404))
async def update_conversation(request: Request, conversation_id: str) -> Response:
    """Replace a conversation's metadata."""

    def read(body: Json) -> tuple[Json, dict[str, str]]:
        if "metadata" not in body:
            raise InvalidRequest("Field 'metadata': is required", "metadata")
        return read_metadata(body), as_header(unused_fields(body, ("metadata",)))

    metadata, headers = await read_as(request, read)
    changed = await change_object(
        *(request, "conversation", conversation_id), lambda stored: {**stored, "metadata": metadata}
    )
    return json_reply(changed, headers=headers)


@router.delete("/v1/conversations/{conversation_id}")
@describe("$Deleted", errors=(404,))
async def delete_conversation(request: Request, conversation_id: str) -> Response:
    """Delete a conversation and its items. Responses that added to it are kept."""
    await remove_object(request, "conversation", conversation_id)
    return json_reply({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.get("/v1/conversations/{conversation_id}/items")
@describe("$ObjectList", errors=(400, 404))
async def list_conversation_items(request: Request, conversation_id: str) -> Response:
    """List the items of a conversation."""
    await find_object(request, "conversation", conversation_id)
    return await list_items(request, conversation_id)


@router.post("/v1/conversations/{conversation_id}/items")
@describe("$ObjectList", example={"items": [_MESSAGE]}, errors=(*READS, 404))
async def create_conversation_items(request: Request, conversation_id: str) -> Response:
    """Add up to 20 items to the end of a conversation."""
    headers, given = await read_as(request, lambda body: (as_header(unused_fields(body, ("items",))), _given(body)))
    await find_object(request, "conversation", conversation_id)
    state, owner = services(request).state, owner_of(request)
    earlier = [item for item in await state.items(owner, conversation_id) if item["type"] == "mcp_approval_request"]
    added = await state.append(owner, conversation_id, await _items(request, given, earlier))
    if added is None:
        raise not_found("conversation", conversation_id)
    return await list_reply(request, Page(added, has_more=False), headers=headers)


@router.get("/v1/conversations/{conversation_id}/items/{item_id}")
@describe({}, errors=(404,))
async def get_conversation_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """Return one item of a conversation."""
    await find_object(request, "conversation", conversation_id)
    item = await services(request).state.item(owner_of(request), conversation_id, item_id)
    if item is None:
        raise NotFound(f"Item with id '{short(item_id)}' not found.")
    return await object_reply(request, item)


@router.delete("/v1/conversations/{conversation_id}/items/{item_id}")
@describe("$Conversation", errors=(404,))
async def delete_conversation_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """Delete one item of a conversation, and return the conversation."""
    conversation = await find_object(request, "conversation", conversation_id)
    if not await services(request).state.remove_item(owner_of(request), conversation_id, item_id):
        raise NotFound(f"Item with id '{short(item_id)}' not found.")
    return json_reply(conversation)


def _given(body: Json) -> list[Any]:
    """Return the body's items after checking their number and depth."""
    items = body.get("items")
    if not isinstance(items, list) or not 0 < len(items) <= MAX_NEW_ITEMS:
        raise invalid("items", f"must be an array of 1 to {MAX_NEW_ITEMS} items")
    refuse_deep({"items": items})
    return items


async def _items(request: Request, given: list[Any], earlier: Sequence[Json] = ()) -> list[Json]:
    """Return new items with ids, after checking that the Responses API accepts them after `earlier` ones."""
    referenced = await services(request).state.find_items(owner_of(request), references(given))
    history = History(earlier, "conversation", referenced)
    return await read_later(request, lambda: list(map(item_to_store, read_input(given, history, "items").items)))
