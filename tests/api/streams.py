"""An ASGI client that reads a reply chunk by chunk, and parsers of event streams.

httpx's ASGI transport returns a reply only when it is complete, so it cannot test streams that are still running.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
from fastapi import FastAPI
from pydantic import TypeAdapter

from tests.api.conftest import TIMEOUT_S, Api


def scope_of(kind: str, path: str, headers: Mapping[str, str], **more: object) -> dict[str, Any]:
    """Return the ASGI scope of a request (``http``) or a handshake (``websocket``)."""
    return {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": {"http": "http", "websocket": "ws"}[kind],
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("test", 80),
        "state": {},
        **more,
    }


class Exchange:
    """One running HTTP request: `start` waits for the reply's status, `chunk` for the next part of its body."""

    def __init__(
        self, app: FastAPI, path: str, body: object, headers: Mapping[str, str] | None = None, method: str = "POST"
    ) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.gone = asyncio.Event()
        self._unread = [{"type": "http.request", "body": orjson.dumps(body), "more_body": False}]
        scope = scope_of("http", path, {"content-type": "application/json", **(headers or {})}, method=method)
        self.task = asyncio.create_task(app(scope, self._receive, self._send))  # type: ignore[arg-type]

    async def _receive(self) -> dict[str, Any]:
        if self._unread:
            return self._unread.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.messages.put_nowait(message)

    def disconnect(self) -> None:
        self.gone.set()

    async def start(self) -> int:
        """Wait until the reply starts. Return its status."""
        message = await self.messages.get()
        assert message["type"] == "http.response.start"
        status: int = message["status"]
        return status

    async def chunk(self) -> bytes:
        """Wait for the next part of the body. Return b"" at the end."""
        message = await self.messages.get()
        body: bytes = message.get("body", b"")
        return body

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body until its end."""
        while part := await self.chunk():
            yield part


def set_short_pings(api: Api) -> None:
    """Set a ping interval that is shorter than the settings allow."""
    services = api.app.state.services
    api.app.state.services = replace(services, options=replace(services.options, sse_ping_interval=0.02))


@asynccontextmanager
async def posting(
    app: FastAPI, path: str, body: object, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Exchange]:
    """Send a POST. When the block ends, disconnect and wait until the application has finished."""
    async with asyncio.timeout(TIMEOUT_S):
        exchange = Exchange(app, path, body, headers=headers)
        try:
            yield exchange
        finally:
            exchange.disconnect()
            await asyncio.wait([exchange.task])
        exchange.task.result()


def events(raw: str) -> list[dict[str, Any]]:
    """Parse a complete stream, which must end with [DONE]."""
    *parts, done = _parts(raw)
    assert done == "data: [DONE]"
    return [orjson.loads(part.removeprefix("data: ")) for part in parts]


def native_events(raw: str) -> list[dict[str, Any]]:
    """Parse a complete stream of llama-server's own API, which has no [DONE]."""
    return [orjson.loads(part.removeprefix("data: ")) for part in _parts(raw)]


def typed_events(raw: str, known: TypeAdapter[Any] | None = None) -> list[Any]:
    """Parse a complete Messages or Responses stream, without its pings. `known` validates each event."""
    parsed = []
    for part in _parts(raw):
        name, _, data = part.partition("\ndata: ")
        event = orjson.loads(data)
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "keepalive"):
            if known is not None:
                known.validate_python(event)
            parsed.append(event)
    return parsed


def whole_message(parsed: list[Any]) -> dict[str, Any]:
    """Assemble the message of a Messages stream from its events."""
    assert (parsed[0]["type"], parsed[-1]["type"]) == ("message_start", "message_stop")
    blocks: list[dict[str, Any]] = []
    for event in parsed:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "partial_json": ""})
        elif event["type"] == "content_block_delta":
            for key in event["delta"].keys() - {"type"}:
                blocks[event["index"]][key] += event["delta"][key]
    for block in blocks:
        if partial_json := block.pop("partial_json"):
            block["input"] = orjson.loads(partial_json)
    message, end = parsed[0]["message"], parsed[-2]
    return {**message, "content": blocks, **end["delta"], "usage": message["usage"] | end["usage"]}


def _parts(raw: str) -> list[str]:
    return [part for part in raw.split("\n\n") if part and not part.startswith(":")]
