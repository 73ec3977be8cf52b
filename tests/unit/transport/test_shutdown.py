import asyncio
import signal
from collections.abc import Iterator

import pytest
import uvicorn

from server.transport.shutdown import StopSignals


@pytest.fixture
def uvicorn_server() -> Iterator[uvicorn.Server]:
    """A server whose signal handlers are installed, as while it serves."""
    server = uvicorn.Server(uvicorn.Config(lambda: None))
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in old:
        signal.signal(number, server.handle_exit)
    yield server
    for number, handler in old.items():
        signal.signal(number, handler)


async def test_the_first_signal_drains_and_reaches_uvicorn(uvicorn_server):
    begun = asyncio.Event()
    StopSignals(begun.set).install()
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(begun.wait(), 60)
    assert uvicorn_server.should_exit


async def test_the_second_signal_ends_the_process_whichever_it_is(uvicorn_server, monkeypatch):
    monkeypatch.setattr("logging.shutdown", lambda: None)
    begun, ended = asyncio.Event(), []
    StopSignals(begun.set, ended.append).install()
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(begun.wait(), 60)
    assert ended == []
    signal.raise_signal(signal.SIGINT)
    assert ended == [128 + signal.SIGINT]


async def test_without_uvicorn_no_handler_is_touched():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    StopSignals(lambda: None).install()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
