"""Templates: built-in names, detected capabilities, variables, and tools that the template does not render."""

from dataclasses import replace
from typing import Any

import pytest

from server.errors import ConfigError, InvalidRequest
from server.templates.adaptation import adapted_effort
from tests.unit.templates.corpus import make_template

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


def test_built_in_template_is_found_by_name_and_chatml_is_the_default() -> None:
    assert make_template("chatml").render([USER]) == make_template().render([USER])


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% if a %}", "{% nope %}"])
def test_template_that_does_not_compile_raises_config_error(source: str) -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        make_template(source)


def test_thinking_is_detected_and_can_be_disabled() -> None:
    source = (
        "{{ messages[0].content }}{% if add_generation_prompt %}>{% if enable_thinking %}<think>{% endif %}{% endif %}"
    )
    thinking = make_template(source)
    assert thinking.supports_thinking
    assert thinking.render([USER]).generation_prompt == "><think>"
    assert thinking.render([USER], enable_thinking=False).generation_prompt == ">"
    assert not make_template().supports_thinking


def test_reasoning_effort_that_changes_the_prompt_is_detected() -> None:
    source = "{{ messages[0].content }}{% if reasoning_effort is defined and reasoning_effort == 'max' %}!{% endif %}"
    assert make_template(source).capabilities.reasoning_effort
    assert not make_template().capabilities.reasoning_effort


@pytest.mark.parametrize(
    ("effort", "nearest"), [("none", "low"), ("minimal", "low"), ("medium", "high"), ("own", "own")]
)
def test_unsupported_reasoning_effort_becomes_the_nearest_supported_one(effort: str, nearest: str) -> None:
    assert adapted_effort(effort, replace(make_template().capabilities, efforts=("low", "high"))) == nearest


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"])
def test_reserved_template_variables_are_rejected(name: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^chat_template_kwargs\.{name}: is "):
        make_template().render([USER], kwargs={name: []})


def test_tools_are_described_in_a_message_if_the_template_renders_only_calls() -> None:
    source = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %};{% endfor %}"
    )
    call = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    template = make_template(source, tool_format="generic")
    text = template.render([USER, call], tools=[TOOL], add_generation_prompt=False).text
    assert text.startswith("system:You can call functions.")
    assert text.endswith('user:hi;assistant:<tool_call>get_weather {"city": "Paris"}</tool_call>;')


def test_tool_description_uses_the_call_syntax_of_the_model() -> None:
    text = make_template("{{ messages[0].content }}<arg_key><arg_value>").render([USER], tools=[TOOL]).text
    assert "<tool_call>function_name\n<arg_key>parameter</arg_key>\n<arg_value>value</arg_value>\n</tool_call>" in text


def test_truncated_deeply_nested_arguments_are_rendered_as_text() -> None:
    source = (
        "{{ tools | tojson if tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}"
    )
    arguments = "[" * 100_000
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    text = make_template(source).render([USER, {"role": "assistant", "content": "", "tool_calls": [call]}]).text
    assert text == f"hiarguments={arguments}"


def test_template_for_tools_determines_tool_support() -> None:
    assert make_template("{{ messages[0].content }}", tool_source="{{ tools | tojson }}").supports_tools


class CountingPrompt(str):
    """A prompt that counts the characters that `find` searches."""

    n_searched = 0

    def removeprefix(self, _: str, /) -> "CountingPrompt":
        return self

    def find(self, *args: Any) -> int:
        CountingPrompt.n_searched += len(self)
        return super().find(*args)


def test_texts_of_a_long_chat_are_found_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class JoiningRenderer:
        def render(self, _: str, *arguments: Any) -> list[str]:
            return [CountingPrompt("".join(message["content"] for message in each["messages"])) for each in arguments]

    template = make_template()
    monkeypatch.setattr(template, "_renderer", JoiningRenderer())
    assert template._shows_all(template._main, {"messages": [USER] * 1000}, opened=True)
    assert CountingPrompt.n_searched < 10 * 10_000
