"""A GGUF with two chat templates, ``default`` and ``tool_use``: shown and chosen as llama-server does; and what both
servers make of messages in every form."""

from pathlib import Path
from typing import Any

import pytest

from tests.model.oracle.comparison import Pair
from tests.model.oracle.conftest import Start
from tests.support.ggufs import CHATML, TinyModel, gguf_file

WITH_TOOLS = (
    "<|im_start|>system\n<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>\n"
    'Write <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\n'
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USER = {"role": "user", "content": "hi"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": PARAMETERS}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Köln"}'}}

RESULT = {"role": "tool", "content": "18 C"}


@pytest.fixture(scope="module")
def both(start: Start, gguf_folder: Path) -> Pair:
    return start(gguf_file(gguf_folder, TinyModel(tool_use_template=WITH_TOOLS)))


def test_both_templates_are_shown(both: Pair) -> None:
    for props in both.get("/props"):
        assert props["chat_template"] == CHATML
        assert props["chat_template_tool_use"] == WITH_TOOLS


def test_tools_choose_the_template_made_for_them(both: Pair) -> None:
    ours, theirs = both.post("/apply-template", {"messages": [USER], "tools": TOOLS})
    assert ours == theirs
    assert ours["prompt"].startswith("<|im_start|>system\n<tools>")
    ours, theirs = both.post("/apply-template", {"messages": [USER]})
    assert ours == theirs
    assert ours["prompt"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


PLAIN = {
    "parts": [{"role": "system", "content": [{"type": "text", "text": "s"}]}, USER],
    "developer": [{"role": "developer", "content": "d"}, USER],
    "to continue": [USER, {"role": "assistant", "content": "It is"}],
}
CALLED = {  # without tools ChatML shows no calls: Llamapool writes them as text, llama-server leaves them out
    "null content": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT],
    "call": [USER, {"role": "assistant", "content": "so", "tool_calls": [CALL]}, RESULT],
}


@pytest.mark.parametrize("messages", PLAIN.values(), ids=PLAIN)
def test_messages_in_every_form(both: Pair, messages: list[dict[str, Any]]) -> None:
    ours, theirs = both.post("/apply-template", {"messages": messages})
    assert ours == theirs


@pytest.mark.parametrize("messages", [*PLAIN.values(), *CALLED.values()], ids=[*PLAIN, *CALLED])
def test_messages_in_every_form_with_tools(both: Pair, messages: list[dict[str, Any]]) -> None:
    ours, theirs = both.post("/apply-template", {"messages": messages, "tools": TOOLS})
    assert ours == theirs
