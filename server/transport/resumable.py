"""Streams that continue without their client and can be read again: llama-server's, by the header ``X-Conversation-Id``
(llama.cpp tools/server/server-stream.cpp; README-dev, "Resumable streaming").

A reply to such a request is written into a `KeptStream`; the client reads it from there, also after reconnecting.
Offsets count sent bytes, pings included. A conversation has one stream: a new one stops the previous one. A stream
belongs to the owner of its API key; no other owner can find it. Used on the event loop.

With Redis every replica can read and stop a stream. The replica that generates it copies it into a Redis stream. The id
of an entry is the offset of its last byte, so a reader can continue at any byte. A hash maps each conversation to its
current Redis stream. To stop a generation, a replica deletes the Redis stream; the generating replica notices that with
its next write.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from sse_starlette.sse import SendTimeoutError

from server.errors import InvalidRequest, Unavailable
from server.state.redis import PREFIX, Redis
from server.transport.sse import EVENTS_TYPE

MAX_ID_CHARS = 1024
KEPT_S = 300.0  # after the end of a stream; llama-server's value, like the next
MAX_STREAM_BYTES = 4 * 1024 * 1024
MAX_STREAMS = 1000
MAX_BYTES = 64 * 1024 * 1024
"""Limits for all ended streams. The oldest are deleted first."""
_RUNNING_TTL_S = 3600
_BLOCK_MS = 1000  # shorter than the socket's timeout
_DATA, _DONE = b"data", b"done"
_FIRST = "0-1"
_NAME = """
local before = redis.call('HGET', KEYS[1], ARGV[1])
if before then redis.call('DEL', string.match(before, '%S+')) end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], 86400)
local some = redis.call('HRANDFIELD', KEYS[1], 8, 'WITHVALUES')
for i = 1, #some, 2 do
    if redis.call('EXISTS', string.match(some[i + 1], '%S+')) == 0 then redis.call('HDEL', KEYS[1], some[i]) end
end
"""
"""Deletes a conversation's stream, if it has one, and sets its new one. Removes some names of expired streams."""
_FORGET = """
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
    redis.call('HDEL', KEYS[1], ARGV[1])
    redis.call('DEL', KEYS[2])
end
"""
"""Deletes a stream and its name in one step, because another replica can set a newer stream at any time."""
STOPPED = "request cancelled by a stop before its reply began"


