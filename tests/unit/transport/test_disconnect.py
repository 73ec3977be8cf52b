import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from server.transport.sse import while_connected


def request(messages: asyncio.Queue[Message]) -> Request:
    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, messages.get)


async def test_the_result_is_given_while_the_client_stays() -> None:
    async def work() -> int:
        return 7

    assert await while_connected(request(asyncio.Queue()), work()) == 7


class Endless:
    """Work that goes on until it is cancelled."""

    def __init__(self) -> None:
        self.started, self.ended = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        try:
            self.started.set()
            await asyncio.Event().wait()
        finally:
            self.ended.set()


async def test_a_disconnect_ends_the_work_before_it_is_reported() -> None:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    work = Endless()
    task = asyncio.create_task(while_connected(request(messages), work.run()))
    await work.started.wait()
    messages.put_nowait({"type": "http.disconnect"})
    with pytest.raises(ClientDisconnect):
        await task
    assert work.ended.is_set()
