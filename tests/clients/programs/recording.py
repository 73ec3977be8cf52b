"""Record requests and replies as lines of JSON, in a wrapper around the ASGI application."""

import json
import threading
import time
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_REPLY_BYTES = 1 << 20  # recorded of a reply
UNRECORDED = ("/health", "/slots")  # requested by the harness
HEADERS = ("user-agent", "content-type", "accept", "anthropic-version", "anthropic-beta", "openai-beta", "upgrade")


class Recorder:
    """Writes one line for each finished request. ``disconnected``: the client closed the connection first."""

    def __init__(self, app: ASGIApp, path: Path) -> None:
        self._app = app
        self._path = path
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNRECORDED:
            await self._app(scope, receive, send)
            return
        body, reply = bytearray(), bytearray()
        outcome: dict[str, Any] = {"status": None, "complete": False, "disconnected": False, "warning": None}

        async def record_received() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
            elif not outcome["complete"]:
                outcome["disconnected"] = True
            return message

        async def record_sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                outcome["status"] = message["status"]
                headers = {k.decode().lower(): v.decode() for k, v in message["headers"]}
                outcome["warning"] = headers.get("x-llamapool-warning")
            elif message["type"] == "http.response.body":
                reply.extend(message.get("body", b"")[: max(0, MAX_REPLY_BYTES - len(reply))])
                outcome["complete"] = not message.get("more_body", False)
            await send(message)

        started_at = time.monotonic()
        try:
            await self._app(scope, record_received, record_sent)
        finally:
            headers = {k.decode(): v.decode("latin-1") for k, v in scope["headers"]}
            self._write(
                {
                    "method": scope["method"],
                    "path": scope["path"],
                    "query": scope["query_string"].decode(),
                    "headers": {name: headers[name] for name in HEADERS if name in headers},
                    "body": _json(bytes(body)),
                    **outcome,
                    "seconds": round(time.monotonic() - started_at, 3),
                    "reply": bytes(reply).decode("utf-8", "replace"),
                }
            )

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _json(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except ValueError:
        return f"{len(raw)} bytes"
