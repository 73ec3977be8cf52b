import io
import itertools
import logging

import pytest

from server.pool.events import DownloadEnded, DownloadProgress, FanOut, LoadProgress, StatusChanged, show_load_progress
from server.pool.protocols import FileProgress
from server.pool.state import Status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def shown(stream: io.StringIO) -> str:
    fan_out = FanOut()
    events = fan_out.subscribe()
    fan_out.publish(StatusChanged("demo", Status.LOADING, Status.UNLOADED))
    fan_out.publish(LoadProgress("demo", 0.25))
    fan_out.publish(LoadProgress("demo", 1.0))
    fan_out.publish(StatusChanged("demo", Status.READY, Status.LOADING))
    fan_out.publish(LoadProgress("other", 0.5))
    fan_out.close()
    await show_load_progress(events, stream)
    return stream.getvalue()


async def test_a_terminal_shows_a_bar_for_each_loading_model() -> None:
    text = await shown(Terminal())
    assert "loading demo" in text
    assert "25%" in text
    assert "loading other" in text


async def test_anything_else_than_a_terminal_shows_no_bar() -> None:
    assert await shown(io.StringIO()) == ""


async def test_without_a_terminal_a_long_load_is_told_in_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    fan_out = FanOut()
    events = fan_out.subscribe()
    for percent in range(0, 100, 10):
        fan_out.publish(LoadProgress("demo", percent / 100))
    fan_out.publish(StatusChanged("demo", Status.READY, Status.LOADING))
    fan_out.publish(LoadProgress("demo", 0.0))
    fan_out.close()
    times = itertools.count(0.0, 4.0)
    with caplog.at_level(logging.INFO):
        await show_load_progress(events, io.StringIO(), clock=lambda: next(times))
    assert caplog.messages == ["loading 'demo': 30%", "loading 'demo': 60%", "loading 'demo': 90%"]


async def test_a_download_has_a_bar_in_bytes_or_lines_in_mebibytes(caplog: pytest.LogCaptureFixture) -> None:
    for stream in (Terminal(), io.StringIO()):
        fan_out = FanOut()
        events = fan_out.subscribe()
        fan_out.publish(StatusChanged("demo", Status.DOWNLOADING, Status.UNLOADED))
        for done in range(1, 5):
            files = (FileProgress("u/a", done << 20, 4 << 20), FileProgress("u/b", 0, 4 << 20))
            fan_out.publish(DownloadProgress("demo", files))
        fan_out.publish(DownloadEnded("demo", ok=True))
        fan_out.publish(StatusChanged("demo", Status.UNLOADED, Status.DOWNLOADING))
        fan_out.close()
        times = itertools.count(0.0, 6.0)
        with caplog.at_level(logging.INFO):
            await show_load_progress(events, stream, clock=lambda times=times: next(times))  # type: ignore[misc]
        if stream.isatty():
            assert "fetching demo" in stream.getvalue()
            assert "50%" in stream.getvalue()
    assert caplog.messages == ["fetching 'demo': 3 of 8 MiB"]
