"""Recent log lines for the web UI, and with ``log_bodies`` the bodies of recent requests."""

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.telemetry.record import RECORD
from server.transport.endpoints import TARGET

MAX_REQUESTS = 100
MAX_BYTES = 64 * 1024  # of each body; the rest is only counted


@dataclass(slots=True)
class BodyStart:
    """The first bytes of a body and its total length."""

    start: bytearray = field(default_factory=bytearray)
    n_bytes: int = 0

    def add(self, part: bytes) -> None:
        self.n_bytes += len(part)
        self.start += part[: max(0, MAX_BYTES - len(self.start))]

    @property
    def shown(self) -> dict[str, Any]:
        """The JSON object for the web UI."""
        return {"text": self.start.decode("utf-8", "replace"), "n_bytes": self.n_bytes}


@dataclass(frozen=True, slots=True)
class RecordedBodies:
    """The bodies of one request (``X-Request-Id``) and of its response so far."""

    id: str
    path: str
    request: BodyStart = field(default_factory=BodyStart)
    reply: BodyStart = field(default_factory=BodyStart)


class Bodies:
    """Records the bodies of inference requests, unless ``on`` is False."""

    def __init__(self, *, on: bool = False) -> None:
        self.on = on
        self._recorded: deque[RecordedBodies] = deque(maxlen=MAX_REQUESTS)

    def of(self, request_id: str) -> RecordedBodies | None:
        """Return the newest request with this id."""
        return next((each for each in reversed(self._recorded) if each.id == request_id), None)

    def around(self, app: ASGIApp) -> ASGIApp:
        """Wrap `app` to record request and response bodies."""
        if not self.on:
            return app

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or not scope[TARGET].endpoint.is_work:
                await app(scope, receive, send)
                return
            exchange = RecordedBodies(scope[RECORD].id, scope[TARGET].path)
            self._recorded.append(exchange)

            async def record_request() -> Message:
                message = await receive()
                if message["type"] == "http.request":
                    exchange.request.add(message.get("body", b""))
                return message

            async def record_reply(message: Message) -> None:
                if message["type"] == "http.response.body":
                    exchange.reply.add(message.get("body", b""))
                await send(message)

            await app(scope, record_request, record_reply)

        return serve


MAX_LINES = 500
MAX_CHARS = 2000  # of each line


class RecentLog(logging.Handler):
    """Stores recent log records. Thread-safe: `logging` holds a lock, and the deque is copied in one operation."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[dict[str, Any]] = deque(maxlen=MAX_LINES)
        self._n_lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - the other handlers report a message that can't be formatted
            text = str(record.msg)
        if record.exc_info and record.exc_info[1] is not None:
            text += f"\n{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        self._n_lines += 1
        origin = record.name.removeprefix("server.")
        line = {"number": self._n_lines, "at": record.created, "level": record.levelname[0], "origin": origin}
        self._lines.append(line | {"text": text[:MAX_CHARS]})

    def after(self, number: int) -> list[dict[str, Any]]:
        """Return the lines with a higher ``number``, the oldest first. ``at`` is in Unix seconds."""
        return [line for line in self._lines.copy() if line["number"] > number]
