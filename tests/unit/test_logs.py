import json
import logging
import logging.config
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from server.logs import LineFormatter, as_json, as_text, level_of, log_config
from server.options.server import VERBOSITY_ALL, ServerSettings
from server.telemetry.record import REQUEST_ID

PLAIN = partial(as_text, prefix=True, timestamps=False, colors=False, screen=False)


def record(message: str, *args: object, name: str = "server.pool", level: int = logging.INFO, **extra: Any) -> Any:
    made = logging.LogRecord(name, level, "", 0, message, args, None)
    made.__dict__.update(extra)
    return made


@pytest.fixture
def exc_info() -> Any:
    try:
        raise ValueError("bad")
    except ValueError:
        return sys.exc_info()


@pytest.mark.parametrize(
    ("verbosity", "level"),
    [
        (0, logging.ERROR),
        (2, logging.WARNING),
        (3, logging.INFO),
        (4, logging.DEBUG),
        (VERBOSITY_ALL, logging.DEBUG - 5),
    ],
)
def test_verbosity_is_a_level(verbosity: int, level: int) -> None:
    assert level_of(verbosity) == level


def test_lines_are_as_configured() -> None:
    ready = record("ready: %s", "demo")

    def line(**how: bool) -> str:
        return LineFormatter(partial(PLAIN, **how)).format(ready)

    assert line() == "I pool: ready: demo"
    assert line(prefix=False) == "ready: demo"
    assert line(colors=True) == "\x1b[32mI\x1b[0m pool: ready: demo"
    assert line(timestamps=True).endswith(" I pool: ready: demo")
    time, _, rest = line(timestamps=True, prefix=False).partition(",")
    assert time == logging.Formatter().formatTime(ready).partition(",")[0]
    assert rest.endswith(" ready: demo")


def test_the_first_screen_has_no_time_on_a_terminal() -> None:
    screen = record("  try", name="server.startup_banner", bare=True)
    how = partial(as_text, prefix=True, timestamps=True, colors=False)
    assert LineFormatter(partial(how, screen=True)).format(screen) == "  try"
    assert LineFormatter(partial(how, screen=False)).format(screen).endswith(" I startup_banner:   try")


def test_what_a_line_is_about_follows_its_message() -> None:
    about = record("late", request="a-1", key="Ada L", model=None)
    assert LineFormatter(PLAIN).format(about) == 'I pool: late request=a-1 key="Ada L"'
    assert "\n" not in LineFormatter(PLAIN).format(record("late", key="x\ny"))


def test_the_request_at_hand_is_named_without_a_word() -> None:
    token = REQUEST_ID.set("a-2")
    assert LineFormatter(PLAIN).format(record("late")) == "I pool: late request=a-2"
    assert LineFormatter(PLAIN).format(record("late", request="b")) == "I pool: late request=b"  # said is said
    REQUEST_ID.reset(token)
    assert LineFormatter(PLAIN).format(record("late")) == "I pool: late"


def test_json_lines(exc_info: Any) -> None:
    late = record("%s is late", "demo", level=logging.WARNING, request="a-1", slot=3, exc_info=exc_info)
    said = json.loads(LineFormatter(as_json).format(late))
    assert (said["type"], said["level"], said["origin"]) == ("log", "W", "pool")
    assert said["msg"].startswith("demo is late\nTraceback")
    assert (said["request"], said["slot"], said["time"]) == ("a-1", 3, late.created)
    formatters = log_config(ServerSettings(log_jsonl=True))["formatters"]
    assert all(each["render"] is as_json for each in formatters.values())


def test_a_traceback_follows_the_line_once(exc_info: Any) -> None:
    text = LineFormatter(PLAIN).format(record("late", request="a-1", exc_info=exc_info))
    assert text.startswith("I pool: late request=a-1\nTraceback")
    assert text.count("ValueError: bad") == 1


@pytest.mark.parametrize("stderr", [sys.stderr, None])
def test_the_log_configuration_has_a_file_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: object
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    with_file = log_config(ServerSettings(log_file=tmp_path / "log"))
    assert set(with_file["handlers"]) == {"terminal", "file"}
    assert with_file["loggers"]["server"]["level"] == logging.INFO
    assert set(log_config(ServerSettings(log_disable=True))["handlers"]) == {"none"}
    logging.config.DictConfigurator(log_config(ServerSettings(log_colors="on")))


@pytest.mark.parametrize("disabled", [False, True])
def test_the_audit_log_is_a_file_of_its_own(tmp_path: Path, disabled: bool) -> None:
    settings = ServerSettings(audit_log=tmp_path / "audit", log_disable=disabled, verbosity=0)
    logger = log_config(settings)["loggers"]["server.audit"]
    assert logger == {"level": logging.INFO, "handlers": ["audit"], "propagate": False}


def lines_to(path: Path) -> tuple[logging.Logger, logging.Handler]:
    """A logger that writes into `path` as the server's do, and its handler, which is to be closed."""
    config = log_config(ServerSettings(log_file=path, log_prefix=False, log_timestamps=False))
    maker = logging.config.DictConfigurator(config)
    maker.config["formatters"] = {n: maker.configure_formatter(f) for n, f in config["formatters"].items()}
    handler = maker.configure_handler(config["handlers"]["file"])
    logger = logging.Logger("rotated")
    logger.addHandler(handler)
    return logger, handler


@pytest.mark.parametrize("moves", [True, False])
def test_a_file_that_logrotate_moves_or_truncates_begins_again(tmp_path: Path, moves: bool) -> None:
    log = tmp_path / "log"
    logger, handler = lines_to(log)
    logger.warning("first")
    if moves:
        log.rename(tmp_path / "log.1")
    else:
        os.truncate(log, 0)
    logger.warning("second")
    handler.close()
    assert log.read_bytes() == b"second\n"
    assert not moves or (tmp_path / "log.1").read_bytes() == b"first\n"
