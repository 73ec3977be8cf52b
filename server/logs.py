"""Configures `logging` from llama-server's --log-* and --verbosity, and formats the lines.

A line has the message and the record's ``extra``, preceded by the id of the current request (`REQUEST_ID`). As text
these fields follow the message as ``name=value``; as JSON they are keys of their own.
"""

import errno
import faulthandler
import json
import logging
import logging.config
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from server.errors import ConfigError
from server.options.server import LogSettings
from server.telemetry.record import REQUEST_ID

_LEVELS = (logging.ERROR, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)  # by verbosity
_LIBRARY_DEBUG = logging.DEBUG - 5  # what the native library says at its own debug level
_COLORS = {"D": "\033[2m", "I": "\033[32m", "W": "\033[35m", "E": "\033[31m", "C": "\033[1;31m"}
_RESET = "\033[0m"
BARE = "bare"
"""The mark (in ``extra``) of records that a terminal shows without time and level."""
_OURS = ("server", "llamapool", "uvicorn")
_NO_FIELDS = frozenset({*vars(logging.makeLogRecord({})), "taskName", "message", "asctime", "color_message", BARE})
_PLAIN = re.compile(r"[\w.,:;/@+*-]+")

Render = Callable[[logging.LogRecord, str], str]
"""Returns the line of a record. The text is that of its exception, "" without one."""


class LineFormatter(logging.Formatter):
    """Formats records by `as_text` or `as_json`."""

    def __init__(self, render: Render) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        return self._render(record, self.formatException(record.exc_info) if record.exc_info else record.exc_text or "")


def as_json(record: logging.LogRecord, exception: str) -> str:
    """Return a JSON object with llama-server's keys (llama.cpp common/log.cpp), the logger and the fields."""
    said = {"type": "log", "time": record.created, "level": record.levelname[0], "origin": _origin(record.name)}
    said["msg"] = f"{record.getMessage()}\n{exception}" if exception else record.getMessage()
    return json.dumps(said | _fields(record), ensure_ascii=False, default=str)


def as_text(
    record: logging.LogRecord, exception: str, *, prefix: bool, timestamps: bool, colors: bool, screen: bool
) -> str:
    """Return ``time level origin: message name=value ...`` with the configured parts; the level is its first letter.

    ``screen``: a terminal, where the startup banner has neither time nor level.
    """
    line, bare = record.getMessage(), screen and getattr(record, BARE, False)
    if prefix and not bare:
        letter = record.levelname[0]
        shown = f"{_COLORS.get(letter, '')}{letter}{_RESET}" if colors else letter
        line = f"{shown} {_origin(record.name)}: {line}"
    if timestamps and not bare:
        at = record.created
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))},{int(at % 1 * 1000):03d} {line}"
    line += "".join([f" {key}={_written(value)}" for key, value in _fields(record).items()])
    return f"{line}\n{exception}" if exception else line


def _written(value: object) -> str:
    """Return a value as logfmt writes it: as it is, or as a JSON string if it is not one word."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    extra = {key: value for key, value in vars(record).items() if key not in _NO_FIELDS and value is not None}
    request = REQUEST_ID.get()
    return {"request": request, **extra} if request else extra


def _origin(logger: str) -> str:
    return logger.removeprefix("server.").removesuffix(".error")  # uvicorn logs everything as "uvicorn.error"


def on_terminal() -> bool:
    """Return whether standard error, which may be closed, is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def configure(settings: LogSettings) -> None:
    """Log as `settings` say, and the stacks of all threads if native code crashes.

    Raises ConfigError when the log file cannot be opened.
    """
    if sys.stderr is not None and not faulthandler.is_enabled():
        faulthandler.enable(2)
    try:
        logging.config.dictConfig(log_config(settings))
    except ValueError as error:  # dictConfig's wrapping of what the file handler raised
        reason = error.__cause__ or error
        name = "audit_log" if "'audit'" in str(error) else "log_file"
        raise ConfigError(f"server.{name}: {getattr(settings, name)}: {reason}; check the path") from None


def check_log_files(settings: LogSettings) -> None:
    """Raise ConfigError for a log file that cannot be written. Opens and creates none."""
    for name in ["audit_log"] if settings.log_disable else ["audit_log", "log_file"]:
        path = getattr(settings, name)
        if path is None:
            continue
        if not os.path.isdir(path.parent):
            code = errno.ENOENT
        elif os.path.isdir(path):
            code = errno.EISDIR
        else:
            code = 0 if os.access(path if os.path.exists(path) else path.parent, os.W_OK) else errno.EACCES
        if code:
            raise ConfigError(f"server.{name}: {path}: {os.strerror(code)}; check the path")


def log_config(settings: LogSettings) -> dict[str, Any]:
    """Return the argument of `logging.config.dictConfig`, which opens the log files.

    Log rotation may move or truncate a file while it is written. The audit log is a file of its own, at every
    verbosity; without one its lines are dropped.
    """
    is_terminal = on_terminal()
    text = partial(as_text, prefix=settings.log_prefix, timestamps=settings.log_timestamps)
    colors = settings.log_colors == "on" or (settings.log_colors == "auto" and is_terminal)
    renderers = {
        "terminal": as_json if settings.log_jsonl else partial(text, colors=colors, screen=is_terminal),
        "file": as_json if settings.log_jsonl else partial(text, colors=False, screen=False),
        "audit": as_json,
    }
    level = logging.CRITICAL if settings.log_disable else level_of(settings.verbosity)
    handlers: dict[str, Any] = {"terminal": {"class": "logging.StreamHandler", "formatter": "terminal"}}
    if settings.log_disable:
        handlers = {"none": {"class": "logging.NullHandler"}}
    elif settings.log_file is not None:
        handlers["file"] = _file_handler(settings.log_file, "file")
    root = {"level": max(level, logging.WARNING), "handlers": list(handlers)}
    loggers: dict[str, Any] = {name: {"level": level} for name in _OURS}
    loggers["uvicorn.access"] = {"level": logging.CRITICAL}  # `transport.middleware` writes the access log
    loggers["server.audit"] = {"level": logging.CRITICAL}
    if settings.audit_log is not None:
        handlers["audit"] = _file_handler(settings.audit_log, "audit")
        loggers["server.audit"] = {"level": logging.INFO, "handlers": ["audit"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {name: {"()": LineFormatter, "render": render} for name, render in renderers.items()},
        "handlers": handlers,
        "loggers": loggers,
        "root": root,
    }


def _file_handler(path: Path, formatter: str) -> dict[str, Any]:
    """Return the configuration of a handler that reopens the file after a rotation."""
    handler = {"class": "logging.handlers.WatchedFileHandler", "formatter": formatter, "encoding": "utf-8"}
    return handler | {"filename": str(path)}


def level_of(verbosity: int) -> int:
    """Return the level of `logging` for llama-server's --verbosity (llama.cpp common/log.h)."""
    return _LEVELS[verbosity] if verbosity < len(_LEVELS) else _LIBRARY_DEBUG
