"""The front: how much of a body it reads before a key is checked. Ray is a stand-in here, since the tests lack it."""

import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from llamapool.ray.crossing import Head, Sent

KEY = (b"authorization", b"Bearer sk-valid")
CHUNK = bytes(16 * 1024)
N_CHUNKS = 64  # a body of 1 MiB


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, over the real Ray where it is installed."""
    try:
        importlib.import_module("ray.exceptions")
    except ImportError:
        exceptions = ModuleType("ray.exceptions")
        exceptions.RayActorError = type("RayActorError", (Exception,), {})  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
        monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    yield importlib.import_module("llamapool.ray.front")
    sys.modules.pop("llamapool.ray.front", None)


class _Method:
    def __init__(self, call: Any) -> None:
        self.remote = call


class _Parts:
    def __init__(self, sent: Sent, status: int) -> None:
        self.parts: list[Head | bytes] = [Head(status, [], "r1"), str(len(sent.body)).encode()]

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if not self.parts:
            raise StopAsyncIteration
        return self.parts.pop(0)

    def cancel(self) -> None:
        """Nothing is under way."""


class _Replicas:
    """A handle of replicas that have one key; it refuses as the server does, by the head."""

    def __init__(self) -> None:
        self.n_asked = 0
        self.knows = _Method(self._knows)
        self.answer = _Method(lambda sent, _: _Parts(sent, 200 if KEY in sent.headers else 401))

    def options(self, *, stream: bool) -> "_Replicas":
        assert stream
        return self

    async def _knows(self, headers: list[tuple[bytes, bytes]]) -> bool:
        self.n_asked += 1
        return KEY in headers


class _Client:
    """Sends `n_chunks` of a body, and counts those that were asked for."""

    def __init__(self, n_chunks: int, *headers: tuple[bytes, bytes]) -> None:
        self.n_chunks, self.n_read = n_chunks, 0
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"", "root_path": ""}
        self.request = Request({**scope, "headers": list(headers)}, self._receive)

    async def _receive(self) -> Message:
        self.n_read += 1
        return {"type": "http.request", "body": CHUNK, "more_body": self.n_read < self.n_chunks}


async def reply(front: Any, client: _Client, replicas: _Replicas) -> tuple[int, bytes]:
    response = await front.Front(replicas, 1 << 26)(client.request)
    return response.status_code, b"".join([part async for part in response.body_iterator])


async def test_a_long_body_without_a_valid_key_is_not_read_to_its_end(front: Any) -> None:
    client, replicas = _Client(N_CHUNKS, (b"authorization", b"Bearer sk-wrong")), _Replicas()
    assert await reply(front, client, replicas) == (401, b"0")
    assert client.n_read * len(CHUNK) <= 64 * 1024 + len(CHUNK)


async def test_a_long_body_with_a_valid_key_arrives_whole(front: Any) -> None:
    client, replicas = _Client(N_CHUNKS, KEY), _Replicas()
    assert await reply(front, client, replicas) == (200, str(N_CHUNKS * len(CHUNK)).encode())
    assert replicas.n_asked == 1


async def test_a_short_body_costs_no_question(front: Any) -> None:
    client, replicas = _Client(2, KEY), _Replicas()
    assert await reply(front, client, replicas) == (200, str(2 * len(CHUNK)).encode())
    assert replicas.n_asked == 0
