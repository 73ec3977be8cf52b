"""The events of responses that are generated in the background, which continue when their client disconnects.

A `KeptStream` has them while the response is generated, so that any number of readers can follow it. Then they are
stored with the response, compressed, and read from there.
"""

import zlib
from collections.abc import AsyncGenerator

import orjson

from server.transport.resumable import KeptStream

_SEPARATOR = b"\n\n"


async def events_after(stream: KeptStream, after: int = -1) -> AsyncGenerator[bytes, None]:
    """Yield the events with a sequence number greater than `after`: those so far, then those that follow."""
    async for chunk in stream.read(0):
        for event in _events(chunk, after):
            yield event


def packed(stream: KeptStream) -> bytes:
    """Return all events, compressed, as `unpacked` reads them. Blocking, for a worker thread."""
    return zlib.compress(stream.content)


def unpacked(data: bytes, after: int = -1) -> list[bytes]:
    """Return the stored events with a sequence number greater than `after`. Blocking, for a worker thread."""
    return _events(zlib.decompress(data), after)


def _events(chunk: bytes, after: int) -> list[bytes]:
    events = [part + _SEPARATOR for part in chunk.split(_SEPARATOR) if part]
    return [each for each in events if orjson.loads(each.partition(b"\ndata: ")[2]).get("sequence_number", -1) > after]
