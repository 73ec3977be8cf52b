"""Templates that know no tools: the model is told of them, and reads calls and results as text."""

from typing import Any

import pytest

from server.templates.template import ChatTemplate
from tests.unit.formats.reading import parser, read
from tests.unit.formats.recorded import PARIS, ROME, TOOLS

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


def template(source: str = PLAIN, form: str = "auto") -> ChatTemplate:
    return ChatTemplate(source, bos_token="", eos_token="", tool_format=form)


@pytest.mark.parametrize("form", ["generic", "gemma3", "pythonic", "deepseek"])
def test_calls_of_the_history_are_text_that_reads_as_those_calls(form: str) -> None:
    text = template(form=form).render(HISTORY, tools=TOOLS).text
    said = text.partition("<assistant>I look.\n\n")[2].partition("\n<user>")[0]
    assert read(parser(form), said).calls == [("get_weather", PARIS), ("get_weather", ROME)]


def test_typed_content_keeps_its_parts() -> None:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        HISTORY[1],
        {"role": "tool", "content": parts, "tool_call_id": "c0"},
    ]
    text = template(PARTS).render(history, tools=TOOLS).text
    assert text.endswith("<user>[Result of get_weather:\n\na][b]")
    assert text.startswith("<system>[You can call functions.")
