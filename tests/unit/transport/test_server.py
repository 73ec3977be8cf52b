import asyncio
import signal
from collections.abc import Iterator

import pytest
import uvicorn

from server.transport.server import StopSignals, on_hangup, serving


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


@pytest.mark.parametrize(("delay_s", "second"), [(0, signal.SIGINT), (3600, signal.SIGTERM)])
async def test_the_second_signal_ends_the_process_whichever_it_is_even_within_the_delay(
    uvicorn_server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch, delay_s: float, second: int
) -> None:
    monkeypatch.setattr("logging.shutdown", lambda: None)
    begun = asyncio.Event()
    ended: list[int] = []
    StopSignals(begun.set, ended.append, delay_s=delay_s).install()
    signal.raise_signal(signal.SIGTERM)
    if not delay_s:
        await asyncio.wait_for(begun.wait(), 60)
    assert ended == []
    signal.raise_signal(second)
    assert ended == [128 + second]


async def test_ctrl_c_does_not_wait(uvicorn_server: uvicorn.Server) -> None:
    begun = asyncio.Event()
    StopSignals(begun.set, delay_s=3600).install()
    signal.raise_signal(signal.SIGINT)
    await asyncio.wait_for(begun.wait(), 60)
    assert uvicorn_server.should_exit


async def test_the_serving_uvicorn_is_found_behind_its_handlers(uvicorn_server: uvicorn.Server) -> None:
    assert serving() is uvicorn_server
    StopSignals(lambda: None).install()
    assert serving() is uvicorn_server


@pytest.mark.parametrize("terminal", [True, False])
async def test_sighup_reloads_where_no_terminal_means_its_end_by_it(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr("server.transport.server._has_terminal", lambda: terminal)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    heard = asyncio.Event()
    assert on_hangup(heard.set) is not terminal
    if not terminal:
        assert not on_hangup(heard.set)  # somebody has it
        signal.raise_signal(signal.SIGHUP)
        await asyncio.wait_for(heard.wait(), 60)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
    signal.signal(signal.SIGHUP, before)
