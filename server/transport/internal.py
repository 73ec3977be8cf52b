"""Requests that the server makes to its own application, in the name of a client."""

import asyncio
from dataclasses import dataclass

import orjson
from starlette.types import ASGIApp, Message, Scope

from server.errors import AuthenticationFailed, InternalError
from server.transport.errors import error_body
from server.transport.keys import INTERNAL, Key


@dataclass(frozen=True, slots=True)
class InternalReply:
    """Status, headers (names in lower case) and body."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


def revoked_key() -> InternalReply:
    """Return the reply to a request whose client's key is no longer valid."""
    status, body, _ = error_body(AuthenticationFailed("the API key that started this batch is no longer valid"))
    return InternalReply(status, {}, orjson.dumps(body))


async def post_json(app: ASGIApp, state_scope: Scope, path: str, body: bytes, key: Key) -> InternalReply:
    """Return the reply of `app` to a POST of `body`, a JSON text.

    A cancelled caller counts as a client that disconnects. `state_scope` has what the server adds to every scope, such
    as the lifespan's state.
    """
    unread = [body]
    started: Message = {}
    parts: list[bytes] = []

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await asyncio.Event().wait()  # the task is cancelled instead
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
        else:
            parts.append(message.get("body", b""))

    scope: Scope = {
        **state_scope,
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
        "client": None,
        "server": None,
        INTERNAL: key,
    }
    await app(scope, receive, send)
    if not started:  # a fault that the middleware has logged
        status, failed, _ = error_body(InternalError("the request got no reply"))
        return InternalReply(status, {}, orjson.dumps(failed))
    headers = {name.lower(): value for name, value in started["headers"]}
    return InternalReply(started["status"], headers, b"".join(parts))
