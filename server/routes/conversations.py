"""``/v1/conversations``: named lists of items that responses continue and are added to (OpenAI's Conversations API)."""

import time

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.common import random_id
from server.dialects.fields import refuse_deep
from server.dialects.responses.input import item_to_store, read_input
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
from server.transport.body import read_as
from server.transport.errors import json_reply

router = APIRouter(tags=["conversations"])
_MESSAGE = {"role": "user", "content": "Hi"}
MAX_NEW_ITEMS = 20
"""Items of one request that adds to a conversation, as at OpenAI."""


@router.post("/v1/conversations")
@describe("$Conversation", example={"items": [_MESSAGE], "metadata?": {"*": "foxes"}}, errors=READS)
async def create_conversation(request: Request) -> Response:
    """Create a conversation, with up to 20 items."""
    found = {"id": f"conv_{random_id()}", "object": "conversation", "created_at": int(time.time())}

    def read(given: Json) -> tuple[Json, list[Json], dict[str, str]]:
        items = _items(given) if given.get("items") else []
        return read_metadata(given), items, as_header(unused_fields(given, ("metadata", "items")))

    found["metadata"], items, headers = await read_as(request, read, optional=True)
    await services(request).state.put(owner_of(request), "conversation", found, inputs=items)
    return json_reply(found, headers=headers)


@router.get("/v1/conversations/{conversation_id}")
@describe("$Conversation", errors=(404,))
async def get_conversation(request: Request, conversation_id: str) -> Response:
    """Return a conversation of this client."""
    return json_reply(await find_object(request, "conversation", conversation_id))


@router.post("/v1/conversations/{conversation_id}")
@describe("$Conversation", example={"metadata": {"topic": "foxes"}}, errors=(*READS, 404))
async def update_conversation(request: Request, conversation_id: str) -> Response:
    """Replace a conversation's metadata."""

    def read(given: Json) -> tuple[Json, dict[str, str]]:
        if "metadata" not in given:
            raise InvalidRequest("Field 'metadata': is required", "metadata")
        return read_metadata(given), as_header(unused_fields(given, ("metadata",)))

    metadata, headers = await read_as(request, read)
    changed = await change_object(
        *(request, "conversation", conversation_id), lambda found: {**found, "metadata": metadata}
    )
    return json_reply(changed, headers=headers)


@router.delete("/v1/conversations/{conversation_id}")
@describe("$Deleted", errors=(404,))
async def delete_conversation(request: Request, conversation_id: str) -> Response:
    """Delete a conversation and its items. Responses that were added to it stay."""
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
    headers, items = await read_as(request, lambda given: (as_header(unused_fields(given, ("items",))), _items(given)))
    await find_object(request, "conversation", conversation_id)
    if not await services(request).state.append(owner_of(request), conversation_id, items):
        raise not_found("conversation", conversation_id)
    return await list_reply(request, Page(items, has_more=False), headers=headers)


@router.get("/v1/conversations/{conversation_id}/items/{item_id}")
@describe({}, errors=(404,))
async def get_conversation_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """Return one item of a conversation."""
    await find_object(request, "conversation", conversation_id)
    found = await services(request).state.item(owner_of(request), conversation_id, item_id)
    if found is None:
        raise NotFound(f"Item with id '{short(item_id)}' not found.")
    return await object_reply(request, found)


@router.delete("/v1/conversations/{conversation_id}/items/{item_id}")
@describe("$Conversation", errors=(404,))
async def delete_conversation_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """Delete one item of a conversation, and return the conversation."""
    found = await find_object(request, "conversation", conversation_id)
    if not await services(request).state.remove_item(owner_of(request), conversation_id, item_id):
        raise NotFound(f"Item with id '{short(item_id)}' not found.")
    return json_reply(found)


def _items(body: Json) -> list[Json]:
    """Return the body's items with ids, after checking that a response could continue them."""
    given = body.get("items")
    if not isinstance(given, list) or not 0 < len(given) <= MAX_NEW_ITEMS:
        raise invalid("items", f"must be an array of 1 to {MAX_NEW_ITEMS} items")
    refuse_deep({"items": given})
    return list(map(item_to_store, read_input(given, at="items").items))
