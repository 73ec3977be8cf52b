"""Extend uvicorn's fast protocols.

HTTP: bounds for the size and duration of a request's head and for the number of connections; header names in their
usual case, for clients that look up ``Content-Type`` in a plain dictionary. WebSocket: a server that stops lets running
responses end, and a refused connection is no error of the application.
"""

import asyncio
import re
from functools import lru_cache
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from server.transport.limits import REFUSED
from server.transport.websocket import LEAVING

MAX_HEAD_BYTES = 64 * 1024  # as uvicorn's other protocol (h11) and nginx's order of magnitude
HEAD_S = 60.0
REFUSED_HEAD_S = 5.0  # over a connection too many
UNREAD_S = 60.0  # without a byte read of what is left of a reply
SPARE = 64  # connections too many that are told so; what comes beyond them is closed


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request line, headers or trailers are endless or too slow. For
    ``uvicorn.Config(http=BoundedHttpProtocol)``.

    The parser keeps an unfinished header in memory without a limit or a clock. With `most` connections, a new one
    replaces the longest idle one; if none is idle, its own requests are marked `REFUSED`.
    """

    def __init__(self, *args: Any, most: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most = most
        self._refused = False
        self._idle_since = 0.0
        self._n_overhead = 0  # bytes since the head began, or since the last byte of a body
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection: its first request's head is due."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        if 0 < self._most < len(self.connections) and not self._take_a_place():
            if len(self.connections) > self._most + SPARE:
                transport.close()
                return
            self._refused = True
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop_timer()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        super().connection_lost(exc)

    def _take_a_place(self) -> bool:
        """Close the longest idle connection. Return False if none is idle."""
        others = (c for c in self.connections if isinstance(c, BoundedHttpProtocol) and c is not self and c.is_idle)
        idlest = min(others, key=lambda c: c._idle_since, default=None)
        if idlest is None:
            return False
        if idlest.transport.get_write_buffer_size():
            idlest.transport.close()
        else:
            idlest.transport.abort()  # TLS would wait for a farewell, with the place given away
        return True

    @property
    def is_idle(self) -> bool:
        """Whether none of its requests is in progress."""
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()

    def on_response_complete(self) -> None:
        """Record the end of a request; its reply may still have to be read."""
        self._idle_since = self.loop.time()
        if self._unread_timer is None and (n_left := self.transport.get_write_buffer_size()):
            self._unread_timer = self.loop.call_later(UNREAD_S, self._look_for_reader, n_left)
        super().on_response_complete()

    def _look_for_reader(self, n_before: int) -> None:
        """Drop a connection whose client reads nothing: closing it would wait for him, for ever."""
        n_left, self._unread_timer = self.transport.get_write_buffer_size(), None
        if n_left and n_left >= n_before:
            self.transport.abort()
        elif n_left:
            self._unread_timer = self.loop.call_later(UNREAD_S, self._look_for_reader, n_left)

    def on_message_begin(self) -> None:
        """A request begins; the bytes of this read are counted already when it is the first."""
        super().on_message_begin()
        if self._refused:
            self.scope[REFUSED] = True  # type: ignore[literal-required]
        if not self._in_head:
            self._in_head, self._n_overhead = True, 0
            self._await_head()

    def on_headers_complete(self) -> None:
        """Record the end of the head; `transport.bodies` limits the body."""
        self._in_head, self._n_overhead = False, 0
        self._stop_timer()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # not begun yet: its task, if it has one already, has not run
            self.cycle.transport = _HeadWriter(self.cycle)  # type: ignore[assignment]

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; trailers mean nothing to anybody here."""
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._n_overhead = 0
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        """Parse, unless the head, the trailers or a chunk's extensions have grown too large."""
        if (self._in_head or self.is_idle) and b"h2c" in data:
            data = without_h2c(data)
        self._n_overhead += len(data)
        super().data_received(data)
        if self._n_overhead > MAX_HEAD_BYTES and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.send_400_response("Request header fields too large.")
            else:  # an earlier, pipelined request's reply is under way
                self.transport.close()

    def _await_head(self) -> None:
        self._stop_timer()
        limit_s = REFUSED_HEAD_S if self._refused else HEAD_S
        self._head_timer = self.loop.call_later(limit_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _HeadWriter:
    """A stand-in for one exchange's transport until the reply's head is written."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write the head, or the ``100 Continue`` before it."""
        if self._cycle.response_started:
            self._cycle.transport = self._transport
            data = usual_case(data)
        self._transport.write(data)


_H2C = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n[^ \t])", re.IGNORECASE)


def without_h2c(data: bytes) -> bytes:
    """Remove an offer of HTTP/2 (``Upgrade: h2c``) from the head that `data` starts with.

    Java's HttpClient and ``curl --http2`` make this offer, which a server may ignore (RFC 9110, 7.8). httptools skips
    the body of every request with an upgrade, so such a POST would seem empty.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    return _H2C.sub(b"", head + end) + body


_USUAL = {b"etag": b"ETag", b"www-authenticate": b"WWW-Authenticate"}


def usual_case(head: bytes) -> bytes:
    """A reply's head with the names of its fields as people write them: ``Content-Type``."""
    status, *fields = head.split(b"\r\n")
    parts = (field.partition(b":") for field in fields)
    return b"\r\n".join([status, *(_usual_name(name) + colon + value for name, colon, value in parts)])


@lru_cache(maxsize=256)
def _usual_name(name: bytes) -> bytes:
    return _USUAL.get(name) or b"-".join(part.capitalize() for part in name.split(b"-"))


_NO_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class PatientSocketProtocol(WebSocketsSansIOProtocol):
    """Lets the responses of WebSockets end when the server stops. For ``uvicorn.Config(ws=PatientSocketProtocol)``.

    uvicorn closes WebSockets at once when it stops, although it waits for HTTP requests. This protocol sends `LEAVING`
    to the application (`event_socket`), which closes the connection after its running response.
    """

    def data_received(self, data: bytes) -> None:
        """Read the client's bytes. Answer 400 to a request that is no handshake: a POST, or one with a large header.

        uvicorn neither answers nor closes such a connection, which would count as one of `max_connections` for ever.
        """
        super().data_received(data)
        if self.conn.handshake_exc is not None and not (self.handshake_initiated or self.transport.is_closing()):
            self.transport.write(_NO_HANDSHAKE)
            self.handshake_complete = self.close_sent = True
            self.transport.close()

    async def send(self, message: Any) -> None:
        """Send a message. After a refusal over HTTP the handshake is complete.

        uvicorn 0.54 forgets that, and logs an error of the application for each refused connection.
        """
        await super().send(message)
        self.handshake_complete = self.handshake_complete or self.close_sent

    def shutdown(self) -> None:
        """Announce the stop to the application, or close a connection without a WebSocket."""
        if self.handshake_complete and not self.close_sent:
            self.queue.put_nowait(cast(Any, {"type": LEAVING}))
        else:
            super().shutdown()
