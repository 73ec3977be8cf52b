"""The stored responses, conversations and files of several replicas, in Redis.

Sorted sets contain the order of lists, times of last use and times of expiry. Each change of an object is a
transaction, which is repeated if another replica has changed the object meanwhile.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha1
from typing import Any

from server.state.objects import (
    Change,
    Document,
    Json,
    Kind,
    Objects,
    Page,
    PageQuery,
    QuotaExceeded,
    missing_parent,
    n_bytes_of,
    pack,
    unknown_cursor,
    unpack,
)
from server.state.redis import PREFIX, Redis

WORKER_TTL_S = 30
"""A replica without a heartbeat for this time counts as ended."""
_PAGE = 100
MAX_DOCUMENT_BYTES = 64 << 20
"""Limit of the JSON bytes of an object with its items, because Redis limits values."""
_DROP = """
local packed = redis.call('GET', KEYS[1])
if not packed or redis.sha1hex(packed) ~= ARGV[1] or (redis.call('SCARD', KEYS[3]) > 0) ~= (ARGV[2] ~= '') then
    return 0
end
local n_freed = ARGV[3] + redis.call('STRLEN', KEYS[2])
redis.call('DEL', KEYS[1], KEYS[2])
if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[2]) else redis.call('ZREM', KEYS[7], ARGV[5]) end
redis.call('DECRBY', KEYS[4], n_freed)
redis.call('ZREM', KEYS[5], ARGV[4])
redis.call('HDEL', KEYS[6], ARGV[4])
redis.call('ZREM', KEYS[8], ARGV[5])
for i = 9, #KEYS do redis.call('SREM', KEYS[i], ARGV[5]) end
return 1
"""
"""Delete an object, or replace it by a hidden one (ARGV[2]), if it has not changed. A hidden one stays in the order of
use (KEYS[7]), so that it is evicted if its later deletion fails. A Redis without free memory refuses transactions, and
commands such as DECRBY outside of a script that has deleted something.
"""


def _key(*parts: str) -> str:
    return PREFIX + ":".join(parts)


def _read(packed: bytes) -> tuple[Document, str]:
    """Return a document and its digest, by which `_DROP` detects changes. Slow: it may have `MAX_DOCUMENT_BYTES`."""
    return unpack(packed), sha1(packed, usedforsecurity=False).hexdigest()


class RedisObjects(Objects):
    """`Objects` in Redis. ``worker`` identifies this replica."""

    def __init__(self, redis: Redis, quota_bytes: int, clock: Callable[[], float] = time.time) -> None:
        super().__init__(quota_bytes, clock)
        self.redis, self.worker = redis, secrets.token_hex(8)
        self._since: float | None = None  # time of the first heartbeat after the last gap; None in a gap

    async def load(self, owner: str, object_id: str) -> Document | None:
        packed = await self.redis.do("get", _key("object", owner, object_id))
        return None if packed is None else await asyncio.to_thread(unpack, packed)

    async def change(
        self,
        owner: str,
        changes: Mapping[str, Change],
        data: bytes | None = None,
        *,
        parent: str | None = None,
        within_quota: bool = True,
    ) -> Document | None:
        first = next(iter(changes))
        keys = [_key("object", owner, each) for each in (*changes, parent) if each is not None]

        async def transaction(pipe: Any) -> Document | None:
            if parent is not None and not await pipe.exists(_key("object", owner, parent)):
                raise missing_parent(parent)
            planned: list[tuple[str, Document | None, Document, bytes, int]] = []
            for object_id, change in changes.items():
                packed = await pipe.get(_key("object", owner, object_id))
                old = None if packed is None else await asyncio.to_thread(unpack, packed)
                new = change(None if old is None or old.hidden else old)
                if new is None:
                    continue
                encoded = await asyncio.to_thread(pack, new, within_quota=within_quota)
                grown = n_bytes_of(encoded) - n_bytes_of(packed)
                if within_quota and grown > 0 and n_bytes_of(encoded) > MAX_DOCUMENT_BYTES:
                    raise QuotaExceeded(f"an object may have at most {MAX_DOCUMENT_BYTES >> 20} MiB with all its items")
                if data is not None and object_id == first:
                    grown += len(data) - await pipe.strlen(_key("data", owner, object_id))
                planned.append((object_id, old, new, encoded, grown))
            total_grown = sum(grown for *_, grown in planned)
            if within_quota and total_grown > 0:
                await self._evict(owner, total_grown, keep=first)
            pipe.multi()
            for object_id, old, new, encoded, grown in planned:
                self._write(pipe, owner, object_id, old, new)
                pipe.set(_key("object", owner, object_id), encoded)
                pipe.incrby(_key("bytes", owner), grown)
                if data is not None and object_id == first:
                    pipe.set(_key("data", owner, object_id), data)
            return next((new for object_id, _, new, *_ in planned if object_id == first), None)

        found: Document | None = await self.redis.do("transaction", transaction, *keys, value_from_callable=True)
        return found

    def _write(self, pipe: Any, owner: str, object_id: str, old: Document | None, new: Document) -> None:
        """Queue the commands that update the sets and hashes of a changed document."""
        name = f"{owner}:{object_id}"
        before, now = ({item["id"] for _, item in each.items} if each else set() for each in (old, new))
        pipe.zadd(_key("index", owner, new.kind), {object_id: self.clock()}, nx=True)
        if new.kind == "response":
            pipe.zadd(_key("used", owner), {object_id: self.clock()})
        if new.expires_at is not None:
            pipe.zadd(_key("expires"), {name: new.expires_at})
        if new.parent is not None:
            pipe.sadd(_key("children", owner, new.parent), object_id)
        for item_id in now - before:
            pipe.sadd(_key("item", owner, item_id), object_id)
        for item_id in before - now:
            pipe.srem(_key("item", owner, item_id), object_id)
        if not new.is_unfinished:
            pipe.hdel(_key("unfinished"), name)
        elif old is None:
            pipe.hset(_key("unfinished"), name, self.worker)

    async def drop(self, owner: str, object_id: str) -> None:
        following = await self._drop(owner, object_id)
        while following is not None:
            following = await self._drop(owner, following, only_hidden=True)

    async def _drop(self, owner: str, object_id: str, *, only_hidden: bool = False) -> str | None:
        """Delete an object, or hide it while others continue it. Return its parent if it was deleted."""
        name, is_done = f"{owner}:{object_id}", False
        while not is_done:
            packed = await self.redis.do("get", _key("object", owner, object_id))
            if packed is None:
                return None
            old, digest = await asyncio.to_thread(_read, packed)
            if only_hidden and not old.hidden:
                return None
            hidden, parent, sets = b"", old.parent, [_key("item", owner, item["id"]) for _, item in old.items]
            if await self.redis.do("scard", _key("children", owner, object_id)):
                hidden = await asyncio.to_thread(pack, replace(old, hidden=True, expires_at=None))
                parent, sets = None, []
            elif parent is not None:
                sets.append(_key("children", owner, parent))
            keys = [_key(kind, owner, object_id) for kind in ("object", "data", "children")]
            keys += _key("bytes", owner), _key("expires"), _key("unfinished"), _key("used", owner)
            keys += _key("index", owner, old.kind), *sets
            n_freed = n_bytes_of(packed) - n_bytes_of(hidden)
            is_done = await self.redis.do("eval", _DROP, len(keys), *keys, digest, hidden, n_freed, name, object_id)
        return parent

    async def touch(self, owner: str, object_ids: Iterable[str]) -> None:
        await self.redis.do("zadd", _key("used", owner), dict.fromkeys(object_ids, self.clock()))

    async def data(self, owner: str, object_id: str) -> bytes | None:
        found: bytes | None = await self.redis.do("get", _key("data", owner, object_id))
        return found

    async def find(self, owner: str, kind: Kind, query: PageQuery) -> Page:
        index, start = _key("index", owner, kind), 0
        if query.after is not None:
            rank = await self.redis.do("zrevrank" if query.newest_first else "zrank", index, query.after)
            if rank is None:
                raise unknown_cursor(query.after)
            start = rank + 1
        found: list[Json] = []
        while len(found) <= query.limit:
            ids = await self.redis.do("zrange", index, start, start + _PAGE - 1, desc=query.newest_first)
            if not ids:
                break
            start += len(ids)
            documents = [await self.load(owner, each.decode()) for each in ids]
            found += [d.body for d in documents if d is not None and not d.hidden and query.label in (None, d.label)]
        return Page(found[: query.limit], len(found) > query.limit)

    async def objects_of_items(self, owner: str, item_ids: Sequence[str]) -> set[str]:
        found = set[str]()
        for start in range(0, len(item_ids), _PAGE):

            async def look_up(client: Any, page: Sequence[str] = item_ids[start : start + _PAGE]) -> list[bytes | None]:
                async with client.pipeline(transaction=False) as pipe:
                    for each in page:
                        pipe.srandmember(_key("item", owner, each))
                    return list(await pipe.execute())

            found |= {each.decode() for each in await self.redis.call(look_up) if each is not None}
        return found

    async def take_over(self, kind: Kind, wanted: Callable[[Json], bool] = lambda _: True) -> list[tuple[str, Json]]:
        """Send a heartbeat of this replica, and take over unfinished objects. Call it every few seconds.

        No object is taken over until the heartbeats of this replica had no gap for `WORKER_TTL_S`: after an outage, the
        keys of running replicas have expired.
        """
        since, self._since = self._since, None  # remains None if the heartbeat fails
        previous = await self.redis.do("set", _key("worker", self.worker), 1, ex=WORKER_TTL_S, get=True)
        self._since = self.clock() if previous is None or since is None else since
        if self.clock() - self._since < WORKER_TTL_S:
            return []
        unfinished: dict[bytes, bytes] = await self.redis.do("hgetall", _key("unfinished"))
        taken = []
        for name, worker in unfinished.items():
            other = worker.decode()
            if other == self.worker or await self.redis.do("exists", _key("worker", other)):
                continue
            owner, _, object_id = name.decode().partition(":")
            await self.redis.do("hset", _key("unfinished"), name, self.worker)
            found = await self.load(owner, object_id)
            if found is not None and found.kind == kind and wanted(found.body):
                taken.append((owner, found.body))
        return taken

    async def expire(self) -> int:
        due = await self.redis.do("zrange", _key("expires"), "-inf", self.clock(), byscore=True)
        for name in due:
            owner, _, object_id = name.decode().partition(":")
            await self.drop(owner, object_id)
            await self.redis.do("zrem", _key("expires"), name)  # last, so that a failed deletion is repeated
        return len(due)

    async def _evict(self, owner: str, n_bytes: int, *, keep: str) -> None:
        """Evict the least recently used responses until `n_bytes` more fit the quota. Raises `QuotaExceeded`."""
        if n_bytes > self.quota_bytes:
            raise QuotaExceeded.of(self.quota_bytes)
        while int(await self.redis.do("get", _key("bytes", owner)) or 0) + n_bytes > self.quota_bytes:
            for each in await self.redis.do("zrange", _key("used", owner), 0, -1):
                object_id = each.decode()
                found = None if object_id == keep else await self.load(owner, object_id)
                if found is None or found.is_unfinished:
                    continue
                if not await self.redis.do("scard", _key("children", owner, object_id)):
                    await self.drop(owner, object_id)
                    break
            else:
                raise QuotaExceeded.of(self.quota_bytes)
