"""Writes calls in a format's syntax, for templates without tools and for examples."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.formats.tool_call_syntax import (
    Arguments,
    Braces,
    Elements,
    JsonArguments,
    Keywords,
    Markup,
    Parameters,
    ToolCallSyntax,
    parts,
)


def calls_text(syntax: ToolCallSyntax, calls: Sequence[tuple[str, str]]) -> str:
    """Return calls as text, from names and arguments in JSON. Ids and counters are numbered."""
    after_name = syntax.after_name[0]
    shown = (
        f"{_marked(syntax.before, n)}{name}{_marked(after_name, n)}{_arguments(syntax.arguments, given)}{syntax.after}"
        for n, (name, given) in enumerate(calls)
    )
    return f"{syntax.open}{syntax.separator.join(shown)}{syntax.close}"


def _arguments(notation: Arguments, text: str) -> str:
    """Return arguments in that notation, or unchanged if they are not a JSON object."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if isinstance(notation, JsonArguments) or not isinstance(given, dict):
        return text
    match notation:
        case Keywords():
            return ", ".join(f"{key}={value!r}" for key, value in given.items()) + ")"
        case Braces():
            return braced(given, notation.quote)
        case Elements():
            return _members(given, notation.prefix) + notation.end
        case Parameters():
            return "".join(_parameter(notation, key, value) for key, value in given.items()) + notation.end


def _parameter(notation: Parameters, key: str, value: Any) -> str:
    text = isinstance(value, str)
    opening = notation.before_value if text or notation.before_json_value is None else notation.before_json_value
    shown = value if text else _json(value)
    return f"{notation.before}{key}{_marked(opening, 0)}{shown}{notation.after}{notation.separator}"


def braced(value: Any, quote: str) -> str:
    """Return a value in the notation of `Braces`."""
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case list():
            return "[" + ",".join(braced(part, quote) for part in value) + "]"
        case Mapping():
            return "{" + ",".join(f"{key}:{braced(part, quote)}" for key, part in value.items()) + "}"
    return _json(value)


def _members(value: Mapping[str, Any], prefix: str) -> str:
    return "".join(f"{prefix}<{key}>{_element(part, prefix)}{prefix}</{key}>" for key, part in value.items())


def _element(value: Any, prefix: str) -> str:
    match value:
        case str():
            return value
        case list():
            return "".join(f"{prefix}<item>{_element(part, prefix)}{prefix}</item>" for part in value)
        case Mapping():
            return _members(value, prefix)
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _marked(markup: Markup, n: int) -> str:
    """Return the markup with `n` in its placeholder, or with the first alternative there."""
    shown = []
    for part in parts(markup):
        text = part if isinstance(part, str) else str(n)
        if isinstance(part, re.Pattern) and not part.fullmatch(text):
            text = part.pattern.partition("|")[0]
        shown.append(text)
    return "".join(shown)