class KeptStream:
    """The bytes of one reply, or the newest of them above the limit. ``model``: the name in the request."""

    def __init__(
        self,
        conversation: str,
        max_bytes: int = MAX_STREAM_BYTES,
        model: str | None = None,
        media_type: str = EVENTS_TYPE,
    ) -> None:
        self.conversation, self.model, self.media_type = conversation, model, media_type
        self.started_at = int(time.time())  # unix seconds, like the next
        self.completed_at = 0  # 0 while it runs
        self.content = bytearray()
        self.first = 0  # offset of the first byte in `content`
        self._loop = asyncio.get_running_loop()
        self._max_bytes = max_bytes
        self._failure: Exception | None = None  # why nothing was written
        self._changed = asyncio.Event()  # replaced after each change
        self._task: asyncio.Task[None] | None = None
        self._pinging: asyncio.TimerHandle | None = None

    @property
    def total_bytes(self) -> int:
        """The number of bytes so far, which is the offset of the next one."""
        return self.first + len(self.content)

    @property
    def done(self) -> bool:
        return self.completed_at > 0

    @property
    def begun(self) -> bool:
        return self.done or self.total_bytes > 0

    def produce(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        error: Callable[[Exception], bytes],
        ping: bytes = b"",
        ping_s: float = 0.0,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        """Append `chunks` in a task. If they fail, the reply ends with the bytes of `error`; if nothing was written
        yet, `begin` raises. `ping` is sent after each `ping_s` of silence; 0 = never. `ended` is called at the end.
        """
        self._task = asyncio.create_task(self._run(chunks, error))
        self._task.add_done_callback(lambda _: ended())
        if ping_s > 0:
            self._ping(ping, ping_s, -1)

    async def _run(self, chunks: AsyncGenerator[bytes, None], error: Callable[[Exception], bytes]) -> None:
        failure: Exception | None = None
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    self.append(chunk)
        except asyncio.CancelledError:
            failure = InvalidRequest(STOPPED)  # `stop` was called
        except Exception as fault:  # noqa: BLE001 (readers receive it; `error` logs unexpected ones)
            failure = fault
            if self.begun:
                self.append(error(fault))
        finally:
            self.finish(failure)

    def _ping(self, ping: bytes, ping_s: float, n_before: int) -> None:
        """Append `ping` if there are still `n_before` bytes, and check again after `ping_s`."""
        if self.total_bytes == n_before:
            self.append(ping)
        self._pinging = self._loop.call_later(ping_s, self._ping, ping, ping_s, self.total_bytes)

    def append(self, chunk: bytes) -> None:
        """Append data. Above the limit the oldest data is dropped."""
        if self.done:
            return
        self.content += chunk
        excess = len(self.content) - self._max_bytes
        if excess > 0:
            del self.content[:excess]
            self.first += excess
        self._notify()

    def finish(self, failure: Exception | None = None) -> None:
        """End the stream. `begin` raises `failure` if nothing was written."""
        if self._pinging is not None:
            self._pinging.cancel()  # clients choose the interval, and the timer holds the stream and its request
        if not self.done:
            self._failure = failure
            self.completed_at = int(time.time())
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def begin(self) -> None:
        """Wait until there is data or the stream has ended. Raises the error of a stream without data."""
        while not self.begun:
            await self._changed.wait()
        if self._failure is not None and not self.total_bytes:
            raise self._failure

    async def read(self, offset: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `offset`. Raises `SendTimeoutError` for a reader so slow that they were dropped."""
        while True:
            if offset < self.first:
                raise SendTimeoutError
            changed = self._changed
            chunk = bytes(self.content[offset - self.first :])
            if chunk:
                offset += len(chunk)
                yield chunk
            elif self.done:
                return
            else:
                await changed.wait()

    def stop(self) -> None:
        """End the stream for its readers and cancel its producer, for which `stopped` waits."""
        if self._task is not None:
            self._task.cancel()
        self.finish(InvalidRequest(STOPPED))

    async def stopped(self) -> None:
        """Wait until the producer has ended."""
        if self._task is not None:
            await asyncio.wait((self._task,))


class KeptStreams:
    """The streams of all clients by owner and conversation, with `redis` those of all replicas. The streams of this
    replica are served from memory, even while Redis is not available.
    """

    def __init__(self, redis: Redis | None = None) -> None:
        self._redis = redis
        self._streams: dict[tuple[str, str], KeptStream] = {}
        self._ended: dict[tuple[str, str], float] = {}  # expiry of ended streams, the oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._copying: set[asyncio.Task[None]] = set()

    def open(
        self, owner: str, conversation: str, model: str | None = None, media_type: str = EVENTS_TYPE
    ) -> KeptStream:
        """Open a stream, and stop the conversation's previous one on any replica. Raises `InvalidRequest`."""
        if len(conversation) > MAX_ID_CHARS:
            raise InvalidRequest(f"X-Conversation-Id: at most {MAX_ID_CHARS} characters")
        self._stop(owner, conversation)
        stream = self._streams[owner, conversation] = KeptStream(conversation, model=model, media_type=media_type)
        if self._redis is not None:
            task = asyncio.create_task(self._copy(self._redis, owner, stream), name="copy of a resumable stream")
            self._copying.add(task)
            task.add_done_callback(self._copying.discard)
        return stream

    async def find(self, owner: str, conversation: str) -> "KeptStream | RemoteStream | None":
        """Return the conversation's stream on any replica."""
        local = self._streams.get((owner, conversation))
        if local is not None or self._redis is None:
            return local
        return next((s for s in await self.of(owner, [conversation]) if s.conversation == conversation), None)

    async def of(self, owner: str, conversations: Sequence[str]) -> "list[KeptStream | RemoteStream]":
        """Return the streams of these conversations and of their variants ``{id}::{model}`` on all replicas."""
        own = {name: stream for (other, name), stream in self._streams.items() if other == owner}
        found: list[KeptStream | RemoteStream] = [own[name] for name in _matching(own, conversations)]
        if self._redis is not None:
            with suppress(Unavailable):
                names = await self._redis.do("hgetall", _names(owner))
                others = {name.decode(): named.decode() for name, named in names.items() if name.decode() not in own}
                remote = [await _remote(self._redis, owner, n, others[n]) for n in _matching(others, conversations)]
                found += [each for each in remote if each is not None]
        return found

    async def stop(self, owner: str, conversation: str) -> None:
        """Stop and remove a stream on any replica. Returns when its producer on this replica has ended."""
        stream = self._stop(owner, conversation)
        if self._redis is not None:  # first, because the client may open the next stream before the producer ends
            with suppress(Unavailable):  # logged; a stream of another replica continues
                if (named := await self._redis.do("hget", _names(owner), conversation)) is not None:
                    await _forget_copy(self._redis, owner, conversation, named.decode())
        if stream is not None:
            await stream.stopped()

    def _stop(self, owner: str, conversation: str) -> KeptStream | None:
        self._ended.pop((owner, conversation), None)
        stream = self._streams.pop((owner, conversation), None)
        if stream is not None:
            stream.stop()
        return stream

    def ended(self, owner: str, stream: KeptStream) -> None:
        """Keep an ended stream for `KEPT_S` if it has data and is still the conversation's."""
        key = (owner, stream.conversation)
        if self._streams.get(key) is not stream:
            return
        if not stream.total_bytes:
            del self._streams[key]
            return
        self._ended[key] = asyncio.get_running_loop().time() + KEPT_S
        self._drop_old()

    def _drop_old(self) -> None:
        """Delete expired streams, and the oldest ended ones above the limits."""
        loop, n_bytes = asyncio.get_running_loop(), sum(len(self._streams[key].content) for key in self._ended)
        for key, expires_at in list(self._ended.items()):
            if expires_at > loop.time() and len(self._ended) <= MAX_STREAMS and n_bytes <= MAX_BYTES:
                break
            n_bytes -= len(self._streams.pop(key).content)
            del self._ended[key]
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(next(iter(self._ended.values())), self._drop_old) if self._ended else None

    async def _copy(self, redis: Redis, owner: str, stream: KeptStream) -> None:
        """Copy a stream into Redis until its end. Stop it if its copy was deleted."""
        key, total = f"{PREFIX}stream:{secrets.token_hex(8)}", 0

        async def add(entry: dict[bytes, bytes | int], entry_id: str, ttl_s: float = _RUNNING_TTL_S) -> bool:
            """Return whether the copy still exists. The first entry creates it."""

            async def write(client: Any) -> bool:
                pipe = client.pipeline(transaction=False)
                least = max(total - MAX_STREAM_BYTES, 0)
                pipe.xadd(key, entry, id=entry_id, nomkstream=entry_id != _FIRST, minid=least)
                pipe.expire(key, int(ttl_s))
                return (await pipe.execute())[0] is not None

            return await redis.call(write)

        try:
            await add({_DATA: b""}, _FIRST)  # before its name: replicas remove names without a stream
            named = f"{key} {stream.started_at} {stream.media_type}"
            await redis.do("eval", _NAME, 1, _names(owner), stream.conversation, named)
            with suppress(Exception):  # the client receives the error
                await stream.begin()
            if not stream.total_bytes:
                await _forget_copy(redis, owner, stream.conversation, named)
                return
            async for chunk in stream.read(0):
                total += len(chunk)
                if not await add({_DATA: chunk}, f"{total}-0"):
                    if self._streams.get((owner, stream.conversation)) is stream:
                        self._stop(owner, stream.conversation)
                    return
            await add({_DONE: int(time.time())}, f"{total}-1", KEPT_S)
        except (Unavailable, SendTimeoutError):
            return  # the stream continues on this replica only


@dataclass(frozen=True, slots=True)
class RemoteStream:
    """A stream of another replica, with its state at the lookup; `read` follows it. Times are Unix seconds."""

    redis: Redis
    key: str
    conversation: str
    started_at: int
    media_type: str
    completed_at: int
    first: int
    total_bytes: int
    begun: ClassVar = True  # a reader waits for the data
    model: ClassVar = None

    async def begin(self) -> None:
        """Do nothing: `read` waits for the data."""

    async def read(self, offset: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `offset` until the stream has ended or is deleted. Raises like `KeptStream.read`."""
        at = f"{offset}-0"
        while not self.completed_at or offset < self.total_bytes:
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


async def _forget_copy(redis: Redis, owner: str, conversation: str, named: str) -> None:
    """Delete a Redis stream and its name, unless the conversation has another stream now."""
    await redis.do("eval", _FORGET, 2, _names(owner), named.partition(" ")[0], conversation, named)


async def _remote(redis: Redis, owner: str, conversation: str, named: str) -> RemoteStream | None:
    """Return the stream that `named` refers to, None if it has expired."""
    key, started, media_type = (*named.split(" ", 2), EVENTS_TYPE)[:3]
    found = await redis.do("xrevrange", key, count=1)
    oldest = await redis.do("xrange", key, min="0-2", count=1)
    if not found:
        await _forget_copy(redis, owner, conversation, named)
        return None
    last, entry = found[0]
    total = int(last.partition(b"-")[0])
    first = int(oldest[0][0].partition(b"-")[0]) - len(oldest[0][1].get(_DATA, b"")) if oldest else 0
    completed_at = int(entry.get(_DONE, 0))
    return RemoteStream(redis, key, conversation, int(started), media_type, completed_at, first, total)


def _names(owner: str) -> str:
    return f"{PREFIX}streams:{owner}"


def _matching(names: Iterable[str], conversations: Sequence[str]) -> list[str]:
    return [name for id_ in conversations for name in names if name == id_ or name.startswith(id_ + "::")]
