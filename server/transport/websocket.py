"""OpenAI's Responses over a WebSocket: each message that requests a response is an internal POST to the same path, so
keys, limits, queue, log and metrics are those of HTTP.

Stream events become messages, one JSON object each; an error reply becomes ``{"type": "error", "status", "error"}``
(developers.openai.com, WebSocket mode; codex-rs/codex-api/src/endpoint/responses_websocket.rs). Messages are
answered in order, and a connection remembers its responses even if ``store`` is false. At shutdown the current
response is finished, as streams are, and the connection closed.
"""

import asyncio
import contextlib
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.dialects.common import openai_error
from server.transport.limits import BodyMemory, BodyShare, TooManyBodies

CONNECTION = "llamapool.connection"
"""Key in the ASGI scope of a request over a WebSocket: a dict of endpoint data for its connection."""
PATHS = ("/v1/responses", "/responses")
MAX_WAITING = 32
"""Messages of one connection that wait for those before them."""
LEAVING = "llamapool.leaving"
"""The type of an ASGI message: the server is to stop (`transport.uvicorn_protocols`)."""
_TOO_MUCH = 1008  # RFC 6455, 7.4.1: a policy is violated
_RESTARTS = 1012  # IANA's registry of close codes: the service restarts, so that clients may come back
_OWN_HEADERS = (b"connection", b"upgrade", b"content-length", b"content-type", b"accept-encoding")


class EventSocket:
    """One connection, once it may be accepted. `app` answers its requests."""

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, bodies: BodyMemory) -> None:
        """`bodies` counts waiting messages."""
        self._app = app
        self._bodies = bodies
        self._scope = scope
        self._receive = receive
        self._send = send
        self._waiting: asyncio.Queue[tuple[str | bytes, BodyShare] | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._kept: dict[str, Any] = {}

    async def serve(self) -> None:
        """Accept, and answer until the client goes."""
        await self._send({"type": "websocket.accept"})
        reading = asyncio.create_task(self._read())
        try:
            while (waiting := await self._waiting.get()) is not None:
                text, share = waiting
                share.release()  # what is answered counts as the body of its request
                await self._answer(text)
            if not self._gone.is_set():
                with contextlib.suppress(OSError):  # gone by now
                    await self._send({"type": "websocket.close", "code": _RESTARTS, "reason": "the server stops"})
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            while not self._waiting.empty():
                if (waiting := self._waiting.get_nowait()) is not None:
                    waiting[1].release()

    async def _read(self) -> None:
        while (message := await self._receive())["type"] in ("websocket.receive", LEAVING):
            if message["type"] == LEAVING:
                self._waiting.put_nowait(None)  # what waits is refused, as every new request is
                continue
            text, share = message.get("text") or message.get("bytes") or "", self._bodies.share()
            try:
                if self._waiting.qsize() >= MAX_WAITING:
                    raise TooManyBodies(self._bodies.limit)
                share.take(len(text))
            except TooManyBodies:
                self._gone.set()
                await self._send({"type": "websocket.close", "code": _TOO_MUCH, "reason": "too many messages"})
                break
            self._waiting.put_nowait((text, share))
        self._gone.set()
        self._waiting.put_nowait(None)

    async def _answer(self, text: str | bytes) -> None:
        try:
            asked = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            await self._fail(400, f"the message is not JSON: {error}")
            return
        kind = asked.pop("type", None) if isinstance(asked, dict) else None
        if kind == "response.create":
            try:
                body = orjson.dumps({**asked, "stream": True})
            except orjson.JSONEncodeError:  # it reads deeper than it writes
                await self._fail(400, "the message is nested too deeply")
                return
            exchange = _Exchange(self._gone, body, self._say)
            await self._app(self._request(len(body)), exchange.receive, exchange.send)
        elif kind != "response.processed":  # what Codex says when it has read all
            await self._fail(400, f"type: messages of type {ascii(kind)[:60]} are not supported", "type")

    def _request(self, n_bytes: int) -> Scope:
        """The scope of a POST; its id is the connection's where that has one."""
        headers = [pair for pair in self._scope["headers"] if not _is_own(pair[0])]
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % n_bytes)]
        kept = {key: value for key, value in self._scope.items() if key not in ("subprotocols", "extensions")}
        scheme = "https" if self._scope.get("scheme") == "wss" else "http"
        own = {"type": "http", "method": "POST", "scheme": scheme, "http_version": "1.1", "headers": headers}
        return {**kept, **own, CONNECTION: self._kept}

    async def _fail(self, status: int, message: str, param: str | None = None) -> None:
        error = {"code": status, "message": message, "type": "invalid_request_error", "param": param}
        await self._say(orjson.dumps({"type": "error", "status": status} | openai_error(status, {"error": error})))

    async def _say(self, event: bytes) -> None:
        if self._gone.is_set():
            return
        try:
            await self._send({"type": "websocket.send", "text": event.decode()})
        except OSError:  # uvicorn's word for a client that has gone; `_read` hears of it, too
            self._gone.set()


class _Exchange:
    """One request to the application, whose reply becomes messages."""

    def __init__(self, gone: asyncio.Event, body: bytes, say: Any) -> None:
        self._gone = gone
        self._unread = [body]
        self._say = say
        self._status = 0
        self._streams = False
        self._whole = bytearray()

    async def receive(self) -> Message:
        if self._unread:
            return {"type": "http.request", "body": self._unread.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            kind = dict(message.get("headers", ())).get(b"content-type", b"")
            self._streams = kind.startswith(b"text/event-stream")
            return
        if self._streams:
            for event in message.get("body", b"").split(b"\n\n"):
                data = event.rpartition(b"\ndata: ")[2]
                if data.startswith(b"{"):
                    await self._say(data)
            return
        self._whole += message.get("body", b"")
        if not message.get("more_body", False):
            error = orjson.loads(bytes(self._whole)).get("error")
            await self._say(orjson.dumps({"type": "error", "status": self._status, "error": error}))


def _is_own(name: bytes) -> bool:
    """Whether a header is about the connection or the body, so that a request inside has its own, or none."""
    return name in _OWN_HEADERS or name.startswith(b"sec-websocket-")
