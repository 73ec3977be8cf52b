"""The stored responses, conversations and files of several replicas, in Redis. Batches stay in the database.

Each object is one compressed document with its items; the data of a file or of a background response's events have a
key of their own. Sorted sets have the order of lists, the time of last use and the expiry. Every change of an object
is a transaction that starts again if another replica has changed the object meanwhile.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from server.state.objects import Json, Kind, Objects, Page, QuotaExceeded, unknown_cursor
from server.state.redis import PREFIX, Redis

WORKER_TTL_S = 30
"""A replica that has not been heard of for so long has ended."""
_UNFINISHED = ("queued", "in_progress")
_PAGE = 100
MAX_DOCUMENT_BYTES = 64 << 20
"""Most JSON bytes of an object with its items, because each access decompresses and parses all of them."""
_LENGTH_BYTES = 8
"""The length of a stored document's first field, which is the number of its JSON bytes."""


@dataclass(frozen=True, slots=True)
class _Document:
    """An object. ``items`` are pairs of whether it is output, and the item."""

    kind: Kind
    body: Json
    items: list[tuple[bool, Json]] = field(default_factory=list)
    parent: str | None = None
    label: str | None = None
    expires_at: float | None = None
    hidden: bool = False

    @property
    def is_unfinished(self) -> bool:
        return self.kind == "response" and self.body.get("status") in _UNFINISHED


@dataclass(slots=True)
class _Heartbeat:
    """This replica's heartbeat. ``since`` is the time of the first one after the last gap, None in a gap."""

    since: float | None = None


Change = Callable[[_Document | None], _Document | None]


def _pack(document: _Document) -> bytes:
    encoded = orjson.dumps(document)
    return len(encoded).to_bytes(_LENGTH_BYTES, "big") + zlib.compress(encoded, 1)


def _unpack(packed: bytes | None) -> _Document | None:
    return None if packed is None else _Document(**orjson.loads(zlib.decompress(packed[_LENGTH_BYTES:])))


def _n_bytes(packed: bytes | None) -> int:
    """Return the number of a document's JSON bytes. The compressed data may be missing."""
    return int.from_bytes((packed or b"")[:_LENGTH_BYTES], "big")


def _key(*parts: str) -> str:
    return PREFIX + ":".join(parts)


