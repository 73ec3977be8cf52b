"""Streamed replies: server-sent events from ready-made bytes, and work that ends when its client disconnects."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.transport.options import HttpOptions

T = TypeVar("T")
HEAD_ONLY = "llamapool.head_only"
"""Key in the ASGI scope of a GET that represents a HEAD: the reply has no body, so no stream may start."""
EVENTS_TYPE = "text/event-stream"
NDJSON_TYPE = "application/x-ndjson"
PING = b":\n\n"
"""A comment line, which clients ignore (llama-server sends the same)."""


MIN_COMPRESSED_BYTES = 1024
compressed = partial(GZipMiddleware, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=3, thread_minimum_size=16 * 1024)
"""Wrap a reply, or another ASGI application, to compress bodies of a kilobyte and more."""


def is_sent_as_it_is(reply: Response) -> bool:
    """Return whether `reply` is a stream of small parts, or too short to be compressed."""
    return isinstance(reply, EventStream) or (type(reply) is Response and len(reply.body) < MIN_COMPRESSED_BYTES)


async def written(items: AsyncGenerator[T, None], write: Callable[[T], bytes]) -> AsyncGenerator[bytes, None]:
    """Yield ``write(item)`` for each item."""
    async with aclosing(items):
        async for item in items:
            yield write(item)


class Watch:
    """A context manager that ends the current task with `ClientDisconnect` when the client disconnects.

    Read the body before. It costs one task; a task group would cost three times as much, which is noticeable for a
    request of one token.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._reason: Exception | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._n_cancels = task, task.cancelling()
        self._listening = asyncio.create_task(self._listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._listening.cancel()
        # like asyncio.timeout: another cancellation of the task has precedence
        reason = self._reason
        if reason is not None and self._task.uncancel() <= self._n_cancels and kind is asyncio.CancelledError:
            raise reason from error

    def interrupt(self, reason: Exception) -> None:
        """End the task with `reason`. Call it from another task. Of several reasons the first one counts."""
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(ClientDisconnect())


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, which is cancelled when the client disconnects. For replies that are not streams.

    Read the body before. Raises `ClientDisconnect` after `work` has ended; the middleware does not log it as an error.
    """
    with Watch(request.receive):
        return await work


class EventStream(EventSourceResponse):
    """A streamed reply. At its end it always closes its iterator, then calls `on_close` once, even if the client
    disconnects or does not read for ``idle_s``.

    An async generator that was never started does not run its ``finally``; put cleanup into `on_close`.

    The headers are sse-starlette's. Sending is overridden, because sse-starlette's costs 15% more CPU time per token
    (benchmarks/experiments.md) and pings during events. Here one task sends, one waits for the disconnect, and one
    timer handles pings and send timeouts.
    """

    def __init__(
        self,
        request: Request,
        chunks: AsyncGenerator[bytes, None],
        *,
        on_close: Callable[[], object] | None = None,
        ping_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        ping: Callable[[], bytes] = lambda: PING,
        media_type: str = EVENTS_TYPE,
    ) -> None:
        """Send `chunks`, each a whole event including its blank line, or data of `media_type`.

        `ping_s` None = the server's interval; `ping` returns the bytes of a ping.
        """
        options: HttpOptions = request.app.state.services.options
        headers = {"Cache-Control": "no-cache", **(headers or {})}
        interval_s = max(options.sse_ping_interval if ping_s is None else ping_s, 0)
        super().__init__(chunks, media_type=media_type, headers=headers, ping=interval_s)
        self._chunks = chunks
        self._on_close = on_close
        self._ping_message = ping
        self._pinging: asyncio.Task[None] | None = None
        self._send_timeout_s = options.idle_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._sending_since = self._pinging_since = 0.0  # 0 = nothing is being sent
        self._sent_at = self._loop.time()  # the end of the last send
        self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the iterator ends, the client disconnects or stops reading.

        Raises `SendTimeoutError` for the last of these.
        """
        try:
            if scope.get(HEAD_ONLY):
                await Response(headers=self.headers)(scope, receive, send)
                return
            with suppress(ClientDisconnect), Watch(receive) as watch:
                # In its own task a chunk resumes three coroutines; in the request's task also those of the middleware.
                sending = asyncio.create_task(self._send_all(send))
                self._on_timer(watch, send)  # the task runs first, so no ping precedes the head
                await sending
        finally:
            for each in (self._timer, self._pinging):
                if each is not None:
                    each.cancel()
            try:
                await self._chunks.aclose()  # it may not have started
            finally:
                if self._on_close is not None:
                    self._on_close()

    async def _send_all(self, send: Send) -> None:
        now = self._loop.time
        self._sending_since = now()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._sending_since = 0.0
        async with aclosing(self._chunks) as chunks:  # a generator must be closed in the task that started it
            async for chunk in chunks:
                self._sending_since = now()
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                self._sending_since, self._sent_at = 0.0, now()
        self._ended = True
        self._sending_since = now()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _on_timer(self, watch: Watch, send: Send) -> None:
        """Ping after an interval of silence, end the stream after a send timeout, and schedule the next check."""
        now, interval_s = self._loop.time(), self.ping_interval
        since = min(filter(None, (self._sending_since, self._pinging_since)), default=0.0)
        due = (since or now) + self._send_timeout_s
        if due <= now:
            watch.interrupt(SendTimeoutError())
            return
        if interval_s > 0:
            if not since and self._sent_at + interval_s <= now:
                self._sent_at = now
                self._pinging = asyncio.create_task(self._send_ping(send))
            due = min(due, (now if since else self._sent_at) + interval_s)
        self._timer = self._loop.call_at(due, self._on_timer, watch, send)

    async def _send_ping(self, send: Send) -> None:
        """Send a ping. An event may be sent at the same time."""
        if not self._ended:
            message = {"type": "http.response.body", "body": self._ping_message(), "more_body": True}
            self._pinging_since = self._loop.time()
            try:
                await send(message)
                self._sent_at = self._loop.time()
            finally:
                self._pinging_since = 0.0
