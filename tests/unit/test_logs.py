"""Log lines as text and JSON, the logging configuration, and log files that logrotate moves."""

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
def test_verbosity_selects_a_log_level(verbosity: int, level: int) -> None:
    assert level_of(verbosity) == level


def test_text_lines_follow_prefix_color_and_timestamp_options() -> None:
    ready = record("ready: %s", "demo")

    def line(**options: bool) -> str:
        return LineFormatter(partial(PLAIN, **options)).format(ready)

    assert line() == "I pool: ready: demo"
    assert line(prefix=False) == "ready: demo"
    assert line(colors=True) == "\x1b[32mI\x1b[0m pool: ready: demo"
    assert line(timestamps=True).endswith(" I pool: ready: demo")
    time, _, rest = line(timestamps=True, prefix=False).partition(",")
    assert time == logging.Formatter().formatTime(ready).partition(",")[0]
    assert rest.endswith(" ready: demo")


def test_banner_lines_have_no_timestamp_on_a_terminal() -> None:
    banner = record("  try", name="server.startup_banner", bare=True)
    render = partial(as_text, prefix=True, timestamps=True, colors=False)
    assert LineFormatter(partial(render, screen=True)).format(banner) == "  try"
    assert LineFormatter(partial(render, screen=False)).format(banner).endswith(" I startup_banner:   try")


def test_fields_of_a_record_follow_its_message() -> None:
    with_fields = record("late", request="a-1", key="Ada L", model=None)
    assert LineFormatter(PLAIN).format(with_fields) == 'I pool: late request=a-1 key="Ada L"'
    assert "\n" not in LineFormatter(PLAIN).format(record("late", key="x\ny"))


def test_log_lines_name_the_current_request() -> None:
    token = REQUEST_ID.set("a-2")
    assert LineFormatter(PLAIN).format(record("late")) == "I pool: late request=a-2"
    assert LineFormatter(PLAIN).format(record("late", request="b")) == "I pool: late request=b"
    REQUEST_ID.reset(token)
    assert LineFormatter(PLAIN).format(record("late")) == "I pool: late"


def test_json_lines_contain_fields_and_the_traceback(exc_info: Any) -> None:
    late = record("%s is late", "demo", level=logging.WARNING, request="a-1", slot=3, exc_info=exc_info)
    parsed = json.loads(LineFormatter(as_json).format(late))
    assert (parsed["type"], parsed["level"], parsed["origin"]) == ("log", "W", "pool")
    assert parsed["msg"].startswith("demo is late\nTraceback")
    assert (parsed["request"], parsed["slot"], parsed["time"]) == ("a-1", 3, late.created)
    formatters = log_config(ServerSettings(log_jsonl=True))["formatters"]
    assert all(each["render"] is as_json for each in formatters.values())


def test_tracebacks_follow_their_line_once(exc_info: Any) -> None:
    text = LineFormatter(PLAIN).format(record("late", request="a-1", exc_info=exc_info))
    assert text.startswith("I pool: late request=a-1\nTraceback")
    assert text.count("ValueError: bad") == 1


@pytest.mark.parametrize("stderr", [sys.stderr, None])
def test_log_configuration_has_the_handlers_of_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: object
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    with_file = log_config(ServerSettings(log_file=tmp_path / "log"))
    assert set(with_file["handlers"]) == {"terminal", "file"}
    assert with_file["loggers"]["server"]["level"] == logging.INFO
    assert set(log_config(ServerSettings(log_disable=True))["handlers"]) == {"none"}
    logging.config.DictConfigurator(log_config(ServerSettings(log_colors="on")))


@pytest.mark.parametrize("disabled", [False, True])
def test_audit_log_ignores_log_disable_and_verbosity(tmp_path: Path, disabled: bool) -> None:
    settings = ServerSettings(audit_log=tmp_path / "audit", log_disable=disabled, verbosity=0)
    logger = log_config(settings)["loggers"]["server.audit"]
    assert logger == {"level": logging.INFO, "handlers": ["audit"], "propagate": False}


def logger_to(path: Path) -> tuple[logging.Logger, logging.Handler]:
    """Return a logger that writes to `path` like the server's loggers, and its handler, which the caller closes."""
    config = log_config(ServerSettings(log_file=path, log_prefix=False, log_timestamps=False))
    configurator = logging.config.DictConfigurator(config)
    formatters = config["formatters"].items()
    configurator.config["formatters"] = {name: configurator.configure_formatter(each) for name, each in formatters}
    handler = configurator.configure_handler(config["handlers"]["file"])
    logger = logging.Logger("rotated")
    logger.addHandler(handler)
    return logger, handler


@pytest.mark.parametrize("moves", [True, False])
def test_logging_continues_at_the_path_after_logrotate_moves_or_truncates_it(tmp_path: Path, moves: bool) -> None:
    log = tmp_path / "log"
    logger, handler = logger_to(log)
    logger.warning("first")
    if moves:
        log.rename(tmp_path / "log.1")
    else:
        os.truncate(log, 0)
    logger.warning("second")
    handler.close()
    assert log.read_bytes() == b"second\n"
    assert not moves or (tmp_path / "log.1").read_bytes() == b"first\n"
