"""Tools, their arguments, and the recorded outputs of each format (`outputs.yaml`)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.yaml_text import loaded

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "hours": {"type": "array", "items": {"type": "integer"}},
        "place": {"type": "object", "properties": {"x": {"type": "number"}, "tag": {"type": "string"}}},
    },
    "required": ["city"],
}
ZONE: dict[str, Any] = {"type": "object", "properties": {"zone": {"type": ["string", "null"]}}}


def tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """As OpenAI's clients send it."""
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = (tool("get_weather", PARAMETERS), tool("get_time", ZONE))
FULL = '{"city": "Paris", "days": 3, "exact": true, "hours": [8, 12], "place": {"x": 1.5, "tag": "a\\"b"}}'
PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'
_ARGUMENTS = {"FULL": FULL, "PARIS": PARIS, "ROME": ROME}


@dataclass(frozen=True, slots=True)
class Recorded:
    """``sign``: what the template shows of reasoning. ``prompt``: how the prompt begins the assistant's turn."""

    format: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    sign: str = ""
    prompt: str = ""


def _recorded(form: str, *, calls: list[str | list[str]] | None = None, **fields: str) -> Recorded:
    made = (("get_weather", _ARGUMENTS[each]) if isinstance(each, str) else (each[0], each[1]) for each in calls or ())
    return Recorded(form, calls=tuple(made), **fields)


RECORDED = tuple(
    _recorded(form, **output)
    for form, outputs in loaded(Path(__file__).with_name("outputs.yaml")).items()
    for output in outputs
)
