"""Templates: what they get, and what they may refuse."""

from dataclasses import replace
from typing import Any

import pytest

from server.errors import ConfigError, InvalidRequest
from server.templates.adaptation import adapted_effort
from server.templates.template import ChatTemplate

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


def template(source: str = "", **options: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", **options)  # type: ignore[arg-type]


def test_a_built_in_template_goes_by_its_name() -> None:
    assert template("chatml").render([USER]) == template().render([USER])


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% if a %}", "{% nope %}"])
def test_a_template_that_does_not_compile_is_a_config_error(source: str) -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        template(source)


def test_thinking_is_found_and_switched() -> None:
    source = (
        "{{ messages[0].content }}{% if add_generation_prompt %}>{% if enable_thinking %}<think>{% endif %}{% endif %}"
    )
    thinking = template(source)
    assert thinking.supports_thinking
    assert thinking.render([USER]).generation_prompt == "><think>"
    assert thinking.render([USER], enable_thinking=False).generation_prompt == ">"
    assert not template().supports_thinking


def test_an_effort_that_changes_the_prompt_is_found() -> None:
    source = "{{ messages[0].content }}{% if reasoning_effort is defined and reasoning_effort == 'max' %}!{% endif %}"
    assert template(source).capabilities.reasoning_effort
    assert not template().capabilities.reasoning_effort


@pytest.mark.parametrize(
    ("effort", "nearest"), [("none", "low"), ("minimal", "low"), ("medium", "high"), ("own", "own")]
)
def test_an_effort_becomes_the_nearest_that_the_template_takes(effort: str, nearest: str) -> None:
    assert adapted_effort(effort, replace(template().capabilities, efforts=("low", "high"))) == nearest


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"])
def test_variables_that_others_set_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^chat_template_kwargs\.{name}: is "):
        template().render([USER], kwargs={name: []})


def test_tools_are_told_where_the_template_shows_calls_alone() -> None:
    source = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %};{% endfor %}"
    )
    told = ChatTemplate(source, bos_token="", eos_token="", tool_format="generic")
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    text = told.render([USER, called], tools=[TOOL], add_generation_prompt=False).text
    assert text.startswith("system:You can call functions.")
    assert text.endswith('user:hi;assistant:<tool_call>get_weather {"city": "Paris"}</tool_call>;')


def test_tools_are_told_in_the_shape_that_the_model_writes() -> None:
    text = template("{{ messages[0].content }}<arg_key><arg_value>").render([USER], tools=[TOOL]).text
    assert "<tool_call>function_name\n<arg_key>parameter</arg_key>\n<arg_value>value</arg_value>\n</tool_call>" in text


def test_arguments_that_nest_deeply_and_do_not_end_are_shown_as_text() -> None:
    source = (
        "{{ tools | tojson if tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}"
    )
    written = "[" * 100_000
    call = {**CALL, "function": {"name": "f", "arguments": written}}
    text = template(source).render([USER, {"role": "assistant", "content": "", "tool_calls": [call]}]).text
    assert text == f"hiarguments={written}"


def test_tools_that_only_the_template_for_tools_shows_are_supported() -> None:
    assert template("{{ messages[0].content }}", tool_source="{{ tools | tojson }}").supports_tools


class Searched(str):
    """A prompt that counts the characters that are searched."""

    n_searched = 0

    def removeprefix(self, _: str, /) -> "Searched":
        return self

    def find(self, *args: Any) -> int:
        Searched.n_searched += len(self)
        return super().find(*args)


def test_the_texts_of_a_long_chat_are_found_in_time_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    class Joining:
        def render(self, _: str, *arguments: Any) -> list[str]:
            return [Searched("".join(message["content"] for message in each["messages"])) for each in arguments]

    made = template()
    monkeypatch.setattr(made, "_renderer", Joining())
    assert made._shows_all(made._main, {"messages": [USER] * 1000}, opens=True)
    assert Searched.n_searched < 10 * 10_000
