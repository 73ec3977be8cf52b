"""Replicas behind Ray: how requests and replies cross, what the front says where a replica ends, and placement."""

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

from llamapool.ray.crossing import MAX_WAITING, Exchange, Head, ReplicaLost, last_words, portable
from llamapool.ray.placement import LOAD, PIECE, Aim, Candidate, Placement, aim_of, pieces

EVENTS = [(b"Content-Type", b"text/event-stream; charset=utf-8")]


async def answer(receive: Receive, send: Send) -> None:
    assert (await receive())["body"] == b"body"
    await send({"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]})
    for part in (b"one", b"", b"two"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"end"})


async def test_a_reply_in_order_and_what_waits_in_one_piece() -> None:
    exchange = Exchange(b"body", "r1")
    await answer(exchange.receive, exchange.send)
    assert [await exchange.next() for _ in range(3)] == [Head(201, [(b"a", b"b")], "r1"), b"onetwoend", None]


async def test_the_front_gets_each_piece_that_it_waits_for() -> None:
    exchange = Exchange(b"body", "r1")
    app = asyncio.create_task(answer(exchange.receive, exchange.send))
    parts = []
    while (part := await exchange.next()) is not None:
        parts.append(part)
    await app
    assert isinstance(parts[0], Head)
    assert b"".join(cast(list[bytes], parts[1:])) == b"onetwoend"


async def test_an_application_that_says_nothing_ends_the_reply() -> None:
    exchange = Exchange(b"body", "r1")
    exchange.end()
    assert await exchange.next() is None


async def test_leaving_is_a_disconnect() -> None:
    exchange = Exchange(b"body", "r1")
    assert (await exchange.receive())["type"] == "http.request"
    waiting = asyncio.ensure_future(cast("asyncio.Future[Message]", exchange.receive()))
    exchange.leave()
    assert await waiting == {"type": "http.disconnect"}


async def test_who_sends_waits_for_who_is_slow() -> None:
    exchange = Exchange(b"body", "r1")
    much: Message = {"type": "http.response.body", "body": bytes(MAX_WAITING + 1), "more_body": True}
    sending = asyncio.create_task(exchange.send(much))
    await asyncio.sleep(0)
    assert not sending.done()
    assert len(cast(bytes, await exchange.next())) == MAX_WAITING + 1
    await sending
    sending = asyncio.create_task(exchange.send(much))
    await asyncio.sleep(0)
    exchange.leave()  # nobody will ask any more
    await sending


def test_the_scope_of_a_replica_can_be_pickled_and_has_its_own_path() -> None:
    given = {"method": "POST", "query_string": b"a=1", "client": ("127.0.0.1", 1), "server": None, "scheme": "https"}
    scope = portable({**given, "path": "/llm/v1/x", "router": lambda: None}, "/v1/x", [(b"host", b"h")])
    assert pickle.loads(pickle.dumps(scope)) == scope
    assert {**scope, **given} == scope
    assert (scope["type"], scope["path"], scope["raw_path"]) == ("http", "/v1/x", b"/v1/x")
    assert scope["headers"] == [(b"host", b"h")]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/completion", "/v1/messages", "/v1/responses", "/api/chat"])
def test_a_stream_whose_replica_has_ended_says_so(path: str) -> None:
    headers = [(b"content-type", b"application/x-ndjson")] if path == "/api/chat" else EVENTS
    *_, data = last_words(path, headers).decode().strip().split("data: ")
    assert ReplicaLost().message in data


def test_what_is_no_stream_is_cut_off() -> None:
    assert last_words("/v1/models", [(b"content-type", b"application/json")]) == b""


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
    def __init__(self, body: bytes, status: int) -> None:
        self.parts: list[Head | bytes] = [Head(status, [], "r1"), str(len(body)).encode()]

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
        self.answer = _Method(lambda scope, body, _: _Parts(body, 200 if KEY in scope["headers"] else 401))

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


@pytest.mark.parametrize(("n_chunks", "n_asked"), [(N_CHUNKS, 1), (2, 0)])
async def test_a_long_body_costs_a_question_and_arrives_whole(front: Any, n_chunks: int, n_asked: int) -> None:
    client, replicas = _Client(n_chunks, KEY), _Replicas()
    assert await reply(front, client, replicas) == (200, str(n_chunks * len(CHUNK)).encode())
    assert replicas.n_asked == n_asked


TEXT = "You answer in rhyme. " * 40
A, B = Candidate("a", n_slots=4), Candidate("b", n_slots=4)


def body(**members: Any) -> bytes:
    return json.dumps(members).encode()


def test_the_aim_of_each_api() -> None:
    said = [{"role": "user", "content": "Hello"}]
    assert aim_of(body(model="m", messages=said)).model == "m"
    for members in (
        {"messages": said},
        {"prompt": "Hello"},
        {"input": "Hello"},
        {"system": "Hello"},
        {"input_prefix": "Hello"},
        {"prompt": [{"prompt_string": "Hello"}]},
    ):
        assert "Hello" in aim_of(body(**members)).text
    assert aim_of(b"") == aim_of(b"[1]") == aim_of(b"{bad") == aim_of(b"[" * 100_000) == Aim()
    assert aim_of(b"", "one").replica == "one"


def test_what_is_said_later_changes_nothing_of_the_beginning() -> None:
    first = [{"role": "system", "content": TEXT}, {"role": "user", "content": "One?"}]
    later = [*first, {"role": "assistant", "content": "1"}, {"role": "user", "content": "Two?"}]
    short, long = (pieces(aim_of(body(messages=messages))) for messages in (first, later))
    assert long[: len(short)] == short


def test_a_salt_or_another_model_knows_nothing() -> None:
    known = set(pieces(aim_of(body(model="m", prompt=TEXT))))
    assert known
    assert known.isdisjoint(pieces(aim_of(body(model="n", prompt=TEXT))))
    assert known.isdisjoint(pieces(aim_of(body(model="m", prompt=TEXT, cache_salt="mine"))))


def test_a_known_beginning_is_gone_back_to() -> None:
    placement = Placement()
    first, again, other = Aim("", TEXT + "One?"), Aim("", TEXT + "Two?"), Aim("", "Else. " * 50)
    assert placement.order(first, [A, B]) == ["a", "b"]
    placement.sent(first, "a")
    assert placement.known(again, ["a", "b"]) == {"a": len(TEXT) // PIECE * PIECE, "b": 0}
    assert placement.order(again, [A, B]) == ["a", "b"]
    assert placement.order(other, [A, B]) == ["b", "a"]  # of equals the one that was sent less


def test_nobody_waits_long_for_a_short_beginning() -> None:
    placement = Placement()
    aim = Aim("", TEXT)
    placement.sent(aim, "a")
    few, many = Candidate("a", n_requests=2, n_slots=4), Candidate("a", n_requests=12, n_slots=4)
    assert placement.order(aim, [few, B]) == ["a", "b"]
    assert placement.order(aim, [many, B]) == ["b", "a"]


def test_a_model_is_asked_where_it_is_in_memory() -> None:
    placement = Placement()
    has, busy = Candidate("b", models=frozenset({"m"})), Candidate("b", n_requests=200, models=frozenset({"m"}))
    assert placement.order(Aim("m"), [A, has]) == ["b", "a"]
    assert placement.order(Aim("m"), [A, busy]) == ["a", "b"]
    placement.sent(Aim("n"), "b")  # where it is being loaded now, though nobody has told yet
    assert placement.order(Aim("n"), [A, B]) == ["b", "a"]
    assert placement.order(Aim(""), [A, B]) == ["a", "b"]


def test_what_a_lost_replica_knew_is_forgotten() -> None:
    placement = Placement()
    placement.sent(Aim("m", TEXT), "a")
    placement.keep(["b"])
    placement.keep(["b", "a"])
    assert placement.known(Aim("m", TEXT), ["a", "b"]) == {"a": 0, "b": 0}


def test_one_that_is_named_or_nobody() -> None:
    assert Placement().order(Aim(replica="b"), [A, B]) == ["b"]
    assert Placement().order(Aim(replica="gone"), [A, B]) == []


def test_no_more_is_remembered_than_the_bound() -> None:
    placement = Placement(most=10)
    long = Aim("", "x" * (PIECE * 30))
    placement.sent(long, "a")
    assert placement.known(long, ["a"]) == {"a": 10 * PIECE}  # the beginning, without which the end is of no use


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(1, 6)), max_size=30))
def test_every_replica_is_in_every_order_once(sent: list[tuple[int, str, int]]) -> None:
    placement = Placement(most=20)
    candidates = [Candidate(id_, n_requests=n) for n, id_ in enumerate("abc")]
    for topic, replica, length in sent:
        aim = Aim(str(topic), f"{topic}" * PIECE * length)
        assert sorted(placement.order(aim, candidates)) == ["a", "b", "c"]
        placement.sent(aim, replica)
        assert placement.known(aim, [replica])[replica] == length * PIECE
        assert length * PIECE < LOAD
