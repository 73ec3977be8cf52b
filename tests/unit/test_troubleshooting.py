"""docs/troubleshooting.md has every warning and error that the server logs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
_LEVELS = ("warning", "error", "critical", "exception")
_BUG = ("please report it", "Report it", "Report what follows")
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
            message = node.args[0]
            if isinstance(message, ast.Constant) and isinstance(message.value, str):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", message.value


def test_every_message_has_an_entry() -> None:
    """An entry quotes a part of a message in backticks, with … for values."""
    section = PAGE.read_text().partition("## Log messages")[2]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    entries = [re.escape(quoted).replace("…", ".+") for cell in cells for quoted in re.findall(r"`([^`]+)`", cell)]
    found = re.compile("|".join(entries))
    messages = [(place, text) for place, text in logged() if not any(bug in text for bug in _BUG)]
    assert len(messages) > 50
    missing = [
        f"{place}: {text}"
        for place, text in messages
        if len(re.findall(r"[A-Za-z]{2,}", _VALUE.sub(" ", text))) >= _MIN_WORDS and not found.search(text)
    ]
    assert missing == []


def test_every_entry_is_a_message() -> None:
    """An entry whose message is gone is deleted."""
    section = PAGE.read_text().partition("## Log messages")[2]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    texts = "\n".join(text for _, text in logged())
    quoted = [entry for cell in cells for entry in re.findall(r"`([^`]+)`", cell)]
    assert [entry for entry in quoted if not re.search(re.escape(entry).replace("…", ".+"), texts)] == []
