"""Signals: the first one drains, the second one ends the process, SIGHUP reloads or drains."""

import asyncio
import signal
from collections.abc import Iterator

import pytest
import uvicorn

from server import uvicorn_config
from server.transport.early_signals import handle_early_signals
from server.transport.server import StopSignals, on_hangup, serving


@pytest.fixture
def uvicorn_server() -> Iterator[uvicorn.Server]:
    """Return a server with installed signal handlers, as while it serves."""
    server = uvicorn.Server(uvicorn.Config(lambda: None))
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in old:
        signal.signal(number, server.handle_exit)
    yield server
    for number, handler in old.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("delay_s", "second"), [(0, signal.SIGINT), (3600, signal.SIGTERM)])
async def test_second_signal_ends_the_process_even_within_the_delay(
    uvicorn_server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch, delay_s: float, second: int
) -> None:
    monkeypatch.setattr("logging.shutdown", lambda: None)
    draining = asyncio.Event()
    ended: list[int] = []
    StopSignals(draining.set, ended.append, delay_s=delay_s).install()
    signal.raise_signal(signal.SIGTERM)
    if not delay_s:
        await asyncio.wait_for(draining.wait(), 60)
    assert ended == []
    signal.raise_signal(second)
    assert ended == [128 + second]


async def test_ctrl_c_skips_the_delay(uvicorn_server: uvicorn.Server) -> None:
    draining = asyncio.Event()
    StopSignals(draining.set, delay_s=3600).install()
    signal.raise_signal(signal.SIGINT)
    await asyncio.wait_for(draining.wait(), 60)
    assert uvicorn_server.should_exit


async def test_serving_uvicorn_is_found_through_its_signal_handlers(uvicorn_server: uvicorn.Server) -> None:
    assert serving() is uvicorn_server
    StopSignals(lambda: None).install()
    assert serving() is uvicorn_server


@pytest.mark.parametrize("terminal", [True, False])
async def test_sighup_reloads_and_drains_with_a_terminal(
    uvicorn_server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr("server.transport.early_signals._has_terminal", lambda: terminal)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    reloaded, draining, ended = asyncio.Event(), asyncio.Event(), list[int]()
    StopSignals(draining.set, ended.append).install()
    on_hangup(reloaded.set)
    on_hangup(pytest.fail)  # there is a handler already
    signal.raise_signal(signal.SIGHUP)
    await asyncio.wait_for((draining if terminal else reloaded).wait(), 60)
    signal.raise_signal(signal.SIGHUP)  # a shell and the system may both send one
    assert (reloaded.is_set(), draining.is_set(), ended) == (not terminal, terminal, [])
    asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
    signal.signal(signal.SIGHUP, before)


async def test_sighup_during_the_start_reloads_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.transport.early_signals._has_terminal", lambda: False)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    handle_early_signals()
    signal.raise_signal(signal.SIGHUP)
    reloads: list[int] = []
    on_hangup(lambda: reloads.append(1))
    asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
    for number, handler in before.items():
        signal.signal(number, handler)
    assert reloads == [1]


async def test_idle_server_ticks_once_a_second_and_stops_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_config, "TICK_S", 3600.0)
    server = uvicorn_config.AdminServer(uvicorn.Config(lambda: None), [])
    server.config.load()
    running = asyncio.create_task(server.main_loop())
    await asyncio.sleep(0)
    assert dict(server.server_state.default_headers)[b"date"]
    server.handle_exit(signal.SIGTERM, None)
    async with asyncio.timeout(60):
        await running
