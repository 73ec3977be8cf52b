"""Frames on a pair of sockets: what both ends of it have in common.

A frame is its length, what it is, and bytes. Messages that are long go as several frames, between which others pass.
"""

import asyncio
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import cast

_HEAD = struct.Struct("<IB")
_PART = struct.Struct("<IB")  # which message it is of, and which of these it is
_MORE, _LAST, _GIVEN_UP = range(3)
PART_BYTES = 1 << 18


class FrameKind(IntEnum):
    """What a frame holds."""

    EVENTS = 0  # of a step
    MESSAGE = 1
    PART = 2  # of a message


def frame(kind: FrameKind, body: bytes) -> bytes:
    """As it is sent."""
    return _HEAD.pack(len(body), kind) + body


class Channel(asyncio.Protocol):
    """One end. Used on the event loop; `received` and `lost` are called there."""

    def __init__(self, received: Callable[[FrameKind, bytes], None], lost: Callable[[], None]) -> None:
        self._received, self._lost = received, lost
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._parts: dict[int, bytearray] = {}
        self._n_long = 0
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def connected(self) -> bool:
        """Whether it ever was."""
        return self._transport is not None

    @property
    def open(self) -> bool:
        """Whether the other end may still get something."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, kind: FrameKind, body: bytes) -> None:
        """Send at once; nothing when the other end is gone."""
        if self._transport is not None and self.open:
            self._transport.write(frame(kind, body))

    async def send_long(self, *pieces: bytes | memoryview) -> None:
        """Send a message of any length, no faster than it is read. Cancelled, the other end forgets what it got."""
        if sum(map(len, pieces)) <= PART_BYTES:
            self.send(FrameKind.MESSAGE, b"".join(pieces))
            return
        self._n_long += 1
        number = self._n_long
        try:
            for piece in pieces:
                for at in range(0, len(piece), PART_BYTES):
                    which = _LAST if piece is pieces[-1] and at + PART_BYTES >= len(piece) else _MORE
                    self.send(FrameKind.PART, _PART.pack(number, which) + memoryview(piece)[at : at + PART_BYTES])
                    await self._writable.wait()
        except asyncio.CancelledError:
            self.send(FrameKind.PART, _PART.pack(number, _GIVEN_UP))
            raise

    def close(self) -> None:
        """Send what is written, and nothing more."""
        if self._transport is not None:
            self._transport.close()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It begins."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._transport.set_write_buffer_limits(4 * PART_BYTES)

    def connection_lost(self, _exc: Exception | None) -> None:
        """The other end is gone."""
        self._writable.set()
        self._lost()

    def pause_writing(self) -> None:
        """The other end reads more slowly than it is written to."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """A piece of a frame, or several frames."""
        if self._buffer:
            self._buffer += data
            data = bytes(self._buffer)
            self._buffer.clear()
        at, end = 0, len(data)
        while end - at >= _HEAD.size:
            size, kind = _HEAD.unpack_from(data, at)
            if end - at - _HEAD.size < size:
                break
            at += _HEAD.size
            self._frame(kind, data[at : at + size])
            at += size
        self._buffer += data[at:]

    def _frame(self, kind: int, body: bytes) -> None:
        if kind != FrameKind.PART:
            self._received(FrameKind(kind), body)
            return
        number, which = _PART.unpack_from(body)
        if which == _GIVEN_UP:
            self._parts.pop(number, None)
            return
        whole = self._parts.setdefault(number, bytearray())
        whole += memoryview(body)[_PART.size :]
        if which == _LAST:
            self._received(FrameKind.MESSAGE, bytes(self._parts.pop(number)))