@dataclass(frozen=True, slots=True)
class RedisObjects(Objects):
    """`Objects` in Redis. Every method raises `Unavailable` while it is away. Quotas count uncompressed bytes."""

    redis: Redis = field(kw_only=True)
    _heartbeat: _Heartbeat = field(default_factory=_Heartbeat, init=False, compare=False)

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
        also: Any = None,
        within_quota: bool = True,
    ) -> None:
        if kind == "batch":
            await Objects.put(
                self, owner, kind, body, label=label, expires_at=expires_at, also=also, within_quota=within_quota
            )
            return
        items = [*((False, each) for each in inputs), *((True, each) for each in outputs)]
        document = _Document(kind, body, items, parent, label, expires_at)
        await self._change(owner, body["id"], lambda _: document, data, within_quota=within_quota)
        if append_to is not None:
            await self.append(owner, append_to, [*inputs, *outputs])

    async def update(
        self,
        owner: str,
        kind: Kind,
        object_id: str,
        change: Callable[[Json], Json],
        *,
        expires_at: float | None = None,
    ) -> Json | None:
        if kind == "batch":
            return await Objects.update(self, owner, kind, object_id, change, expires_at=expires_at)

        def changed(old: _Document | None) -> _Document | None:
            if old is None or old.kind != kind:
                return None
            return replace(old, body=change(old.body), expires_at=expires_at or old.expires_at)

        found = await self._change(owner, object_id, changed, within_quota=False)
        return None if found is None else found.body

    async def get(self, owner: str, kind: Kind, object_id: str) -> Json | None:
        if kind == "batch":
            return await Objects.get(self, owner, kind, object_id)
        found = await self._load(owner, object_id)
        return None if found is None or found.hidden or found.kind != kind else found.body

    async def take_over(
        self, kind: Kind, statuses: Sequence[str], wanted: Callable[[Json], bool] | None = None
    ) -> list[tuple[str, Json]]:
        """Take over unfinished objects, and record that this replica runs. Call it every few seconds.

        Nothing is taken over until this replica's heartbeat has had no gap for `WORKER_TTL_S`: after an outage the keys
        of replicas that still run have expired.
        """
        if kind == "batch":
            return await Objects.take_over(self, kind, statuses, wanted)
        mine = self.database.worker
        since, self._heartbeat.since = self._heartbeat.since, None  # a gap, if the next line fails
        previous = await self.redis.do("set", _key("worker", mine), 1, ex=WORKER_TTL_S, get=True)
        self._heartbeat.since = self.clock() if previous is None or since is None else since
        if self.clock() - self._heartbeat.since < WORKER_TTL_S:
            return []
        unfinished: dict[bytes, bytes] = await self.redis.do("hgetall", _key("unfinished"))
        taken = []
        for name, worker in unfinished.items():
            other = worker.decode()
            if other == mine or await self.redis.do("exists", _key("worker", other)):
                continue
            owner, _, object_id = name.decode().partition(":")
            await self.redis.do("hset", _key("unfinished"), name, mine)
            found = await self._load(owner, object_id)
            if found is not None:
                taken.append((owner, found.body))
        return taken

    async def attach(self, owner: str, object_id: str, data: bytes) -> None:
        await self._change(owner, object_id, lambda old: old, data)

    async def data(self, owner: str, object_id: str) -> bytes | None:
        found: bytes | None = await self.redis.do("get", _key("data", owner, object_id))
        return found

    async def find(
        self, owner: str, kind: Kind, *, after: str | None, limit: int, newest_first: bool, label: str | None = None
    ) -> Page:
        if kind == "batch":
            return await Objects.find(
                self, owner, kind, after=after, limit=limit, newest_first=newest_first, label=label
            )
        index, start = _key("index", owner, kind), 0
        if after is not None:
            rank = await self.redis.do("zrevrank" if newest_first else "zrank", index, after)
            if rank is None:
                raise unknown_cursor(after)
            start = rank + 1
        found: list[Json] = []
        while len(found) <= limit:
            ids = await self.redis.do("zrange", index, start, start + _PAGE - 1, desc=newest_first)
            if not ids:
                break
            start += len(ids)
            documents = [await self._load(owner, each.decode()) for each in ids]
            found += [d.body for d in documents if d is not None and not d.hidden and label in (None, d.label)]
        return Page(found[:limit], len(found) > limit)

    async def items(self, owner: str, object_id: str, *, is_output: bool | None = None) -> list[Json]:
        found = await self._load(owner, object_id)
        return [] if found is None else [item for side, item in found.items if is_output in (None, side)]

    async def page_of_items(
        self,
        owner: str,
        object_id: str,
        *,
        after: str | None,
        limit: int,
        newest_first: bool,
        is_output: bool | None = None,
    ) -> Page:
        items = await self.items(owner, object_id, is_output=is_output)
        if newest_first:
            items.reverse()
        start = 0
        if after is not None:
            start = next((i for i, item in enumerate(items, 1) if item["id"] == after), -1)
            if start < 0:
                raise unknown_cursor(after)
        return Page(items[start : start + limit], len(items) > start + limit)

    async def item(self, owner: str, object_id: str, item_id: str) -> Json | None:
        return next((item for item in await self.items(owner, object_id) if item["id"] == item_id), None)

    async def append(self, owner: str, object_id: str, items: Sequence[Json]) -> bool:
        def appended(old: _Document | None) -> _Document | None:
            return None if old is None else replace(old, items=[*old.items, *((False, each) for each in items)])

        return await self._change(owner, object_id, appended) is not None

    async def remove_item(self, owner: str, object_id: str, item_id: str) -> bool:
        def without(old: _Document | None) -> _Document | None:
            if old is None or all(item["id"] != item_id for _, item in old.items):
                return None
            return replace(old, items=[pair for pair in old.items if pair[1]["id"] != item_id])

        removed = await self._change(owner, object_id, without, within_quota=False) is not None
        if removed:
            await self.redis.do("hdel", _key("items", owner), item_id)
        return removed

    async def chain(self, owner: str, object_id: str) -> list[Json] | None:
        found: dict[str, _Document] = {}
        following: str | None = object_id
        while following is not None:
            document = await self._load(owner, following)
            if not found and (document is None or document.hidden or document.kind != "response"):
                return None
            if document is None:
                break
            found[following], following = document, document.parent
        now = self.clock()
        await self.redis.do("zadd", _key("used", owner), dict.fromkeys(found, now))
        return [item for document in reversed(found.values()) for _, item in document.items]

    async def find_items(self, owner: str, item_ids: Iterable[str]) -> dict[str, Json]:
        wanted = [*item_ids]
        if not wanted:
            return {}
        ids = await self.redis.do("hmget", _key("items", owner), wanted)
        found = [item for each in {*ids} - {None} for item in await self.items(owner, each.decode())]
        return {item["id"]: item for item in found if item["id"] in wanted}

    async def remove(self, owner: str, kind: Kind, object_id: str) -> bool:
        if kind == "batch":
            return await Objects.remove(self, owner, kind, object_id)
        found = await self._load(owner, object_id)
        if found is None or found.hidden or found.kind != kind:
            return False
        await self._drop(owner, object_id, found)
        return True

    async def expire(self) -> int:
        n_local = await Objects.expire(self)
        due = await self.redis.do("zrange", _key("expires"), "-inf", self.clock(), byscore=True)
        for name in due:
            owner, _, object_id = name.decode().partition(":")
            found = await self._load(owner, object_id)
            if found is None:
                await self.redis.do("zrem", _key("expires"), name)
            else:
                await self._drop(owner, object_id, found)
        return n_local + len(due)

    async def _load(self, owner: str, object_id: str) -> _Document | None:
        packed = await self.redis.do("get", _key("object", owner, object_id))
        return None if packed is None else await asyncio.to_thread(_unpack, packed)

    async def _change(
        self, owner: str, object_id: str, change: Change, data: bytes | None = None, *, within_quota: bool = True
    ) -> _Document | None:
        """Replace a document by what `change` makes of it, and its data unless `data` is None. None changes nothing."""
        key, data_key, name = _key("object", owner, object_id), _key("data", owner, object_id), f"{owner}:{object_id}"

        async def work(pipe: Any) -> _Document | None:
            packed = await pipe.get(key)
            old = await asyncio.to_thread(_unpack, packed)
            new = change(None if old is None or old.hidden else old)
            if new is None:
                return None
            encoded = await asyncio.to_thread(_pack, new)
            grown = _n_bytes(encoded) - _n_bytes(packed)
            if within_quota and grown > 0 and _n_bytes(encoded) > MAX_DOCUMENT_BYTES:
                raise QuotaExceeded(f"an object may have at most {MAX_DOCUMENT_BYTES >> 20} MiB with all its items")
            if data is not None:
                grown += len(data) - await pipe.strlen(data_key)
            if within_quota and grown > 0:
                await self._make_room(owner, grown, keep=object_id)
            pipe.multi()
            pipe.set(key, encoded)
            pipe.incrby(_key("bytes", owner), grown)
            pipe.zadd(_key("index", owner, new.kind), {object_id: self.clock()}, nx=True)
            if data is not None:
                pipe.set(data_key, data)
            if new.kind == "response":
                pipe.zadd(_key("used", owner), {object_id: self.clock()})
            if new.expires_at is not None:
                pipe.zadd(_key("expires"), {name: new.expires_at})
            if new.parent is not None:
                pipe.sadd(_key("children", owner, new.parent), object_id)
            if new.items:
                pipe.hset(_key("items", owner), mapping={item["id"]: object_id for _, item in new.items})
            if not new.is_unfinished:
                pipe.hdel(_key("unfinished"), name)
            elif old is None:
                pipe.hset(_key("unfinished"), name, self.database.worker)
            return new

        found: _Document | None = await self.redis.do("transaction", work, key, value_from_callable=True)
        return found

    async def _drop(self, owner: str, object_id: str, document: _Document) -> None:
        """Delete an object, then its parents that are hidden and that nothing else continues.

        An object that others continue is hidden instead.
        """
        while True:
            if await self.redis.do("scard", _key("children", owner, object_id)):
                await self._change(
                    owner, object_id, lambda old: None if old is None else replace(old, hidden=True), within_quota=False
                )
                return
            await self._delete(owner, object_id, document)
            parent = None if document.parent is None else await self._load(owner, document.parent)
            if document.parent is None or parent is None or not parent.hidden:
                return
            object_id, document = document.parent, parent

    async def _delete(self, owner: str, object_id: str, document: _Document) -> None:
        keys = _key("object", owner, object_id), _key("data", owner, object_id)

        async def work(pipe: Any) -> None:
            n_bytes = _n_bytes(await pipe.getrange(keys[0], 0, _LENGTH_BYTES - 1)) + await pipe.strlen(keys[1])
            pipe.multi()
            pipe.delete(*keys)
            pipe.decrby(_key("bytes", owner), n_bytes)
            pipe.zrem(_key("index", owner, document.kind), object_id)
            pipe.zrem(_key("used", owner), object_id)
            pipe.zrem(_key("expires"), f"{owner}:{object_id}")
            pipe.hdel(_key("unfinished"), f"{owner}:{object_id}")
            if document.items:
                pipe.hdel(_key("items", owner), *(item["id"] for _, item in document.items))
            if document.parent is not None:
                pipe.srem(_key("children", owner, document.parent), object_id)

        await self.redis.do("transaction", work, *keys)

    async def _make_room(self, owner: str, n_bytes: int, *, keep: str) -> None:
        """Evict the least recently used responses until `n_bytes` more are within the quota. Raises `QuotaExceeded`."""
        if n_bytes > self.quota_bytes:
            raise QuotaExceeded.of(self.quota_bytes)
        while int(await self.redis.do("get", _key("bytes", owner)) or 0) + n_bytes > self.quota_bytes:
            for each in await self.redis.do("zrange", _key("used", owner), 0, -1):
                object_id = each.decode()
                found = None if object_id == keep else await self._load(owner, object_id)
                if found is None or found.is_unfinished:
                    continue
                if not await self.redis.do("scard", _key("children", owner, object_id)):
                    await self._drop(owner, object_id, found)
                    break
            else:
                raise QuotaExceeded.of(self.quota_bytes)
