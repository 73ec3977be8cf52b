"""Messages between the front and a replica: a whole request, the head of a reply, then parts of its body as bytes."""

import asyncio
from dataclasses import dataclass

from starlette.types import Message, Scope

from server.dialects.common import event, typed_event
from server.dialects.errors import anthropic_error_event, error_line, openai_error, speaks_anthropic, speaks_ollama
from server.errors import Unavailable
from server.transport.errors import error_body
from server.transport.sse import EVENTS_TYPE, NDJSON_TYPE

MAX_WAITING = 1 << 20  # buffered bytes of a reply that the front has not read yet
Headers = list[tuple[bytes, bytes]]


class ReplicaLost(Unavailable):
    """The replica of this request has ended."""

    def __init__(self) -> None:
        super().__init__("the replica that had this request has ended; send it again")


def portable(scope: Scope, path: str, headers: Headers) -> Scope:
    """Return a picklable ASGI scope of a request for a replica. `path` has no route prefix."""
    return {
        **{key: scope.get(key) for key in ("method", "query_string", "client", "server")},
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": scope.get("scheme", "http"),
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "headers": headers,
        "state": {},
    }


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a reply. ``replica``: the id of the replica that sends it."""

    status: int
    headers: Headers
    replica: str


class Exchange:
    """`receive` and `send` of an ASGI application for one request. Joins the parts that the front has not read."""

    def __init__(self, body: bytes, replica: str) -> None:
        self._body: bytes | None = body
        self._replica = replica
        self._head: Head | None = None
        self._buffer: list[bytes] = []
        self._n_buffered = 0
        self._ended = False
        self._disconnected = asyncio.Event()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()

    async def receive(self) -> Message:
        """Return the body, then wait until the client disconnects."""
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a message. Waits while the buffer is full."""
        if message["type"] == "http.response.start":
            self._head = Head(message["status"], list(message["headers"]), self._replica)
        elif message["type"] == "http.response.body":
            if body := message.get("body", b""):
                self._buffer.append(body)
                self._n_buffered += len(body)
            self._ended = self._ended or not message.get("more_body", False)
        self._changed.set()
        while self._n_buffered > MAX_WAITING and not self._disconnected.is_set():
            self._taken.clear()
            await self._taken.wait()

    def end(self) -> None:
        """Mark the reply as complete, because the application has returned."""
        self._ended = True
        self._changed.set()

    def disconnect(self) -> None:
        """Record that the client disconnected."""
        self._disconnected.set()
        self._taken.set()

    async def next(self) -> Head | bytes | None:
        """Return the next part of the reply, or None at its end."""
        while True:
            self._changed.clear()
            head, self._head = self._head, None
            if head is not None:
                return head
            if self._buffer:
                part = b"".join(self._buffer)
                self._buffer.clear()
                self._n_buffered = 0
                self._taken.set()
                return part
            if self._ended:
                return None
            await self._changed.wait()


def final_event(path: str, headers: Headers) -> bytes:
    """Return the error event for a stream whose replica ended, in the format of its API; b"" if it is no stream."""
    status, body, _ = error_body(ReplicaLost())
    kind = next((value for name, value in headers if name.lower() == b"content-type"), b"")
    if kind.startswith(NDJSON_TYPE.encode()) and speaks_ollama(path):
        return error_line(status, body)
    if not kind.startswith(EVENTS_TYPE.encode()):
        return b""
    if speaks_anthropic(path):
        return anthropic_error_event(status, body)
    if path.endswith("/responses"):
        error = body["error"]
        return typed_event({"type": "error", "code": error["type"], "message": error["message"], "param": None})
    return event(openai_error(status, body))
