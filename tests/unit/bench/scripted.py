"""A server on a loopback socket that says what a test gives it, and remembers what it was asked."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from server.bench.target import Target

Answer = Callable[[str, Any], Sequence[bytes]]


@dataclass
class Scripted:
    """Where it listens, and each request: its path, headers and JSON."""

    port: int
    paths: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    n_connections: int = 0

    @property
    def target(self) -> Target:
        return Target("127.0.0.1", self.port)


@asynccontextmanager
async def scripted(answer: Answer, *, hangs_up: bool = True) -> AsyncIterator[Scripted]:
    """Answers every request with what `answer(path, body)` returns, one write for each piece.

    `hangs_up`: closes a connection that is not to be kept; else it waits for the client to do so.
    """
    seen = Scripted(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.n_connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                body = await reader.readexactly(length)
                seen.paths.append(head.split()[1])
                seen.heads.append(head)
                seen.bodies.append(json.loads(body) if body else None)
                for piece in answer(seen.paths[-1], seen.bodies[-1]):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if "Connection: close" in head and hangs_up:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    seen.port = server.sockets[0].getsockname()[1]
    async with server:
        yield seen


def reply(value: object, status: str = "200 OK") -> list[bytes]:
    """A whole JSON reply with its length."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return [f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body]


def events(values: Sequence[Mapping[str, Any]], *, chunked: bool, done: bool = True) -> list[bytes]:
    """A streamed reply: the head, then a piece for each event."""
    texts = [f"data: {json.dumps(value)}\n\n".encode() for value in values] + [b"data: [DONE]\n\n"] * done
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if not chunked:
        return [head + b"\r\n", *texts]
    pieces = [f"{len(text):x}\r\n".encode() + text + b"\r\n" for text in texts]
    return [head + b"Transfer-Encoding: chunked\r\n\r\n", *pieces, b"0\r\n\r\n"]


def text_event(text: str, finish: str | None = None) -> dict[str, Any]:
    """An event of /v1/completions."""
    return {"choices": [{"text": text, "index": 0, "finish_reason": finish}]}


def delta_event(**delta: str) -> dict[str, Any]:
    """An event of /v1/chat/completions."""
    return {"choices": [{"delta": delta, "index": 0, "finish_reason": None}]}


def usage_event(n_prompt: int, n_predicted: int, n_cached: int | None = None) -> dict[str, Any]:
    """The closing event that tells the usage."""
    usage: dict[str, Any] = {"prompt_tokens": n_prompt, "completion_tokens": n_predicted}
    if n_cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": n_cached}
    return {"choices": [], "usage": usage}
