"""The head of a reply is sent together with what follows it."""

import asyncio
from typing import Any, cast

from server.transport.server import OneWrite

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Sent:
    """A transport that keeps what it is given; "closed" at its end."""

    def __init__(self) -> None:
        self.sent: list[bytes | str] = []
        self.write = self.sent.append

    def close(self) -> None:
        self.sent.append("closed")


async def test_a_short_reply_is_one_write() -> None:
    one = wrapped(below := Sent())
    one.write(HEAD)
    one.write(b"body")
    one.write(b"more")
    await asyncio.sleep(0)
    assert below.sent == [HEAD + b"body", b"more"]


async def test_a_head_alone_is_sent_in_the_same_turn() -> None:
    """The first event of a stream may come much later."""
    one = wrapped(below := Sent())
    one.write(HEAD)
    assert below.sent == []
    await asyncio.sleep(0)
    assert below.sent == [HEAD]
    one.write(b"event")
    assert below.sent == [HEAD, b"event"]


async def test_a_reply_without_a_body_is_sent_before_the_connection_closes() -> None:
    one = wrapped(below := Sent())
    one.write(HEAD)
    one.close()
    await asyncio.sleep(0)
    assert below.sent == [HEAD, "closed"]


def wrapped(transport: Sent) -> OneWrite:
    return OneWrite(cast("Any", transport))
