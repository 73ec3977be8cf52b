"""How a reply crosses from a replica to the front, and what the front says where a replica has ended."""

import asyncio
import json
from typing import cast

import pytest
from starlette.types import Message, Receive, Send

from llamapool.ray.crossing import MAX_WAITING, Exchange, Head, ReplicaLost, Sent, last_words

SENT = Sent("POST", "/v1/x", b"a=1", [(b"host", b"h")], b"body", ("127.0.0.1", 1), ("127.0.0.1", 2), "http")
EVENTS = [(b"Content-Type", b"text/event-stream; charset=utf-8")]


async def answer(receive: Receive, send: Send) -> None:
    assert (await receive())["body"] == b"body"
    await send({"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]})
    for part in (b"one", b"", b"two"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"end"})


async def test_a_reply_in_order_and_what_waits_in_one_piece() -> None:
    exchange = Exchange(SENT, "r1")
    await answer(exchange.receive, exchange.send)
    assert [await exchange.next() for _ in range(3)] == [Head(201, [(b"a", b"b")], "r1"), b"onetwoend", None]


async def test_the_front_gets_each_piece_that_it_waits_for() -> None:
    exchange = Exchange(SENT, "r1")
    app = asyncio.create_task(answer(exchange.receive, exchange.send))
    parts = []
    while (part := await exchange.next()) is not None:
        parts.append(part)
    await app
    assert isinstance(parts[0], Head)
    assert b"".join(cast(list[bytes], parts[1:])) == b"onetwoend"


async def test_an_application_that_says_nothing_ends_the_reply() -> None:
    exchange = Exchange(SENT, "r1")
    exchange.end()
    assert await exchange.next() is None


async def test_leaving_is_a_disconnect() -> None:
    exchange = Exchange(SENT, "r1")
    assert (await exchange.receive())["type"] == "http.request"
    waiting = asyncio.ensure_future(cast("asyncio.Future[Message]", exchange.receive()))
    exchange.leave()
    assert await waiting == {"type": "http.disconnect"}


async def test_who_sends_waits_for_who_is_slow() -> None:
    exchange = Exchange(SENT, "r1")
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


def test_the_scope_is_a_requests() -> None:
    scope = SENT.scope()
    assert (scope["type"], scope["method"], scope["path"], scope["query_string"]) == ("http", "POST", "/v1/x", b"a=1")
    assert scope["headers"] == [(b"host", b"h")]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/completion", "/v1/messages", "/v1/responses"])
def test_a_stream_whose_replica_has_ended_says_so(path: str) -> None:
    *_, data = last_words(path, EVENTS).decode().strip().split("data: ")
    said = json.loads(data)
    message = said.get("message") or said["error"]["message"]
    assert message == ReplicaLost().message


def test_lines_of_ollama_end_with_an_error() -> None:
    words = last_words("/api/chat", [(b"content-type", b"application/x-ndjson")])
    assert "ended" in json.loads(words)["error"]


def test_what_is_no_stream_is_cut_off() -> None:
    assert last_words("/v1/models", [(b"content-type", b"application/json")]) == b""
