"""OpenAI's Responses over a WebSocket. Each message that requests a response becomes an internal POST to the same path,
so keys, limits, queue, log and metrics work as for HTTP.

Stream events become messages, one JSON object each; an error reply becomes ``{"type": "error", "status", "error"}``
(developers.openai.com, WebSocket mode; codex-rs/codex-api/src/endpoint/responses_websocket.rs). Messages are
answered in order, and a connection remembers its responses even if ``store`` is false. At shutdown the current
response is completed, like a stream, and the connection is closed.
"""

import asyncio
import contextlib
from collections import OrderedDict
from typing import Any

import orjson
from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from server.dialects.errors import openai_error
from server.errors import InvalidRequest, invalid, short_json
from server.transport.admission import admission_of
from server.transport.body import parse_value, read_message
from server.transport.endpoints import TARGET
from server.transport.errors import error_body
from server.transport.internal import post
from server.transport.limits import TooManyBodies

CONNECTION = "llamapool.connection"
"""Key in the ASGI scope of a request over a WebSocket: the `Remembered` of its connection."""
Remembered = OrderedDict[str, tuple[list[dict[str, Any]], int]]
"""The unstored responses of one connection: by id, the items of the whole history and their JSON bytes."""
PATHS = ("/v1/responses", "/responses")
MAX_WAITING = 32
"""Messages of one connection that may wait for earlier ones."""
_POLICY_VIOLATION = 1008  # RFC 6455, 7.4.1
_SERVICE_RESTART = 1012  # IANA's registry of close codes: the client may reconnect
_CONNECTION_HEADERS = (b"connection", b"upgrade", b"content-length", b"content-type", b"accept-encoding")


class EventSocket:
    """Serves one admitted connection. `stopping` is set when the server stops."""

    def __init__(self, socket: WebSocket, stopping: asyncio.Event) -> None:
        self._socket = socket
        self._stopping = stopping
        self._admission = admission_of(socket.scope)
        self._waiting: asyncio.Queue[str | None] = asyncio.Queue()
        self._disconnected = asyncio.Event()
        self._remembered: Remembered = OrderedDict()

    async def serve(self) -> None:
        """Accept the connection, and answer messages until the client disconnects or the server stops."""
        await self._socket.accept()
        helpers = (asyncio.create_task(self._read()), asyncio.create_task(self._watch_stop()))
        try:
            while (text := await self._waiting.get()) is not None:
                self._admission.give_back(len(text))  # it counts as the body of its request
                await self._answer(text)
            if not self._disconnected.is_set():
                with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # already disconnected
                    await self._socket.close(_SERVICE_RESTART, "the server stops")
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _watch_stop(self) -> None:
        await self._stopping.wait()
        self._waiting.put_nowait(None)  # messages that arrive later are refused, as every new request is

    async def _read(self) -> None:
        while (message := await self._socket.receive())["type"] == "websocket.receive":
            text = message.get("text") or (message.get("bytes") or b"").decode("utf-8", "replace")
            try:
                if self._waiting.qsize() >= MAX_WAITING:
                    raise asyncio.QueueFull
                self._admission.take(len(text))
            except (TooManyBodies, asyncio.QueueFull):
                self._disconnected.set()
                with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # already disconnected
                    await self._socket.close(_POLICY_VIOLATION, "too many messages")
                break
            self._waiting.put_nowait(text)
        self._disconnected.set()
        self._waiting.put_nowait(None)

    async def _answer(self, text: str) -> None:
        try:
            kind, body = await read_message(self._socket, text.encode(), _command)
            if kind == "response.create":
                reply = await post(self._socket.app, self._request(), body, self._disconnected, self._send)
                if reply.body:  # not a stream but an error
                    event = {"type": "error", "status": reply.status, "error": orjson.loads(reply.body).get("error")}
                    await self._send(orjson.dumps(event))
            elif kind != "response.processed":  # Codex sends it after it has read a response
                raise invalid("type", f"messages of type {short_json(kind)} are not supported")
        except InvalidRequest as error:
            status, detail, _ = error_body(error)
            await self._send(orjson.dumps({"type": "error", "status": status} | openai_error(status, detail)))

    def _request(self) -> Scope:
        """Return the scope of a request. It has the connection's request id, if there is one."""
        scope = self._socket.scope
        # Headers of the connection or its body do not belong to a request over it.
        headers = [
            (name, value)
            for name, value in scope["headers"]
            if name not in _CONNECTION_HEADERS and not name.startswith(b"sec-websocket-")
        ]
        names = ("asgi", "query_string", "root_path", "client", "server", "state")
        return {
            **{name: scope[name] for name in names if name in scope},
            "path": self._socket.app.state.services.options.api_prefix + scope[TARGET].path,
            "scheme": "https" if scope.get("scheme") == "wss" else "http",
            "headers": headers,
            CONNECTION: self._remembered,
        }

    async def _send(self, event: bytes) -> None:
        if self._disconnected.is_set():
            return
        try:
            await self._socket.send_text(event.decode())
        except (WebSocketDisconnect, RuntimeError):  # the client has disconnected; `_read` receives that, too
            self._disconnected.set()


def _command(message: bytes) -> tuple[object, bytes]:
    """Return a message's type, and the body of the request for a response. Raises `InvalidRequest`."""
    command = parse_value(message)
    kind = command.pop("type", None) if isinstance(command, dict) else None
    try:
        return kind, orjson.dumps({**command, "stream": True}) if kind == "response.create" else b""
    except orjson.JSONEncodeError:  # orjson parses deeper nesting than it writes
        raise InvalidRequest("the message is nested too deeply") from None
