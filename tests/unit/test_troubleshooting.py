"""docs/troubleshooting.md has every warning and error that the server logs, and every error without a remedy in it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
_LEVELS = ("log", "warning", "error", "critical", "exception")
_BUG = ("please report it", "Report it", "Report what follows")
_ERRORS = frozenset(
    (
        *("ConfigError", "LlamapoolError", "DownloadFailed", "Unavailable", "NotSupported", "PermissionDenied"),
        *("ModelFailed", "ModelEnded", "ModelRestarting", "TooLate", "ShuttingDown", "AuthenticationFailed"),
    )
)
"""Errors about the server. `InvalidRequest` names the field of the request; docs/errors.md has their statuses."""
_REMEDY = re.compile(
    r"; [\w…]|pip install|known:|did you mean|\b(?:see|use|write|start|set|retry|install|attach)\b|--[a-z]"
    r"|must be|should be|needs? |not one of|outside|lacks|requires|at most|possible"
)
_VALUE = re.compile(r"%[-.0-9]*[a-z]")
_MIN_WORDS = 3


def logged() -> Iterator[tuple[str, str]]:
    """Yield each constant message of a logger's warnings and errors, with its place."""
    for path in sorted((ROOT / "server").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LEVELS):
                continue
            logger = node.func.value
            if not (isinstance(logger, ast.Name) and "log" in logger.id) or not node.args:
                continue
            message = node.args[node.func.attr == "log"]  # `Logger.log` has the level first
            if isinstance(message, ast.Constant) and isinstance(message.value, str):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", message.value


def raised() -> Iterator[tuple[str, str]]:
    """Yield the message of each raised error of `_ERRORS`, with its place; a value is …."""
    for path in sorted((ROOT / "server").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
                continue
            if isinstance(node.exc.func, ast.Name) and node.exc.func.id in _ERRORS:
                for argument in node.exc.args:
                    if isinstance(argument, ast.JoinedStr):
                        parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in argument.values]
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", "".join(parts)
                    elif isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", argument.value


def entries(heading: str) -> list[str]:
    """Return the messages that the section's table quotes in backticks, with … for values."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [quoted for cell in cells for quoted in re.findall(r"`([^`]+)`", cell)]


def pattern(entry: str) -> str:
    return re.escape(entry).replace("…", ".+")


def words(text: str) -> int:
    return len(re.findall(r"[A-Za-z]{2,}", _VALUE.sub(" ", text)))


def test_every_error_has_a_remedy_or_an_entry() -> None:
    found = re.compile("|".join(map(pattern, entries("Errors of options, models and downloads"))))
    messages = [(place, text) for place, text in raised() if words(text) >= _MIN_WORDS]
    assert len(messages) > 150
    assert [(place, text) for place, text in messages if not _REMEDY.search(text) and not found.search(text)] == []


def test_every_entry_of_an_error_is_an_error() -> None:
    texts = "\n".join(text for _, text in raised())
    quoted = entries("Errors of options, models and downloads")
    assert [entry for entry in quoted if not re.search(pattern(entry), texts)] == []


def test_every_message_has_an_entry() -> None:
    found = re.compile("|".join(map(pattern, entries("Log messages"))))
    messages = [(place, text) for place, text in logged() if not any(bug in text for bug in _BUG)]
    assert len(messages) > 50
    missing = [f"{place}: {text}" for place, text in messages if words(text) >= _MIN_WORDS and not found.search(text)]
    assert missing == []


def test_every_entry_is_a_message() -> None:
    """An entry whose message is gone is deleted."""
    texts = "\n".join(text for _, text in logged())
    assert [entry for entry in entries("Log messages") if not re.search(pattern(entry), texts)] == []
