"""Resumable streams that every replica can read and stop, through Redis.

The replica that generates a stream copies it into a Redis stream. The id of an entry is the offset of its last byte,
so a reader continues at any byte. Each conversation names the Redis stream that it has now. To stop a generation, a
replica deletes the Redis stream; the copying replica notices that with its next write.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from server.errors import Unavailable
from server.state.redis import PREFIX, Redis
from server.transport.resumable import KEPT_S, MAX_STREAM_BYTES, KeptStream, KeptStreams
from server.transport.sse import SendTimeoutError

_RUNNING_TTL_S = 3600
_BLOCK_MS = 1000  # shorter than the socket's timeout
_DATA, _DONE = b"data", b"done"
_FIRST = "0-1"
_FORGET = """
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
    redis.call('HDEL', KEYS[1], ARGV[1])
    redis.call('DEL', KEYS[2])
end
"""
"""Deletes a stream and its name in one step, because another replica can name a newer stream at any time."""


@dataclass(frozen=True, slots=True)
class RemoteStream:
    """A stream of another replica, as it was when it was looked up; `read` follows it. Times are Unix seconds."""

    redis: Redis
    key: str
    conversation: str
    started_at: int
    completed_at: int
    first: int
    total_bytes: int

    @property
    def done(self) -> bool:
        return self.completed_at > 0

    @property
    def begun(self) -> bool:
        return self.done or self.total_bytes > 0

    def is_loading(self) -> bool:
        """Return False: a reader waits for the data."""
        return False

    def holds(self, offset: int) -> bool:
        """Return whether the data after `offset` is still stored."""
        return offset >= self.first

    async def begin(self) -> None:
        """Return at once: `read` waits for the data."""

    async def read(self, offset: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `offset` until it is complete or deleted. Raises `SendTimeoutError` as `KeptStream`."""
        at = f"{offset}-0"
        while True:
            found = await self.redis.do("xread", {self.key: at}, block=_BLOCK_MS)
            if not found and not await self.redis.do("exists", self.key):
                return
            for entry_id, entry in found[0][1] if found else ():
                at = entry_id.decode()
                if _DONE in entry:
                    return
                end, data = int(at.partition("-")[0]), entry[_DATA]
                if end - len(data) > offset:
                    raise SendTimeoutError
                yield data[len(data) - (end - offset) :]
                offset = end


class SharedStreams(KeptStreams):
    """The streams of all replicas. Those of this one are served from memory, also while Redis cannot be used."""

    def __init__(self, redis: Redis) -> None:
        super().__init__()
        self._redis = redis
        self._copying: set[asyncio.Task[None]] = set()

    def open(self, owner: str, conversation: str) -> KeptStream:
        """Open a stream and copy it into Redis; the conversation's previous one, of any replica, is stopped."""
        stream = super().open(owner, conversation)
        task = asyncio.create_task(self._copy(owner, stream), name="copy of a resumable stream")
        self._copying.add(task)
        task.add_done_callback(self._copying.discard)
        return stream

    async def find(self, owner: str, conversation: str) -> KeptStream | RemoteStream | None:
        found = self._streams.get((owner, conversation))
        if found is not None:
            return found
        try:
            named = await self._redis.do("hget", _names(owner), conversation)
            return None if named is None else await self._remote(owner, conversation, named.decode())
        except Unavailable:
            return None

    async def of(self, owner: str, conversations: Sequence[str]) -> list[KeptStream | RemoteStream]:
        local = self.local(owner, conversations)
        try:
            names = await self._redis.do("hgetall", _names(owner))
            others = {name.decode(): named.decode() for name, named in names.items()}
            for stream in local:
                others.pop(stream.conversation, None)
            found = [
                await self._remote(owner, name, others[name])
                for wish in conversations
                for name in others
                if name == wish or name.startswith(wish + "::")
            ]
        except Unavailable:
            return [*local]
        return [*local, *(each for each in found if each is not None)]

    async def stop(self, owner: str, conversation: str) -> KeptStream | None:
        stopped = self._stop(owner, conversation)
        with contextlib.suppress(Unavailable):  # logged; a stream of another replica continues
            await self._replace(owner, conversation, None)
        return stopped

    async def _replace(self, owner: str, conversation: str, named: str | None) -> None:
        """Delete the Redis stream of a conversation and name another one."""

        async def work(client: Any) -> None:
            before = await client.hget(_names(owner), conversation)
            if before is not None:
                await client.delete(before.decode().partition(" ")[0])
            if named is None:
                await client.hdel(_names(owner), conversation)
            else:
                await client.hset(_names(owner), conversation, named)
                await client.expire(_names(owner), 24 * 3600)

        await self._redis.call(work)

    async def _forget_copy(self, owner: str, conversation: str, named: str) -> None:
        """Delete a Redis stream and its name, unless the conversation names another one by now."""
        key = named.partition(" ")[0]
        await self._redis.do("eval", _FORGET, 2, _names(owner), key, conversation, named)

    async def _copy(self, owner: str, stream: KeptStream) -> None:
        """Copy a stream into Redis until its end, or stop it when its copy was deleted."""
        key, total = f"{PREFIX}stream:{secrets.token_hex(8)}", 0

        async def add(entry: dict[bytes, bytes | int], entry_id: str, ttl_s: float = _RUNNING_TTL_S) -> bool:
            """Return whether the copy still exists. The first entry creates it."""

            async def write(client: Any) -> bool:
                pipe = client.pipeline(transaction=False)
                least = max(total - MAX_STREAM_BYTES, 0)
                pipe.xadd(key, entry, id=entry_id, nomkstream=entry_id != _FIRST, minid=least)
                pipe.expire(key, int(ttl_s))
                return (await pipe.execute())[0] is not None

            return await self._redis.call(write)

        try:
            await add({_DATA: b""}, _FIRST)  # before its name: a replica forgets names without a stream
            named = f"{key} {stream.started_at}"
            await self._replace(owner, stream.conversation, named)
            with contextlib.suppress(Exception):  # its client gets the error
                await stream.begin()
            if not stream.total_bytes:
                await self._forget_copy(owner, stream.conversation, named)
                return
            async for chunk in stream.read(0):
                total += len(chunk)
                if not await add({_DATA: chunk}, f"{total}-0"):
                    if self._streams.get((owner, stream.conversation)) is stream:
                        self._stop(owner, stream.conversation)
                    return
            await add({_DONE: int(time.time())}, f"{total}-1", KEPT_S)
        except (Unavailable, SendTimeoutError):
            return  # the stream continues here only

    async def _remote(self, owner: str, conversation: str, named: str) -> RemoteStream | None:
        """Return the stream that a conversation names; None if it has expired."""
        key, _, started = named.partition(" ")
        found = await self._redis.do("xrevrange", key, count=1)
        oldest = await self._redis.do("xrange", key, min="0-2", count=1)
        if not found:
            await self._forget_copy(owner, conversation, named)
            return None
        last, entry = found[0]
        total = int(last.partition(b"-")[0])
        first = int(oldest[0][0].partition(b"-")[0]) - len(oldest[0][1].get(_DATA, b"")) if oldest else 0
        done = int(entry.get(_DONE, 0))
        return RemoteStream(self._redis, key, conversation, int(started), done, first, total)


def _names(owner: str) -> str:
    return f"{PREFIX}streams:{owner}"
