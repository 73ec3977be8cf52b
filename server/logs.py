"""How the process logs: llama-server's --log-* and --verbosity, as a configuration of `logging`.

Everything that logs does so through `logging`; structlog writes the lines, with what the emitter gave as ``extra`` and
what is bound to its context (`structlog.contextvars`): the id of the request at hand. As text these follow the
message as ``name=value``, as JSON they are keys of their own.
"""

import json
import logging
import logging.config
import re
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from structlog.contextvars import merge_contextvars
from structlog.processors import ExceptionRenderer
from structlog.stdlib import ExtraAdder, ProcessorFormatter
from structlog.typing import EventDict, WrappedLogger

from server.errors import ConfigError
from server.options.server import LogSettings

_ERRORS_ONLY, _WARNINGS, _INFORMATION, _DEBUG = range(1, 5)
_LIBRARY_DEBUG = logging.DEBUG - 5  # what the native library says at its own debug level
_COLORS = {"D": "\033[2m", "I": "\033[32m", "W": "\033[35m", "E": "\033[31m", "C": "\033[1;31m"}
_RESET = "\033[0m"
NO_ADAPTERS = "bare"
"""The mark (in ``extra``) of records that a terminal shows without time and level."""
_OURS = ("server", "llamapool", "uvicorn")
_OWN = frozenset(
    {
        "event",
        "exception",
        "level",
        "origin",
        "time",
        NO_ADAPTERS,
        "message",
        "asctime",
        "color_message",
        "_record",
        "_from_structlog",
    }
)
_PLAIN = re.compile(r"[\w.,:;/@+*-]+")


def _with_origin(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Who says it, when (unix seconds) and how loud."""
    record: logging.LogRecord = event["_record"]
    event.update({"time": record.created, "level": record.levelname[0], "origin": _origin(record.name)})
    return event


def as_json(_: WrappedLogger, __: str, event: EventDict) -> str:
    """A JSON object with llama-server's keys (llama.cpp common/log.cpp), the origin, and what else there is to say."""
    message = str(event["event"])
    if "exception" in event:
        message += f"\n{event['exception']}"
    said = {"type": "log", **{key: event[key] for key in ("time", "level", "origin")}, "msg": message}
    return json.dumps(said | _fields(event), ensure_ascii=False, default=str)


def as_text(
    _: WrappedLogger, __: str, event: EventDict, *, prefix: bool, timestamps: bool, colors: bool, screen: bool
) -> str:
    """``time level origin: message name=value …``, the parts as configured; the level is its first letter.

    ``screen``: the output is a terminal, where the startup banner has neither.
    """
    line, bare = str(event["event"]), screen and event.get(NO_ADAPTERS, False)
    if prefix and not bare:
        letter = event["level"]
        shown = f"{_COLORS.get(letter, '')}{letter}{_RESET}" if colors else letter
        line = f"{shown} {event['origin']}: {line}"
    if timestamps and not bare:
        at = event["time"]
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))},{int(at % 1 * 1000):03d} {line}"
    fields = _fields(event)
    if fields:
        line += "".join([f" {key}={_written(value)}" for key, value in fields.items()])
    return f"{line}\n{event['exception']}" if "exception" in event else line


def _written(value: object) -> str:
    """A value as logfmt has it: as it is, or as a JSON string where that would not be one word."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _fields(event: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in _OWN and value is not None}


def _origin(logger: str) -> str:
    return logger.removeprefix("server.").removesuffix(".error")  # uvicorn logs everything as "uvicorn.error"


def configure(settings: LogSettings) -> None:
    """Log as `settings` say. Raises ConfigError when the log file cannot be opened."""
    try:
        logging.config.dictConfig(log_config(settings))
    except ValueError as error:  # dictConfig's wrapping of what the file handler raised
        reason = error.__cause__ or error
        name = "audit_log" if "'audit'" in str(error) else "log_file"
        raise ConfigError(f"server.{name}: {getattr(settings, name)}: {reason}; check the path") from None


def log_config(settings: LogSettings) -> dict[str, Any]:
    """Return the argument of `logging.config.dictConfig`, which opens the log file.

    Log rotation may move or truncate the file while it is written.
    """
    if settings.log_disable:
        return _with_audit(_tree({"none": {"class": "logging.NullHandler"}}, {}, logging.CRITICAL), settings.audit_log)
    text = partial(as_text, prefix=settings.log_prefix, timestamps=settings.log_timestamps)
    colors = _wants_colors(settings.log_colors)
    renderers = {
        "terminal": as_json if settings.log_jsonl else partial(text, colors=colors, screen=sys.stderr.isatty()),
        "file": as_json if settings.log_jsonl else partial(text, colors=False, screen=False),
    }
    formatters = {name: {"()": formatter, "render": render} for name, render in renderers.items()}
    handlers: dict[str, Any] = {"terminal": {"class": "logging.StreamHandler", "formatter": "terminal"}}
    if settings.log_file is not None:
        handlers["file"] = _file_handler(settings.log_file, "file")
    return _with_audit(_tree(handlers, formatters, level_of(settings.verbosity)), settings.audit_log)


def _file_handler(path: Path, formatter: str) -> dict[str, Any]:
    """Return the configuration of a handler that reopens the file after a rotation."""
    handler = {"class": "logging.handlers.WatchedFileHandler", "formatter": formatter, "encoding": "utf-8"}
    return handler | {"filename": str(path)}


def _with_audit(config: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """Add the audit log: a file of its own, at every verbosity. Without a `path` its lines are dropped."""
    if path is None:
        config["loggers"]["server.audit"] = {"level": logging.CRITICAL}
        return config
    config["formatters"]["audit"] = {"()": formatter, "render": as_json}
    config["handlers"]["audit"] = _file_handler(path, "audit")
    config["loggers"]["server.audit"] = {"level": logging.INFO, "handlers": ["audit"], "propagate": False}
    return config


def formatter(render: Any) -> logging.Formatter:
    """Records as lines that `render` (`as_text`, `as_json`) writes."""
    return ProcessorFormatter(
        foreign_pre_chain=[merge_contextvars, ExtraAdder()],
        processors=[_with_origin, ExceptionRenderer(), render],
    )


def level_of(verbosity: int) -> int:
    """The level of `logging` for llama-server's --verbosity (llama.cpp common/log.h)."""
    if verbosity <= _ERRORS_ONLY:
        return logging.ERROR
    if verbosity == _WARNINGS:
        return logging.WARNING
    if verbosity == _INFORMATION:
        return logging.INFO
    return logging.DEBUG if verbosity == _DEBUG else _LIBRARY_DEBUG


def _wants_colors(colors: str) -> bool:
    return colors == "on" or (colors == "auto" and sys.stderr.isatty())


def _tree(handlers: dict[str, Any], formatters: dict[str, Any], level: int) -> dict[str, Any]:
    loggers = {name: {"level": level} for name in _OURS}
    loggers["uvicorn.access"] = {"level": logging.CRITICAL}  # `transport.middleware` writes the access log
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": formatters,
        "handlers": handlers,
        "loggers": loggers,
        "root": {"level": max(level, logging.WARNING), "handlers": list(handlers)},
    }
