"""How the process logs: llama-server's --log-* and --verbosity, as a configuration of `logging`."""

import json
import logging
import logging.config
import sys
from typing import Any

from server.errors import ConfigError
from server.options.table.server import LogSettings

_ERRORS_ONLY, _WARNINGS, _INFORMATION, _DEBUG = range(1, 5)
_LIBRARY_DEBUG = logging.DEBUG - 5  # what the native library says at its own debug level
_COLORS = {"D": "\033[2m", "I": "\033[32m", "W": "\033[35m", "E": "\033[31m", "C": "\033[1;31m"}
_RESET = "\033[0m"
BARE = "bare"
"""The mark (in ``extra``) of records that a terminal shows without time and level."""
_OURS = ("server", "llamapool", "uvicorn")


class LineFormatter(logging.Formatter):
    """``time level origin: message``, the parts as configured; the level is its first letter.

    ``screen``: what a person reads as it comes: the first screen has neither there.
    """

    def __init__(
        self, *, prefix: bool = True, timestamps: bool = True, colors: bool = False, screen: bool = False
    ) -> None:
        super().__init__()
        self._prefix = prefix
        self._timestamps = timestamps
        self._colors = colors
        self._screen = screen

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """The line, before a traceback is appended."""
        if self._screen and getattr(record, BARE, False):
            return record.message
        letter = record.levelname[0]
        parts = [f"{self.formatTime(record)} "] if self._timestamps else []
        if self._prefix:
            shown = f"{_COLORS.get(letter, '')}{letter}{_RESET}" if self._colors else letter
            parts.append(f"{shown} {_origin(record.name)}: ")
        return "".join([*parts, record.message])


class JsonFormatter(logging.Formatter):
    """A JSON object for each record, with llama-server's keys (llama.cpp common/log.cpp) and the origin."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        said = {"type": "log", "time": record.created, "level": record.levelname[0], "origin": _origin(record.name)}
        return json.dumps(said | {"msg": message}, ensure_ascii=False)


def _origin(logger: str) -> str:
    return logger.removeprefix("server.").removesuffix(".error")  # uvicorn logs everything as "uvicorn.error"


def configure(settings: LogSettings) -> None:
    """Log as `settings` say. Raises ConfigError when the log file cannot be opened."""
    try:
        logging.config.dictConfig(log_config(settings))
    except ValueError as error:  # dictConfig's wrapping of what the file handler raised
        reason = error.__cause__ or error
        raise ConfigError(f"server.log_file: {settings.log_file}: {reason}; check the path") from None


def log_config(settings: LogSettings) -> dict[str, Any]:
    """For `logging.config.dictConfig`. Raises nothing; a log file is opened when it is applied."""
    if settings.log_disable:
        return _tree({"none": {"class": "logging.NullHandler"}}, {}, logging.CRITICAL)
    formatters = {
        name: {
            "()": LineFormatter,
            "prefix": settings.log_prefix,
            "timestamps": settings.log_timestamps,
            "colors": colors,
            "screen": screen,
        }
        for name, colors, screen in (
            ("terminal", _wants_colors(settings.log_colors), sys.stderr.isatty()),
            ("file", False, False),
        )
    }
    if settings.log_jsonl:
        formatters = {name: {"()": JsonFormatter} for name in formatters}
    handlers: dict[str, Any] = {"terminal": {"class": "logging.StreamHandler", "formatter": "terminal"}}
    if settings.log_file is not None:
        handlers["file"] = {
            "class": "logging.FileHandler",
            "formatter": "file",
            "filename": str(settings.log_file),
            "encoding": "utf-8",
        }
    return _tree(handlers, formatters, level_of(settings.verbosity))


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
    loggers["uvicorn.access"] = {"level": logging.CRITICAL}  # `transport.gateway` writes the access log
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": formatters,
        "handlers": handlers,
        "loggers": loggers,
        "root": {"level": max(level, logging.WARNING), "handlers": list(handlers)},
    }
