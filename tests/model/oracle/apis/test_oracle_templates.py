"""A GGUF with two chat templates, ``default`` and ``tool_use``: shown and chosen as llama-server does.

What both servers make of messages in every form, and of the default model's template, with tools and reasoning.

Only what does not depend on the weights is compared: the default model is trained again from time to time.
"""

import json
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


@pytest.mark.parametrize("form", [*PLAIN, *CALLED])
def test_messages_in_every_form(both: Pair, form: str) -> None:
    messages = {"messages": (PLAIN | CALLED)[form]}
    for body in (messages, {**messages, "tools": TOOLS}) if form in PLAIN else ({**messages, "tools": TOOLS},):
        ours, theirs = both.post("/apply-template", body)
        assert ours == theirs


ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
CITY = {"city": {"type": "string", "enum": ["Paris", "Oslo"]}}
CITIES = {"type": "object", "properties": CITY, "required": ["city"], "additionalProperties": False}
WEATHER_OF = {"name": "get_weather", "description": "The weather of a city", "parameters": CITIES}
WEATHER = [{"type": "function", "function": WEATHER_OF}]
ASKED_FOR = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
WITH_RESULT = [
    *ASK,
    {"role": "assistant", "content": None, "tool_calls": [ASKED_FOR]},
    {"role": "tool", "tool_call_id": "1", "content": "sunny"},
]
THOUGHT = [
    {"role": "system", "content": "Be exact."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "<think>\\neasy\\n</think>\\n\\n4"},
    {"role": "user", "content": "and 3 + 3?"},
]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": ASK},
        {"messages": ASK, "tools": WEATHER},
        {"messages": WITH_RESULT, "tools": WEATHER},
        {"messages": WITH_RESULT},
        {"messages": THOUGHT},
        {"messages": THOUGHT, "chat_template_kwargs": {"enable_thinking": True}},
        {"messages": THOUGHT, "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [*ASK, {"role": "assistant", "content": "It is"}]},
        {"messages": ASK, "add_generation_prompt": False},
    ],
    ids=lambda body: ",".join([*(body["messages"][-1]["content"] or "").split(), *list(body)[1:]]),
)
def test_the_template_renders_the_same(demo: Pair, body: dict[str, Any]) -> None:
    ours, theirs = demo.post("/apply-template", body)
    assert ours == theirs


def test_a_required_tool_is_called_the_same_way(demo: Pair) -> None:
    body = {"messages": ASK, "tools": WEATHER, "tool_choice": "required", "temperature": 0, "max_tokens": 200}
    calls = []
    for reply in demo.post("/v1/chat/completions", body):
        choice = reply["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call.pop("id")
        call["function"]["arguments"] = sorted(json.loads(call["function"]["arguments"]))
        calls.append(call)
    assert calls[0] == calls[1]
