"""Lists of objects as OpenAI's API pages them: ``limit``, ``order`` and ``after`` in the query."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from fastapi import Request
from fastapi.responses import Response

from server.errors import InvalidRequest
from server.state.objects import Page
from server.transport.reply import json_reply

MAX_LIMIT = 100
DEFAULT_LIMIT = 20


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which page a client asks for."""

    after: str | None
    limit: int
    newest_first: bool

    @classmethod
    def of(cls, request: Request, *, max_limit: int = MAX_LIMIT, default_limit: int = DEFAULT_LIMIT) -> Self:
        """Read the query. Raises `InvalidRequest`."""
        query = request.query_params
        limit, order = query.get("limit", str(default_limit)), query.get("order", "desc")
        if not limit.isdecimal() or not 1 <= int(limit) <= max_limit:
            raise InvalidRequest(f"limit: must be a whole number between 1 and {max_limit}", "limit")
        if order not in ("asc", "desc"):
            raise InvalidRequest("order: must be asc or desc", "order")
        return cls(query.get("after") or None, int(limit), order == "desc")


def list_reply(found: Page, headers: Mapping[str, str] | None = None) -> Response:
    """Return a page as OpenAI's list object, with extra `headers`."""
    ids = [each["id"] for each in found.data]
    edges = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return json_reply({"object": "list", "data": found.data, **edges, "has_more": found.has_more}, headers=headers)
