"""OpenAI's Responses over a WebSocket: each message that requests a response is an internal POST to the same path, so
keys, limits, queue, log and metrics are those of HTTP.

Stream events become messages, one JSON object each; an error reply becomes ``{"type": "error", "status", "error"}``
(developers.openai.com, WebSocket mode; codex-rs/codex-api/src/endpoint/responses_websocket.rs). Messages are
answered in order, and a connection remembers its responses even if ``store`` is false. At shutdown the current
response is finished, as streams are, and the connection closed.
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
Remembered = OrderedDict[str, list[dict[str, Any]]]
"""The responses of one connection that are not stored: the items of each one's whole history, by id."""
PATHS = ("/v1/responses", "/responses")
MAX_WAITING = 32
"""Messages of one connection that wait for those before them."""
_POLICY_VIOLATION = 1008  # RFC 6455, 7.4.1
_SERVICE_RESTART = 1012  # IANA's registry of close codes: the client may reconnect
_OWN_HEADERS = (b"connection", b"upgrade", b"content-length", b"content-type", b"accept-encoding")


class EventSocket:
    """Serves one connection that was admitted. `stopping` is set when the server stops."""

    def __init__(self, socket: WebSocket, stopping: asyncio.Event) -> None:
        self._socket = socket
        self._stopping = stopping
        self._admission = admission_of(socket.scope)
        self._waiting: asyncio.Queue[str | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._remembered: Remembered = OrderedDict()

    async def serve(self) -> None:
        """Accept the connection, and answer until the client goes or the server stops."""
        await self._socket.accept()
        helpers = (asyncio.create_task(self._read()), asyncio.create_task(self._watch_stop()))
        try:
            while (text := await self._waiting.get()) is not None:
                self._admission.give_back(len(text))  # it counts as the body of its request
                await self._answer(text)
            if not self._gone.is_set():
                with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # gone by now
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
                self._gone.set()
                with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # gone by now
                    await self._socket.close(_POLICY_VIOLATION, "too many messages")
                break
            self._waiting.put_nowait(text)
        self._gone.set()
        self._waiting.put_nowait(None)

    async def _answer(self, text: str) -> None:
        try:
            kind, wanted = await read_message(self._socket, text.encode(), _command)
            if kind == "response.create":
                reply = await post(self._socket.app, self._request(), wanted, self._gone, self._send)
                if reply.body:  # no stream, but an error
                    body = {"type": "error", "status": reply.status, "error": orjson.loads(reply.body).get("error")}
                    await self._send(orjson.dumps(body))
            elif kind != "response.processed":  # Codex sends it after it has read everything
                raise invalid("type", f"messages of type {short_json(kind)} are not supported")
        except InvalidRequest as error:
            status, body, _ = error_body(error)
            await self._send(orjson.dumps({"type": "error", "status": status} | openai_error(status, body)))

    def _request(self) -> Scope:
        """Return the scope of a request. Its request id is the connection's, if that has one."""
        scope = self._socket.scope
        # Headers that describe the connection or its body are not those of a request over it.
        own = [each for each, _ in scope["headers"] if each in _OWN_HEADERS or each.startswith(b"sec-websocket-")]
        headers = [pair for pair in scope["headers"] if pair[0] not in own]
        names = ("asgi", "query_string", "root_path", "client", "server", "state")
        return {
            **{name: scope[name] for name in names if name in scope},
            "path": self._socket.app.state.services.options.api_prefix + scope[TARGET].path,
            "scheme": "https" if scope.get("scheme") == "wss" else "http",
            "headers": headers,
            CONNECTION: self._remembered,
        }

    async def _send(self, event: bytes) -> None:
        if self._gone.is_set():
            return
        try:
            await self._socket.send_text(event.decode())
        except (WebSocketDisconnect, RuntimeError):  # the client has disconnected; `_read` receives that, too
            self._gone.set()


def _command(message: bytes) -> tuple[object, bytes]:
    """Return a message's type, and the body of the request that it makes. Raises `InvalidRequest`."""
    command = parse_value(message)
    kind = command.pop("type", None) if isinstance(command, dict) else None
    try:
        return kind, orjson.dumps({**command, "stream": True}) if kind == "response.create" else b""
    except orjson.JSONEncodeError:  # it reads deeper than it writes
        raise InvalidRequest("the message is nested too deeply") from None
