"""JSON objects of owners with their items: stored responses, conversations, files and batches.

`Objects` is the interface of two stores: `server.state.sqlite_objects` and `server.state.redis_objects`. An object is a
compressed document with its items; bytes, such as a file's, are stored separately. Objects count against the owner's
quota of uncompressed bytes. Only responses are evicted, the least recently used first. The use of a response counts as
a use of all responses before it, so eviction never breaks a chain.
"""

import contextlib
import secrets
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

from server.errors import InvalidRequest, NotFound, Unavailable, short

Json = dict[str, Any]
Kind = Literal["response", "conversation", "file", "batch"]
UNFINISHED = {"response": ("queued", "in_progress"), "batch": ("in_progress", "finalizing", "cancelling")}
"""The statuses in which a server works on an object, by kind."""
MAX_CONVERSATION_VALUES = 1_000_000
"""Limit of the JSON values of a conversation with its items, because `unpack` holds the GIL. Counted as in bodies."""
_LENGTH_BYTES = 8


class QuotaExceeded(InvalidRequest):
    """The object does not fit into its owner's quota."""

    @classmethod
    def of(cls, quota_bytes: int) -> "QuotaExceeded":
        return cls(
            f"the quota of {quota_bytes >> 20} MiB for stored objects is used up; delete files, conversations or "
            "batches, or raise server.state_quota"
        )


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The position and size of a page of a list."""

    after: str | None = None  # the id of the entry before the page
    limit: int = 20
    newest_first: bool = True
    label: str | None = None  # of the entries, None = any


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, and whether more follow."""

    data: list[Json]
    has_more: bool


@dataclass(frozen=True, slots=True)
class Document:
    """An object with its items."""

    kind: Kind
    body: Json
    items: list[tuple[bool, Json]] = field(default_factory=list)  # (whether it is output, item)
    parent: str | None = None
    label: str | None = None
    expires_at: float | None = None
    hidden: bool = False  # deleted, but continued by other responses

    @property
    def is_unfinished(self) -> bool:
        return self.body.get("status") in UNFINISHED.get(self.kind, ())


Change = Callable[[Document | None], Document | None]


def pack(document: Document, *, within_quota: bool = False) -> bytes:
    """Return the number of a document's JSON bytes, followed by these, compressed. If `within_quota`, raise
    `QuotaExceeded` for a conversation above its limit.
    """
    encoded = orjson.dumps(document)
    is_limited = within_quota and document.kind == "conversation"
    if is_limited and sum(map(encoded.count, (b",", b"[", b"{"))) > MAX_CONVERSATION_VALUES:
        raise QuotaExceeded(
            f"a conversation may hold at most {MAX_CONVERSATION_VALUES} JSON values with all its items; delete items, "
            "or create another conversation"
        )
    return len(encoded).to_bytes(_LENGTH_BYTES, "big") + zlib.compress(encoded, 1)


def unpack(packed: bytes) -> Document:
    """Return the document that was packed by `pack`."""
    return Document(**orjson.loads(zlib.decompress(packed[_LENGTH_BYTES:])))


def n_bytes_of(packed: bytes | None) -> int:
    """Return the number of a document's JSON bytes; 0 for None."""
    return int.from_bytes((packed or b"")[:_LENGTH_BYTES], "big")


