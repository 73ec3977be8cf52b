"""Rendered prompts compared with llama-server: a model with a `tool_use` template, and the demo model.

Nothing that depends on the weights is compared, because the demo model is retrained from time to time.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model.oracle.comparison import Pair
from tests.model.oracle.conftest import Start
from tests.support.ggufs import CHATML, TinyModel, gguf_file

TOOL_USE = (
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
def two_templates(start: Start, gguf_folder: Path) -> Pair:
    """Both servers on a model with the templates `CHATML` and `TOOL_USE`."""
    return start(gguf_file(gguf_folder, TinyModel(tool_use_template=TOOL_USE)))


def test_props_have_both_templates(two_templates: Pair) -> None:
    for props in two_templates.get("/props"):
        assert props["chat_template"] == CHATML
        assert props["chat_template_tool_use"] == TOOL_USE


def test_requests_with_tools_use_the_tool_use_template(two_templates: Pair) -> None:
    ours, theirs = two_templates.post("/apply-template", {"messages": [USER], "tools": TOOLS})
    assert ours == theirs
    assert ours["prompt"].startswith("<|im_start|>system\n<tools>")
    ours, theirs = two_templates.post("/apply-template", {"messages": [USER]})
    assert ours == theirs
    assert ours["prompt"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


PLAIN = {
    "parts": [{"role": "system", "content": [{"type": "text", "text": "s"}]}, USER],
    "developer": [{"role": "developer", "content": "d"}, USER],
    "to continue": [USER, {"role": "assistant", "content": "It is"}],
}
CALLED = {  # only with tools: otherwise Llamapool renders calls as text, and llama-server omits them
    "null content": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT],
    "call": [USER, {"role": "assistant", "content": "so", "tool_calls": [CALL]}, RESULT],
}


@pytest.mark.parametrize("form", [*PLAIN, *CALLED])
def test_messages_of_every_form_render_to_the_same_prompt(two_templates: Pair, form: str) -> None:
    for tools in (TOOLS, []) if form in PLAIN else (TOOLS,):
        body = {"messages": (PLAIN | CALLED)[form], **({"tools": tools} if tools else {})}
        ours, theirs = two_templates.post("/apply-template", body)
        assert ours == theirs


QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
CITY = {"city": {"type": "string", "enum": ["Paris", "Oslo"]}}
CITIES = {"type": "object", "properties": CITY, "required": ["city"], "additionalProperties": False}
GET_WEATHER = {"name": "get_weather", "description": "The weather of a city", "parameters": CITIES}
WEATHER = [{"type": "function", "function": GET_WEATHER}]
WEATHER_CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
WITH_RESULT = [
    *QUESTION,
    {"role": "assistant", "content": None, "tool_calls": [WEATHER_CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "sunny"},
]
WITH_REASONING = [
    {"role": "system", "content": "Be exact."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "<think>\\neasy\\n</think>\\n\\n4"},
    {"role": "user", "content": "and 3 + 3?"},
]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": QUESTION},
        {"messages": QUESTION, "tools": WEATHER},
        {"messages": WITH_RESULT, "tools": WEATHER},
        {"messages": WITH_RESULT},
        {"messages": WITH_REASONING},
        {"messages": WITH_REASONING, "chat_template_kwargs": {"enable_thinking": True}},
        {"messages": WITH_REASONING, "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [*QUESTION, {"role": "assistant", "content": "It is"}]},
        {"messages": QUESTION, "add_generation_prompt": False},
    ],
    ids=lambda body: ",".join([*(body["messages"][-1]["content"] or "").split(), *list(body)[1:]]),
)
def test_the_demo_template_renders_the_same_prompt(demo: Pair, body: dict[str, Any]) -> None:
    ours, theirs = demo.post("/apply-template", body)
    assert ours == theirs


def test_calls_of_a_required_tool_have_the_same_form(demo: Pair) -> None:
    body = {"messages": QUESTION, "tools": WEATHER, "tool_choice": "required", "temperature": 0, "max_tokens": 200}
    calls = []
    for reply in demo.post("/v1/chat/completions", body):
        choice = reply["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call.pop("id")
        call["function"]["arguments"] = sorted(json.loads(call["function"]["arguments"]))
        calls.append(call)
    assert calls[0] == calls[1]
