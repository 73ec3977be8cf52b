"""Clients with a fake server, a function that returns the reply, and the requests that they sent."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from llamapool.client import LlamaCppClient

BASE_URL = "http://server.test"
Handler = Callable[[httpx.Request], httpx.Response]


@dataclass
class FakeServer:
    """A client of the fake server, and the requests that the server received."""

    client: LlamaCppClient
    requests: list[httpx.Request] = field(default_factory=list)

    @property
    def last(self) -> httpx.Request:
        return self.requests[-1]

    @property
    def body(self) -> Any:
        return json.loads(self.last.content)


def served_by(handler: Handler) -> FakeServer:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return handler(request)

    http = httpx.Client(transport=httpx.MockTransport(answer), base_url=BASE_URL)
    return FakeServer(LlamaCppClient.with_http_client(http), requests)


def answering(reply: object, status: int = 200, headers: dict[str, str] | None = None) -> FakeServer:
    """Reply to every request with `reply`: a string as it is, anything else as JSON."""
    if isinstance(reply, str):
        return served_by(lambda _: httpx.Response(status, text=reply, headers=headers))
    return served_by(lambda _: httpx.Response(status, json=reply, headers=headers))


class Chunks(httpx.SyncByteStream):
    """A response body in chunks that counts the chunks read and records that its connection was closed."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.chunks = list(chunks)
        self.n_read = 0
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.chunks:
            self.n_read += 1
            yield chunk

    def close(self) -> None:
        self.closed = True


def streaming(*chunks: bytes, content_type: str = "text/event-stream") -> tuple[FakeServer, Chunks]:
    """Reply to every request with a body of `chunks`. Also returns the body."""
    body = Chunks(chunks)
    return served_by(lambda _: httpx.Response(200, headers={"content-type": content_type}, stream=body)), body