class Objects(ABC):
    """The objects of all owners. ``quota_bytes`` is the quota of each. All methods raise `Unavailable` if the store
    fails. A store implements the abstract methods. `load` also returns hidden documents.
    """

    def __init__(self, quota_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self.quota_bytes, self.clock = quota_bytes, clock

    @abstractmethod
    async def load(self, owner: str, object_id: str) -> Document | None:
        """Return a document; None if it does not exist."""

    async def ancestry(self, owner: str, object_id: str) -> dict[str, Document]:
        """Return a document and all its parents by id, the newest first; empty if there is no such document."""
        found: dict[str, Document] = {}
        following: str | None = object_id
        while following is not None and (document := await self.load(owner, following)) is not None:
            found[following], following = document, document.parent
        return found

    @abstractmethod
    async def change(
        self,
        owner: str,
        changes: Mapping[str, Change],
        data: bytes | None = None,
        *,
        parent: str | None = None,
        within_quota: bool = True,
    ) -> Document | None:
        """Apply `changes` to documents by id, in one transaction. Unless `data` is None, replace the data of the first
        one. Return the new first document.

        A change is called with None for a missing or hidden document, and returns None to change nothing. Raises
        `NotFound` if the document `parent` is missing, and, if `within_quota`, `QuotaExceeded`. Then nothing changes.
        """

    @abstractmethod
    async def drop(self, owner: str, object_id: str) -> None:
        """Delete an object, or hide it while others continue it. Delete hidden parents that no response continues."""

    @abstractmethod
    async def touch(self, owner: str, object_ids: Iterable[str]) -> None:
        """Set the time of last use of responses to now."""

    @abstractmethod
    async def data(self, owner: str, object_id: str) -> bytes | None:
        """Return the bytes that were stored with an object; None if there are none."""

    @abstractmethod
    async def find(self, owner: str, kind: Kind, query: PageQuery) -> Page:
        """Return the bodies of a page of objects. Raises `InvalidRequest` if there is no object ``after``."""

    @abstractmethod
    async def objects_of_items(self, owner: str, item_ids: Sequence[str]) -> set[str]:
        """Return the ids of objects that contain these items."""

    @abstractmethod
    async def take_over(self, kind: Kind, wanted: Callable[[Json], bool] = lambda _: True) -> list[tuple[str, Json]]:
        """Assign unfinished objects of ended servers to this server. Return them, each with its owner.

        While other servers use the store, only `wanted` objects are taken over.
        """

    @abstractmethod
    async def expire(self) -> int:
        """Delete expired objects of all owners. Return their number."""

    async def put(
        self,
        owner: str,
        kind: Kind,
        body: Json,
        *,
        parent: str | None = None,
        inputs: Sequence[Json] = (),
        outputs: Sequence[Json] = (),
        data: bytes | None = None,
        label: str | None = None,
        expires_at: float | None = None,
        append_to: str | None = None,
        within_quota: bool = True,
    ) -> None:
        """Store `body` with its items and `data` under ``body["id"]``, replacing an earlier version.

        `find` can filter by `label`. The same items are appended to the conversation `append_to` in the same
        transaction. Raises `QuotaExceeded`, and `NotFound` if `parent` is missing. A hidden one suffices.
        """
        sides = [*(False for _ in inputs), *(True for _ in outputs)]
        items = list(zip(sides, _with_own_ids([*inputs, *outputs]), strict=True))
        document = Document(kind, body, items, parent, label, expires_at)
        changes: dict[str, Change] = {body["id"]: lambda _: document}
        if append_to is not None:
            changes[append_to] = _appending([*inputs, *outputs])
        await self.change(owner, changes, data, parent=parent, within_quota=within_quota)

    async def update(
        self,
        owner: str,
        kind: Kind,
        object_id: str,
        change: Callable[[Json], Json],
        *,
        expires_at: float | None = None,
    ) -> Json | None:
        """Replace an object's body by ``change(body)``, and keep its items. Return the new body; None if there is no
        such object. `expires_at` replaces the time of expiry, unless it is None.
        """

        def changed(old: Document | None) -> Document | None:
            if old is None or old.kind != kind:
                return None
            return replace(old, body=change(old.body), expires_at=expires_at or old.expires_at)

        found = await self.change(owner, {object_id: changed}, within_quota=False)
        return None if found is None else found.body

    async def get(self, owner: str, kind: Kind, object_id: str) -> Json | None:
        """Return the body; None if the owner has no such object."""
        found = await self.load(owner, object_id)
        return None if found is None or found.hidden or found.kind != kind else found.body

    async def attach(self, owner: str, object_id: str, data: bytes) -> None:
        """Store `data` with an object, if it exists."""
        await self.change(owner, {object_id: lambda old: old}, data)

    async def items(self, owner: str, object_id: str, *, is_output: bool | None = None) -> list[Json]:
        """Return an object's items in order: all, or only a response's output or input."""
        found = await self.load(owner, object_id)
        return [] if found is None else [item for side, item in found.items if is_output in (None, side)]

    async def page_of_items(
        self, owner: str, object_id: str, query: PageQuery, *, is_output: bool | None = None
    ) -> Page:
        """Return a page of an object's items. Raises `InvalidRequest` if there is no item ``after``."""
        items = await self.items(owner, object_id, is_output=is_output)
        if query.newest_first:
            items.reverse()
        start = 0
        if query.after is not None:
            start = next((i for i, item in enumerate(items, 1) if item["id"] == query.after), -1)
            if start < 0:
                raise unknown_cursor(query.after)
        return Page(items[start : start + query.limit], len(items) > start + query.limit)

    async def item(self, owner: str, object_id: str, item_id: str) -> Json | None:
        """Return one item of an object; None if it has no such item."""
        return next((item for item in await self.items(owner, object_id) if item["id"] == item_id), None)

    async def append(self, owner: str, object_id: str, items: Sequence[Json]) -> list[Json] | None:
        """Add `items` to the end of an object. Return them as stored; None if there is no such object. Raises
        `QuotaExceeded`.
        """
        found = await self.change(owner, {object_id: _appending(items)})
        return None if found is None else [item for _, item in found.items[len(found.items) - len(items) :]]

    async def remove_item(self, owner: str, object_id: str, item_id: str) -> bool:
        """Delete one item. Return whether it existed."""

        def without(old: Document | None) -> Document | None:
            rest = [] if old is None else [pair for pair in old.items if pair[1]["id"] != item_id]
            return None if old is None or len(rest) == len(old.items) else replace(old, items=rest)

        return await self.change(owner, {object_id: without}, within_quota=False) is not None

    async def chain(self, owner: str, object_id: str) -> list[Json] | None:
        """Return the items of a response and of all its parents, oldest first. None if the owner has no such response.

        Raises `InvalidRequest` for a response that is being generated, whose output would be missing.
        """
        found = await self.ancestry(owner, object_id)
        if not found or found[object_id].hidden or found[object_id].kind != "response":
            return None
        if found[object_id].is_unfinished:
            reason = f"Previous response with id '{short(object_id)}' is not complete; wait for its end."
            raise InvalidRequest(reason, "previous_response_id")
        with contextlib.suppress(Unavailable):  # logged; a full store can still be read
            await self.touch(owner, found)
        return [item for document in reversed(found.values()) for _, item in document.items]

    async def find_items(self, owner: str, item_ids: Iterable[str]) -> dict[str, Json]:
        """Return by id those of the items that the owner has stored."""
        wanted = {*item_ids}
        objects = await self.objects_of_items(owner, [*wanted]) if wanted else ()
        found = [item for each in objects for item in await self.items(owner, each)]
        return {item["id"]: item for item in found if item["id"] in wanted}

    async def remove(self, owner: str, kind: Kind, object_id: str) -> bool:
        """Delete an object. Return whether it existed.

        A response that others continue is hidden, and keeps its items until the last of these is deleted.
        """
        found = await self.get(owner, kind, object_id)
        if found is not None:
            await self.drop(owner, object_id)
        return found is not None


def _appending(items: Sequence[Json]) -> Change:
    def appended(old: Document | None) -> Document | None:
        if old is None:
            return None
        added = _with_own_ids(items, [item["id"] for _, item in old.items])
        return replace(old, items=[*old.items, *((False, each) for each in added)])

    return appended


def _with_own_ids(items: Iterable[Json], taken: Iterable[str] = ()) -> list[Json]:
    """Return `items`, with new ids for those whose id is `taken` or that of an earlier item: pages need unique ids."""
    seen, found = set(taken), []
    for item in items:
        is_taken, prefix = item["id"] in seen, item["id"].partition("_")[0]
        found.append({**item, "id": f"{prefix}_{secrets.token_hex(16)}"} if is_taken else item)
        seen.add(item["id"])
    return found


def missing_parent(object_id: str) -> NotFound:
    """Return the error for a response that continues one that does not exist any more."""
    return NotFound(f"Previous response with id '{short(object_id)}' not found.")


def unknown_cursor(after: str) -> InvalidRequest:
    """Return the error for a page after an object that the list does not contain."""
    return InvalidRequest(f"after: no object with id '{short(after)}' in this list", "after")
