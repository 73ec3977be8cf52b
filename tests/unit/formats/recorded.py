"""The sample outputs of each format (`outputs.yaml`), with the tools and the arguments that they call."""

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
    """Return a function tool of OpenAI's chat API."""
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = (tool("get_weather", PARAMETERS), tool("get_time", ZONE))
FULL = '{"city": "Paris", "days": 3, "exact": true, "hours": [8, 12], "place": {"x": 1.5, "tag": "a\\"b"}}'
PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'
_ARGUMENTS = {"FULL": FULL, "PARIS": PARIS, "ROME": ROME}


@dataclass(frozen=True, slots=True)
class Recorded:
    """An output with the message that it parses to.

    ``template``: the text in the template by which its reasoning tags are detected.
    ``prompt``: the start of the assistant's turn in the prompt.
    """

    format: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    template: str = ""
    prompt: str = ""


def _recorded(name: str, *, calls: list[str | list[str]] | None = None, **fields: str) -> Recorded:
    pairs = (("get_weather", _ARGUMENTS[call]) if isinstance(call, str) else (call[0], call[1]) for call in calls or ())
    return Recorded(name, calls=tuple(pairs), **fields)


RECORDED = tuple(
    _recorded(name, **output)
    for name, outputs in loaded(Path(__file__).with_name("outputs.yaml")).items()
    for output in outputs
)
