"""Converts any text of a call's arguments to a JSON object, as responses, templates and instructions require.

A truncated object is closed. A last value that only starts like a number (`2024-01-1`) counts as truncated. Text that
is not an object becomes the member ``arguments`` of one, so that nothing is lost. Streams contain the model's own text.
"""

import json
import re
from typing import Any

import orjson
import pydantic_core

_MISPLACED = (
    "Extra data",
    "Expecting ',' delimiter",
    "Expecting ':' delimiter",
    "Expecting property name enclosed in double quotes",
)
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d*)?")


def object_of(text: str, *, whole: bool = False) -> dict[str, Any]:
    """Return the arguments as an object.

    ``whole``: omit a truncated last member, because a client must not act on a part of a value.
    """
    if not text.strip():
        return {}
    start = _last_number(text) if whole and text.lstrip()[0] == "{" else len(text)
    is_number = _NUMBER.fullmatch(text, start) is not None
    complete = text[:start] if is_number else text
    value: Any
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg not in _MISPLACED or not text[error.pos :].strip():
            value = _closed(text, complete, whole=whole)
        elif error.pos > start:  # inside a text that starts like a number: `1.5e`, `2024-01-1`
            value = _closed(text[:start], text[:start], whole=whole) or (None if is_number else text)
        else:
            value = text
    except (ValueError, RecursionError):  # a number with thousands of digits; too deep
        value = _closed(text, complete, whole=whole)
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"arguments": value}


def object_text(text: str, *, whole: bool = False) -> str:
    """Return the text if it is a JSON object, otherwise an object that contains it. ``whole``: see `object_of`."""
    try:
        if isinstance(orjson.loads(text), dict):
            return text
    except (ValueError, TypeError):  # TypeError: lone surrogates
        pass
    found = object_of(text, whole=whole)
    if not whole:  # for prompts: numbers that JSON can't represent keep their text
        return json.dumps(found, ensure_ascii=False)
    try:
        return pydantic_core.to_json(found, inf_nan_mode="null").decode()
    except ValueError:  # too deep, or a lone surrogate
        return json.dumps({"arguments": text}, separators=(",", ":"))


def _last_number(text: str) -> int:
    """Return the start of a number at the end of the text, because digits may be missing."""
    start = len(text.rstrip("0123456789.eE+-"))
    return len(text) - len(text[start:].lstrip("eE"))  # not the end of `true`


def _closed(text: str, complete: str, *, whole: bool) -> Any:
    """Close truncated JSON and return the value of its part `complete`. Return otherwise invalid text unchanged."""
    partial: Any = True if whole else "trailing-strings"
    try:
        value = pydantic_core.from_json(text, allow_partial=partial)
        return value if complete == text else pydantic_core.from_json(complete, allow_partial=partial)
    except (ValueError, TypeError):
        return text
