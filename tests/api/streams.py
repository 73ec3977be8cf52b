"""A client below httpx, which would collect a stream before it shows any of it: one ASGI call, chunk by chunk."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import FastAPI
from pydantic import TypeAdapter

TIMEOUT_S = 100.0


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
    """One request under way: `start` is the reply's first message, `chunk` the next part of its body."""

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
        """Wait for the reply to begin: its status."""
        message = await self.messages.get()
        assert message["type"] == "http.response.start"
        status: int = message["status"]
        return status

    async def chunk(self) -> bytes:
        """The next part of the body; b"" at the end."""
        message = await self.messages.get()
        body: bytes = message.get("body", b"")
        return body

    async def chunks(self) -> AsyncIterator[bytes]:
        """The parts of the body up to the end."""
        while part := await self.chunk():
            yield part


@asynccontextmanager
async def posting(
    app: FastAPI, path: str, body: object, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Exchange]:
    """A POST that ends, by disconnecting if need be, with the block."""
    async with asyncio.timeout(TIMEOUT_S):
        exchange = Exchange(app, path, body, headers=headers)
        try:
            yield exchange
        finally:
            exchange.disconnect()
            await asyncio.wait([exchange.task])
        exchange.task.result()


def events(raw: str) -> list[dict[str, Any]]:
    """The parsed events of a whole stream, which must end with [DONE]."""
    *parsed, done = _parts(raw)
    assert done == "data: [DONE]"
    return [orjson.loads(part.removeprefix("data: ")) for part in parsed]


def native_events(raw: str) -> list[dict[str, Any]]:
    """The parsed events of a whole native stream, which has no [DONE]."""
    return [orjson.loads(part.removeprefix("data: ")) for part in _parts(raw)]


def typed_events(raw: str, known: TypeAdapter[Any] | None = None) -> list[Any]:
    """The parsed events of a whole stream of Anthropic's or Responses, without pings; `known` validates each."""
    found = []
    for part in _parts(raw):
        name, _, data = part.partition("\ndata: ")
        event = orjson.loads(data)
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "keepalive"):
            if known is not None:
                known.validate_python(event)
            found.append(event)
    return found


def whole_message(found: list[Any]) -> dict[str, Any]:
    """The message that the events of Anthropic's stream build."""
    assert (found[0]["type"], found[-1]["type"]) == ("message_start", "message_stop")
    blocks: list[dict[str, Any]] = []
    for event in found:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "partial_json": ""})
        elif event["type"] == "content_block_delta":
            for key in event["delta"].keys() - {"type"}:
                blocks[event["index"]][key] += event["delta"][key]
    for block in blocks:
        if written := block.pop("partial_json"):
            block["input"] = orjson.loads(written)
    message, end = found[0]["message"], found[-2]
    return {**message, "content": blocks, **end["delta"], "usage": message["usage"] | end["usage"]}


def _parts(raw: str) -> list[str]:
    return [part for part in raw.split("\n\n") if part and not part.startswith(":")]
