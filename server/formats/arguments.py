"""The arguments of a call as a JSON object, whatever was written of them: replies, templates and instructions want one.

What was cut off is closed; what is no object becomes the member ``arguments`` of one, so that none of it is lost.
"""

import json
from typing import Any

import orjson
import pydantic_core


def object_of(text: str, *, whole: bool = False) -> dict[str, Any]:
    """The object; ``whole``: of what was cut off only the members that are complete, since half a text is no argument
    to act on."""
    if not text.strip():
        return {}
    value: Any
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        goes_on = error.msg in ("Extra data", "Expecting ',' delimiter") and text[error.pos :].strip()
        value = text if goes_on else _closed(text, whole)
    except (ValueError, RecursionError):  # a number of thousands of digits; too deep
        value = _closed(text, whole)
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"arguments": value}


def object_text(text: str, *, whole: bool = False) -> str:
    """Its JSON: the text as it is where that is an object."""
    try:
        if isinstance(orjson.loads(text), dict):
            return text
    except (ValueError, TypeError):  # the latter for lone surrogates
        pass
    made = object_of(text, whole=whole)
    if not whole:  # for prompts: what JSON has no number for stays as it was written
        return json.dumps(made, ensure_ascii=False)
    try:
        return pydantic_core.to_json(made, inf_nan_mode="null").decode()
    except ValueError:  # too deep, or half a character
        return json.dumps({"arguments": text})


def _closed(text: str, whole: bool) -> Any:
    """What JSON that was cut off has begun; the text itself when its end is not what it lacks."""
    try:
        return pydantic_core.from_json(text, allow_partial=True if whole else "trailing-strings")
    except (ValueError, TypeError):
        return text
