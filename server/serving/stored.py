"""Finds, lists and returns stored objects of a client.

Objects may contain images of several megabytes, so replies are serialized in the thread that parses long bodies.
"""

from collections.abc import Callable, Mapping

from fastapi import Request
from fastapi.responses import Response

from server.dialects.common import page_of
from server.errors import NotFound, invalid, short
from server.serving.services import owner_of, services
from server.state.objects import Json, Kind, Page, PageQuery
from server.transport.body import read_later
from server.transport.errors import json_reply

MAX_LIMIT = 100
DEFAULT_LIMIT = 20
_NOT_FOUND = {
    "response": "Response with id '{}' not found.",
    "conversation": "Conversation with id '{}' not found.",
    "file": "No such File object: {}",
    "batch": "No batch found with id '{}'.",
}


def not_found(kind: Kind, object_id: str) -> NotFound:
    """Return the error for an object that does not exist or that the client does not own."""
    return NotFound(_NOT_FOUND[kind].format(short(object_id)))


async def find_object(request: Request, kind: Kind, object_id: str) -> Json:
    """Return an object of this client. Raises `NotFound`."""
    stored = await services(request).store_of(kind).get(owner_of(request), kind, object_id)
    if stored is None:
        raise not_found(kind, object_id)
    return stored


async def change_object(request: Request, kind: Kind, object_id: str, change: Callable[[Json], Json]) -> Json:
    """Replace an object of this client by ``change(object)``, and return the new object. Raises `NotFound`."""
    changed = await services(request).store_of(kind).update(owner_of(request), kind, object_id, change)
    if changed is None:
        raise not_found(kind, object_id)
    return changed


async def remove_object(request: Request, kind: Kind, object_id: str) -> None:
    """Delete an object of this client. Raises `NotFound`."""
    if not await services(request).store_of(kind).remove(owner_of(request), kind, object_id):
        raise not_found(kind, object_id)


def read_limit(text: str, max_limit: int) -> int:
    """Parse ``limit`` of a query. Raises `InvalidRequest`."""
    if len(text) > len(str(max_limit)) or not text.isdecimal() or not 1 <= int(text) <= max_limit:
        raise invalid("limit", f"must be a whole number between 1 and {max_limit}")
    return int(text)


def page_query(
    request: Request, *, max_limit: int = MAX_LIMIT, default_limit: int = DEFAULT_LIMIT, label: str | None = None
) -> PageQuery:
    """Parse the page that a query requests in OpenAI's API: ``limit``, ``order`` and ``after``.

    Raises `InvalidRequest`.
    """
    query = request.query_params
    limit, order = read_limit(query.get("limit", str(default_limit)), max_limit), query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order", "must be asc or desc")
    return PageQuery(query.get("after") or None, limit, order == "desc", label)


async def find_page(request: Request, kind: Kind, query: PageQuery) -> Page:
    return await services(request).store_of(kind).find(owner_of(request), kind, query)


async def list_items(request: Request, object_id: str, *, is_output: bool | None = None) -> Response:
    """Return the page of an object's items that the query asks for."""
    state, query = services(request).state, page_query(request)
    page = await state.page_of_items(owner_of(request), object_id, query, is_output=is_output)
    return await list_reply(request, page)


async def list_reply(request: Request, page: Page, headers: Mapping[str, str] | None = None) -> Response:
    """Return a page as OpenAI's list object, with extra `headers`."""
    members = page_of(page.data, has_more=page.has_more)
    return await object_reply(request, {"object": "list", **members}, headers)


async def object_reply(request: Request, value: Json, headers: Mapping[str, str] | None = None) -> Response:
    """Return `value` as a JSON reply, with extra `headers`."""
    return await read_later(request, lambda: json_reply(value, headers=headers))
