"""HTTP/1.1 that costs next to nothing: one timestamp per arrival, parsing only after the end."""

import asyncio
import re
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from server.bench.errors import BadReply, Unreachable
from server.bench.target import Target

CONNECT_S = 10.0
_READ_BYTES = 1 << 16
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding: *chunked")
_CLOSES = re.compile(rb"(?i)\r\nconnection: *close")
_END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Arrival:
    """What one read gave, and when: seconds of `time.perf_counter`."""

    at: float
    data: bytes


@dataclass(frozen=True, slots=True)
class WholeReply:
    """One reply that was read to its end."""

    status: int
    body: bytes
    sent: float
    done: float


class Connection:
    """One connection. `exchange` keeps it and opens it again when the server closed it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    async def send(self, method: str, path: str, body: bytes, *, keep: bool) -> float:
        """Open if need be and send; when. Raises `Unreachable`."""
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await _open(self._target)
        sent = time.perf_counter()
        self._writer.write(self._target.head(method, path, len(body), keep=keep) + body)
        return sent

    async def read(self) -> Arrival:
        """What comes next; no bytes when the server hung up."""
        assert self._reader is not None
        try:
            data = await self._reader.read(_READ_BYTES)
        except ConnectionError:
            data = b""
        return Arrival(time.perf_counter(), data)

    async def exchange(self, method: str, path: str, body: bytes) -> WholeReply:
        """One request and its whole reply over the kept connection. Raises `Unreachable` and `BadReply`."""
        sent = await self.send(method, path, body, keep=True)
        assert self._reader is not None
        try:
            head = await self._reader.readuntil(_END_OF_HEAD)
            payload = await self._payload(head)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self.close()
            raise BadReply(f"{self._target.url}{path}: the server hung up in the middle of a reply") from error
        answer = WholeReply(status_of(head), payload, sent, time.perf_counter())
        if _CLOSES.search(head):
            self.close()
        return answer

    async def _payload(self, head: bytes) -> bytes:
        assert self._reader is not None
        if found := _LENGTH.search(head):
            return await self._reader.readexactly(int(found[1]))
        if not _CHUNKED.search(head):
            payload = await self._reader.read()
            self.close()
            return payload
        pieces = []
        while n_bytes := int((await self._reader.readline()).split(b";")[0] or b"0", 16):
            pieces.append(await self._reader.readexactly(n_bytes))
            await self._reader.readline()
        await self._reader.readline()
        return b"".join(pieces)

    def close(self) -> None:
        """Hang up; a server should free what it computes for us."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


async def _open(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(CONNECT_S):
            return await asyncio.open_connection(target.host, target.port, ssl=target.tls)
    except OSError as error:  # refused, no such host, a wrong certificate, and the timeout
        why = f"no answer within {CONNECT_S:.0f} s" if isinstance(error, TimeoutError) else error
        raise Unreachable(f"{target.url} can't be reached: {why}") from error


def status_of(head: bytes) -> int:
    """Parse the status of a reply's first line. Raises `BadReply`."""
    found = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    if found is None:
        raise BadReply(f"not an HTTP reply: {head[:200].decode(errors='replace')!r}")
    return int(found[1])


def split_head(raw: bytes) -> tuple[bytes, int]:
    """The head with its empty line, and where the body begins. Raises `BadReply`."""
    end = raw.find(_END_OF_HEAD)
    if end < 0:
        raise BadReply(f"the server hung up before a reply: {raw[:200].decode(errors='replace')!r}")
    return raw[: end + len(_END_OF_HEAD)], end + len(_END_OF_HEAD)


def is_chunked(head: bytes) -> bool:
    """Whether the body comes in HTTP chunks."""
    return _CHUNKED.search(head) is not None
