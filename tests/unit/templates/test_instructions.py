"""Templates without tools: a message describes the tools, and calls and results become text."""

from typing import Any

import pytest

from tests.unit.formats.parsing import make_parser, parse_text
from tests.unit.formats.recorded import PARIS, ROME, TOOLS
from tests.unit.templates.corpus import make_template

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
CALLS = [
    {"id": f"c{n}", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    for n, arguments in enumerate((PARIS, ROME))
]
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "I look.", "tool_calls": CALLS},
    {"role": "tool", "content": "sunny", "tool_call_id": "c0"},
    {"role": "tool", "content": "rainy", "tool_call_id": "c1"},
    {"role": "user", "content": "Thanks"},
]


@pytest.mark.parametrize("name", ["generic", "gemma3", "pythonic", "deepseek"])
def test_earlier_calls_become_text_that_parses_back(name: str) -> None:
    text = make_template(PLAIN, tool_format=name).render(HISTORY, tools=TOOLS).text
    calls = text.partition("<assistant>I look.\n\n")[2].partition("\n<user>")[0]
    assert parse_text(make_parser(name), calls).calls == [("get_weather", PARIS), ("get_weather", ROME)]


def test_typed_content_keeps_its_parts() -> None:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        HISTORY[1],
        {"role": "tool", "content": parts, "tool_call_id": "c0"},
    ]
    text = make_template(PARTS).render(history, tools=TOOLS).text
    assert text.endswith("<user>[Result of get_weather:\n\na][b]")
    assert text.startswith("<system>[You can call functions.")
