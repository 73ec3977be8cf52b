"""Frames on a pair of sockets, used by both ends.

A frame is its length, its kind, and bytes. A long message is sent as several frames, between which others pass. Its
first frame has the sizes of its pieces, so that each piece is received in place. No event loop callback copies more
than one frame.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import cast

from server.engine.kv.state import new_bytes

_HEAD = struct.Struct("<IB")
_PART = struct.Struct("<IB")  # which message it is of, and which of these it is
_SIZES, _BYTES, _GIVEN_UP = range(3)
_SIZE = struct.Struct("<Q")
PART_BYTES = 1 << 18


class FrameKind(IntEnum):
    """The contents of a frame."""

    EVENTS = 0  # of a step
    MESSAGE = 1
    PART = 2  # of a message


def frame(kind: FrameKind, body: bytes) -> bytes:
    """As it is sent."""
    return _HEAD.pack(len(body), kind) + body


Received = Callable[[FrameKind, bytes, Sequence[bytes]], None]
"""Takes a message: its kind, its first piece, and the long ones."""


@dataclass(slots=True)
class _Arriving:
    """A long message of which parts are missing."""

    pieces: list[bytes]
    views: list[memoryview]
    at: int = 0
    n_filled: int = field(default=0)  # bytes of the piece at ``at``

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> "_Arriving":
        """Allocate every piece. Raises MemoryError."""
        made = [new_bytes(size) for size in sizes]
        return cls([piece for piece, _ in made], [view for _, view in made])

    def take(self, part: memoryview) -> bool:
        """Add the next bytes, which are of one piece; return whether the message is whole."""
        view, end = self.views[self.at], self.n_filled + len(part)
        view[self.n_filled : end] = part
        self.n_filled = end
        if end == len(view):
            self.at, self.n_filled = self.at + 1, 0
        return self.at == len(self.views)


class Channel(asyncio.Protocol):
    """One end. Used on the event loop; `received` and `lost` are called there."""

    def __init__(self, received: Received, lost: Callable[[], None]) -> None:
        self._received, self._lost = received, lost
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._parts: dict[int, _Arriving] = {}
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
        """Send a message of any length, no faster than it is read. If cancelled, the receiver drops what it got. No
        piece may be empty; the receiver gets each as one object.
        """
        if len(pieces) == 1 and len(pieces[0]) <= PART_BYTES:
            self.send(FrameKind.MESSAGE, bytes(pieces[0]))
            return
        self._n_long += 1
        number = self._n_long
        try:
            sizes = b"".join(_SIZE.pack(len(piece)) for piece in pieces)
            self.send(FrameKind.PART, _PART.pack(number, _SIZES) + sizes)
            for piece in pieces:
                for at in range(0, len(piece), PART_BYTES):
                    part = memoryview(piece)[at : at + PART_BYTES]
                    self.send(FrameKind.PART, _PART.pack(number, _BYTES) + part)
                    await self._writable.wait()
        except asyncio.CancelledError:
            self.send(FrameKind.PART, _PART.pack(number, _GIVEN_UP))
            raise

    def close(self) -> None:
        """Send what is queued, then nothing more."""
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
            self._received(FrameKind(kind), body, ())
            return
        number, which = _PART.unpack_from(body)
        rest = memoryview(body)[_PART.size :]
        if which == _SIZES:
            self._parts[number] = _Arriving.of_sizes([size for (size,) in _SIZE.iter_unpack(rest)])
        elif which == _GIVEN_UP:
            self._parts.pop(number, None)
        elif self._parts[number].take(rest):
            first, *long = self._parts.pop(number).pieces
            self._received(FrameKind.MESSAGE, first, long)
