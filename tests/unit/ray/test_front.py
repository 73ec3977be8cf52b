"""The Ray front: exchange of requests and replies with a replica, the end of a replica, and placement."""

import asyncio
import importlib
import json
import pickle
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message, Receive, Send

from llamapool.ray.crossing import MAX_WAITING, Exchange, Head, ReplicaLost, final_event, portable
from llamapool.ray.placement import LOAD, PIECE, Aim, Candidate, Placement, aim_of, pieces

EVENTS = [(b"Content-Type", b"text/event-stream; charset=utf-8")]


async def answer(receive: Receive, send: Send) -> None:
    assert (await receive())["body"] == b"body"
    await send({"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]})
    for part in (b"one", b"", b"two"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"end"})


async def test_reply_is_in_order_and_waiting_parts_are_joined() -> None:
    exchange = Exchange(b"body", "r1")
    await answer(exchange.receive, exchange.send)
    assert [await exchange.next() for _ in range(3)] == [Head(201, [(b"a", b"b")], "r1"), b"onetwoend", None]


async def test_waiting_front_receives_each_part() -> None:
    exchange = Exchange(b"body", "r1")
    app = asyncio.create_task(answer(exchange.receive, exchange.send))
    parts = []
    while (part := await exchange.next()) is not None:
        parts.append(part)
    await app
    assert isinstance(parts[0], Head)
    assert b"".join(cast(list[bytes], parts[1:])) == b"onetwoend"


async def test_reply_ends_if_the_application_sends_nothing() -> None:
    exchange = Exchange(b"body", "r1")
    exchange.end()
    assert await exchange.next() is None


async def test_leave_is_received_as_a_disconnect() -> None:
    exchange = Exchange(b"body", "r1")
    assert (await exchange.receive())["type"] == "http.request"
    waiting = asyncio.ensure_future(cast("asyncio.Future[Message]", exchange.receive()))
    exchange.disconnect()
    assert await waiting == {"type": "http.disconnect"}


async def test_send_waits_while_too_many_bytes_wait() -> None:
    exchange = Exchange(b"body", "r1")
    much: Message = {"type": "http.response.body", "body": bytes(MAX_WAITING + 1), "more_body": True}
    sending = asyncio.create_task(exchange.send(much))
    await asyncio.sleep(0)
    assert not sending.done()
    assert len(cast(bytes, await exchange.next())) == MAX_WAITING + 1
    await sending
    sending = asyncio.create_task(exchange.send(much))
    await asyncio.sleep(0)
    exchange.disconnect()  # the front reads no more
    await sending


def test_scope_for_a_replica_can_be_pickled_and_has_the_local_path() -> None:
    fields = {"method": "POST", "query_string": b"a=1", "client": ("127.0.0.1", 1), "server": None, "scheme": "https"}
    scope = portable({**fields, "path": "/llm/v1/x", "router": lambda: None}, "/v1/x", [(b"host", b"h")])
    assert pickle.loads(pickle.dumps(scope)) == scope
    assert {**scope, **fields} == scope
    assert (scope["type"], scope["path"], scope["raw_path"]) == ("http", "/v1/x", b"/v1/x")
    assert scope["headers"] == [(b"host", b"h")]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/completion", "/v1/messages", "/v1/responses", "/api/chat"])
def test_stream_of_a_lost_replica_ends_with_an_error(path: str) -> None:
    headers = [(b"content-type", b"application/x-ndjson")] if path == "/api/chat" else EVENTS
    *_, data = final_event(path, headers).decode().strip().split("data: ")
    assert ReplicaLost().message in data


def test_reply_without_stream_of_a_lost_replica_is_truncated() -> None:
    assert final_event("/v1/models", [(b"content-type", b"application/json")]) == b""


KEY = (b"authorization", b"Bearer sk-valid")
CHUNK = bytes(16 * 1024)
N_CHUNKS = 64  # a body of 1 MiB


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import the front, with fake Ray modules if Ray is not installed."""
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
    def __init__(self, body: bytes, status: int) -> None:
        self.parts: list[Head | bytes] = [Head(status, [], "r1"), str(len(body)).encode()]

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if not self.parts:
            raise StopAsyncIteration
        return self.parts.pop(0)

    def cancel(self) -> None:
        """Do nothing."""


class _Replicas:
    """A handle of replicas with one API key, which is checked like in the server."""

    def __init__(self) -> None:
        self.n_key_checks = 0
        self.knows = _Method(self._knows)
        self.answer = _Method(lambda scope, body, _: _Parts(body, 200 if KEY in scope["headers"] else 401))

    def options(self, *, stream: bool) -> "_Replicas":
        assert stream
        return self

    async def _knows(self, headers: list[tuple[bytes, bytes]]) -> bool:
        self.n_key_checks += 1
        return KEY in headers


class _Client:
    """A client that sends a body of `n_chunks`. `n_read` counts the chunks that were read."""

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


async def test_long_body_without_a_valid_key_is_not_read_completely(front: Any) -> None:
    client, replicas = _Client(N_CHUNKS, (b"authorization", b"Bearer sk-wrong")), _Replicas()
    assert await reply(front, client, replicas) == (401, b"0")
    assert client.n_read * len(CHUNK) <= 64 * 1024 + len(CHUNK)


@pytest.mark.parametrize(("n_chunks", "n_key_checks"), [(N_CHUNKS, 1), (2, 0)])
async def test_key_is_checked_before_a_long_body_is_read(front: Any, n_chunks: int, n_key_checks: int) -> None:
    client, replicas = _Client(n_chunks, KEY), _Replicas()
    assert await reply(front, client, replicas) == (200, str(n_chunks * len(CHUNK)).encode())
    assert replicas.n_key_checks == n_key_checks


TEXT = "You answer in rhyme. " * 40
A, B = Candidate("a", n_slots=4), Candidate("b", n_slots=4)


def body(**members: Any) -> bytes:
    return json.dumps(members).encode()


def test_aim_is_read_from_bodies_of_each_api() -> None:
    messages = [{"role": "user", "content": "Hello"}]
    assert aim_of(body(model="m", messages=messages)).model == "m"
    for members in (
        {"messages": messages},
        {"prompt": "Hello"},
        {"input": "Hello"},
        {"system": "Hello"},
        {"input_prefix": "Hello"},
        {"prompt": [{"prompt_string": "Hello"}]},
    ):
        assert "Hello" in aim_of(body(**members)).text
    assert aim_of(b"") == aim_of(b"[1]") == aim_of(b"{bad") == aim_of(b"[" * 100_000) == Aim()
    assert aim_of(b"", "one").replica == "one"


def test_pieces_of_a_chat_are_a_prefix_of_those_of_its_next_turn() -> None:
    first = [{"role": "system", "content": TEXT}, {"role": "user", "content": "One?"}]
    later = [*first, {"role": "assistant", "content": "1"}, {"role": "user", "content": "Two?"}]
    short, long = (pieces(aim_of(body(messages=messages))) for messages in (first, later))
    assert long[: len(short)] == short


def test_pieces_of_another_model_or_salt_are_different() -> None:
    known = set(pieces(aim_of(body(model="m", prompt=TEXT))))
    assert known
    assert known.isdisjoint(pieces(aim_of(body(model="n", prompt=TEXT))))
    assert known.isdisjoint(pieces(aim_of(body(model="m", prompt=TEXT, cache_salt="mine"))))


def test_request_goes_to_the_replica_that_received_its_prefix() -> None:
    placement = Placement()
    first, again, other = Aim("", TEXT + "One?"), Aim("", TEXT + "Two?"), Aim("", "Else. " * 50)
    assert placement.order(first, [A, B]) == ["a", "b"]
    placement.sent(first, "a")
    assert placement.known(again, ["a", "b"]) == {"a": len(TEXT) // PIECE * PIECE, "b": 0}
    assert placement.order(again, [A, B]) == ["a", "b"]
    assert placement.order(other, [A, B]) == ["b", "a"]  # of equal ones, the one that received fewer


def test_short_prefix_does_not_outweigh_a_busy_replica() -> None:
    placement = Placement()
    aim = Aim("", TEXT)
    placement.sent(aim, "a")
    idle, busy = Candidate("a", n_requests=2, n_slots=4), Candidate("a", n_requests=12, n_slots=4)
    assert placement.order(aim, [idle, B]) == ["a", "b"]
    assert placement.order(aim, [busy, B]) == ["b", "a"]


def test_request_goes_to_the_replica_that_has_the_model_in_memory() -> None:
    placement = Placement()
    idle, busy = Candidate("b", models=frozenset({"m"})), Candidate("b", n_requests=200, models=frozenset({"m"}))
    assert placement.order(Aim("m"), [A, idle]) == ["b", "a"]
    assert placement.order(Aim("m"), [A, busy]) == ["a", "b"]
    placement.sent(Aim("n"), "b")  # it loads there now, before the replica reports it
    assert placement.order(Aim("n"), [A, B]) == ["b", "a"]
    assert placement.order(Aim(""), [A, B]) == ["a", "b"]


def test_prefixes_of_a_lost_replica_are_removed() -> None:
    placement = Placement()
    placement.sent(Aim("m", TEXT), "a")
    placement.keep(["b"])
    placement.keep(["b", "a"])
    assert placement.known(Aim("m", TEXT), ["a", "b"]) == {"a": 0, "b": 0}


def test_named_replica_is_the_only_candidate() -> None:
    assert Placement().order(Aim(replica="b"), [A, B]) == ["b"]
    assert Placement().order(Aim(replica="gone"), [A, B]) == []


def test_number_of_remembered_pieces_is_limited() -> None:
    placement = Placement(max_pieces=10)
    long = Aim("", "x" * (PIECE * 30))
    placement.sent(long, "a")
    assert placement.known(long, ["a"]) == {"a": 10 * PIECE}  # the first pieces: later ones are useless without them


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(1, 6)), max_size=30))
def test_order_contains_each_replica_once(sent: list[tuple[int, str, int]]) -> None:
    placement = Placement(max_pieces=20)
    candidates = [Candidate(id_, n_requests=n) for n, id_ in enumerate("abc")]
    for topic, replica, length in sent:
        aim = Aim(str(topic), f"{topic}" * PIECE * length)
        assert sorted(placement.order(aim, candidates)) == ["a", "b", "c"]
        placement.sent(aim, replica)
        assert placement.known(aim, [replica])[replica] == length * PIECE
        assert length * PIECE < LOAD
