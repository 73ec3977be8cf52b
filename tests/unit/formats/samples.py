"""Tools, arguments and the record of an output, for the outputs beside this file."""

from dataclasses import dataclass
from typing import Any

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


def call(arguments: str, name: str = "name", key: str = "arguments", more: str = "") -> str:
    """A call as most formats write it."""
    return f'{{"{name}": "get_weather", "{key}": {arguments}{more}}}'


WEATHER = ("get_weather", FULL)

TWO = (("get_weather", PARIS), ("get_weather", ROME))

THINK = "</think>"


def whole_turn(
    form: str, text: str, calls: tuple[tuple[str, str], ...], *, sign: str = "", prompt: str = ""
) -> Recorded:
    """An output that thinks "Hm.", says "I look." and calls."""
    return Recorded(form, text, "I look.", "Hm.", calls, sign, prompt)


_INVOKE = """<invoke name="get_weather">
<parameter name="city">Paris</parameter>
<parameter name="days">3</parameter>
<parameter name="exact">true</parameter>
<parameter name="hours">[8, 12]</parameter>
<parameter name="place">{"x": 1.5, "tag": "a\\"b"}</parameter>
</invoke>"""


def invoke(city: str, prefix: str = "", attribute: str = "") -> str:
    return (
        f'<{prefix}invoke name="get_weather">\n<{prefix}parameter name="city"{attribute}>{city}</{prefix}parameter>\n'
        f"</{prefix}invoke>"
    )
