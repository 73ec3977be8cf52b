"""Signal handlers and the HTTP protocol for the uvicorn that runs the application."""

import asyncio
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

from uvicorn import Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.transport.early_signals import reloads_at_hangup, take_hangup

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
MAX_HEAD_BYTES = 64 * 1024  # like uvicorn's h11 protocol
MAX_WAITING = 16
"""Requests of a connection that may wait for the reply to an earlier one."""
MAX_WAITING_BYTES = 1 << 20
"""Bytes of such a request's body."""
_H2C = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n[^ \t])", re.IGNORECASE)


class StopSignals:
    """The first SIGTERM or SIGINT starts the drain, the second one ends the process. Does nothing without uvicorn.

    uvicorn's own handler waits for open connections without a time limit and ignores a second SIGTERM. It also closes
    WebSockets immediately, so it is called after the open `sockets` have ended; the drain limits that time.

    SIGTERM calls `leave` first and `begin` `delay_s` seconds later, so that load balancers notice. Ctrl-C calls `begin`
    immediately. uvicorn removes the handlers at exit.
    """

    def __init__(
        self,
        begin: Callable[[], object],
        end: Callable[[int], object] = os._exit,
        *,
        leave: Callable[[], object] = lambda: None,
        delay_s: float = 0.0,
        sockets: Collection[asyncio.Task[None]] = (),
    ) -> None:
        self._begin = begin
        self._leave = leave
        self._delay_s = delay_s
        self._end = end
        self._sockets = sockets
        self._n = 0
        self._next: dict[int, Callable[[int, FrameType | None], object]] = {}

    def install(self) -> None:
        """Replace the handlers. Call it in the lifespan's start, on the running loop."""
        if threading.current_thread() is not threading.main_thread():
            return  # signals belong to the main thread
        self._loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and serving(handler) is not None:
                self._next[number] = handler
                signal.signal(number, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first one drains, any later one ends the process with 128 + number."""
        self._n += 1
        if self._n > 1:
            # A step thread may be in a long native call: an orderly exit would wait for it.
            logger.warning("second signal: ending at once")
            logging.shutdown()
            self._end(128 + number)
            return
        self._loop.call_soon_threadsafe(self._leave)
        delay_s = self._delay_s if number == signal.SIGTERM else 0.0
        self._loop.call_soon_threadsafe(self._loop.call_later, delay_s, self._stop, number)

    def _stop(self, number: int) -> None:
        self._begin()
        stop_uvicorn = self._next[number]
        if self._sockets:
            ended = asyncio.ensure_future(asyncio.wait(list(self._sockets)))
            ended.add_done_callback(lambda _: stop_uvicorn(number, None))
        else:
            stop_uvicorn(number, None)


def serving(handler: object = None) -> Server | None:
    """Return the uvicorn of a signal handler, by default SIGTERM's; None under another server."""
    handler = signal.getsignal(signal.SIGTERM) if handler is None else handler
    owner = getattr(handler, "__self__", None)
    if isinstance(owner, StopSignals):
        return serving(owner._next.get(signal.SIGTERM, int))
    return owner if isinstance(owner, Server) else None


def on_hangup(reread: Callable[[], object]) -> None:
    """Call `reread` on the running loop for each SIGHUP that requests a reload, also for one during the start."""
    if reloads_at_hangup():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reread)
        if take_hangup():
            reread()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with these changes (docs/security.md says what uvicorn alone does):

    - Request heads, trailers and chunk extensions are limited to `MAX_HEAD_BYTES`.
    - Offers of HTTP/2 are removed. Java's HttpClient and ``curl --http2`` send them with the first request.
    - A fragment, which no client sends, is a part of the path. httptools drops it.
    - Every WebSocket handshake gets a reply.
    - Other upgrades are ignored and end the connection after their reply, because httptools parses the body of such a
      request as the next request.
    - HTTP/1.0 clients may keep their connection, and get no chunks.
    """

    _is_first = True
    _is_last = False  # no request follows
    _n_bytes = 0  # since the end of the last head or part of a body
    _running: RequestResponseCycle | None = None  # the request that is being answered, or the last one

    def data_received(self, data: bytes) -> None:
        if self._is_last:
            return
        if self._is_first:
            self._is_first, data = False, without_h2c(data)
        self._n_bytes += len(data)
        super().data_received(data)
        if self.parser.should_upgrade() and self.transport.get_protocol() is self:
            self._is_last = True
            self.shutdown()
        if self.pipeline:
            self.flow.resume_reading()  # otherwise a disconnect is not noticed
            if len(self.pipeline) > MAX_WAITING or len(self.cycle.body) > MAX_WAITING_BYTES:
                self.transport.close()
        if self._n_bytes > MAX_HEAD_BYTES:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Mark the running request as disconnected. uvicorn marks only the last one, which may still wait."""
        super().connection_lost(exc)
        if self._running:
            self._running.disconnected = True
            self._running.message_event.set()

    def on_response_complete(self) -> None:
        """Start the next pipelined request."""
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()

    def on_headers_complete(self) -> None:
        self._n_bytes, self.url, before = 0, self.url.replace(b"#", b"%23"), self.cycle
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle
        if self.scope["http_version"] == "1.0" and self.cycle is not before:  # no WebSocket handshake
            self.cycle.__class__ = _Http10Cycle
            self.cycle.keep_alive = self.parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._n_bytes = 0
        super().on_body(body)

    def handle_websocket_upgrade(self) -> None:
        """Pass the connection to the WebSocket protocol, and answer a handshake that it cannot parse. Close it while an
        earlier request is running, because the disconnect of that request would not be noticed.
        """
        if self.cycle and not self.cycle.response_complete:
            self.transport.close()
            return
        super().handle_websocket_upgrade()
        if not getattr(self.transport.get_protocol(), "handshake_initiated", True):
            self.send_400_response("Invalid WebSocket handshake.")


class _Http10Cycle(RequestResponseCycle):
    """A reply to an HTTP/1.0 client: no chunks, and the end of the connection ends a reply of unknown length."""

    _has_length = True

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            names = {name for name, _ in headers}
            self._has_length = b"content-length" in names
            if not self._has_length:
                self.keep_alive = self.chunked_encoding = False
            elif self.keep_alive and b"connection" not in names:
                message = message | {"headers": [*headers, (b"connection", b"keep-alive")]}
        elif not self._has_length:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


def without_h2c(data: bytes) -> bytes:
    """Return `data`, which starts with a request head, without an offer of HTTP/2 in that head."""
    head, end, body = data.partition(b"\r\n\r\n")
    return _H2C.sub(b"", head + end) + body
