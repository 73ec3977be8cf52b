"""Requests that the server sends to its own application on behalf of a client."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson
from starlette.types import ASGIApp, Message, Scope

from server.errors import InternalError, LlamapoolError
from server.transport.errors import error_body
from server.transport.keys import INTERNAL, Key


@dataclass(frozen=True, slots=True)
class InternalReply:
    """Status, headers (names in lower case) and body."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


def failed(error: LlamapoolError) -> InternalReply:
    status, body, _ = error_body(error)
    return InternalReply(status, {}, orjson.dumps(body))


async def post(
    app: ASGIApp,
    scope: Scope,
    body: bytes,
    disconnected: asyncio.Event | None = None,
    on_event: Callable[[bytes], Awaitable[None]] | None = None,
) -> InternalReply:
    """Return the reply of `app` to the POST that `scope` describes, with status 0 if the reply never started.

    `on_event` receives each JSON object of an event stream. The request ends when `disconnected` is set or the caller
    is cancelled.
    """
    unread = [body]
    parts: list[bytes] = []
    started: Message = {"status": 0, "headers": ()}
    streams = False

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await (disconnected or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal streams
        if message["type"] == "http.response.start":
            started.update(message)
            kind = dict(message["headers"]).get(b"content-type", b"")
            streams = on_event is not None and kind.startswith(b"text/event-stream")
        elif on_event is None or not streams:
            parts.append(message.get("body", b""))
        else:
            for event in message.get("body", b"").split(b"\n\n"):
                data = event.rpartition(b"\ndata: ")[2]
                if data.startswith(b"{"):
                    await on_event(data)

    added = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    fixed = {"type": "http", "method": "POST", "http_version": "1.1", "headers": [*scope.get("headers", ()), *added]}
    await app({**scope, **fixed}, receive, send)
    headers = {name.lower(): value for name, value in started["headers"]}
    return InternalReply(started["status"], headers, b"".join(parts))


async def post_json(app: ASGIApp, state_scope: Scope, path: str, body: bytes, key: Key) -> InternalReply:
    """Return the reply of `app` to a POST of `body`, a JSON text, on behalf of the client with `key`.

    `state_scope` has the entries that the server adds to every scope, such as the lifespan's state.
    """
    scope: Scope = {
        **state_scope,
        "asgi": {"version": "3.0"},
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "root_path": "",
        "client": None,
        "server": None,
        INTERNAL: key,
    }
    reply = await post(app, scope, body)
    return reply if reply.status else failed(InternalError("the request got no reply"))  # logged by the middleware
