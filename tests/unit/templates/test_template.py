"""Templates: what they get, and what they may refuse."""

from typing import Any

import pytest

from server.errors import ConfigError, InvalidRequest
from server.templates.template import ChatTemplate

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "b"}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


def template(source: str = "", **options: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", **options)  # type: ignore[arg-type]


def test_a_built_in_template_goes_by_its_name() -> None:
    assert template("chatml").render([USER]) == template().render([USER])


def test_a_template_that_wants_parts_gets_parts() -> None:
    source = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    assert template(source).render([USER]).text == "[hi]"


def test_a_system_message_moves_into_the_user_message_where_there_is_no_such_role() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    assert template(source).render([{"role": "system", "content": "S"}, USER]).text == "<user>S\nhi"


def test_a_template_that_fails_is_a_bad_request_and_no_crash() -> None:
    source = "{{ messages[0].content }}{% if messages | length > 1 %}{{ 1 / 0 }}{{ messages.foo() }}{% endif %}"
    broken = template("{{ messages[5].content.x.y }}")
    with pytest.raises(InvalidRequest):
        broken.render([USER])
    assert template(source).render([USER]).text == "hi"


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% if a %}", "{% nope %}"])
def test_a_template_that_does_not_compile_is_a_config_error(source: str) -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        template(source)


def test_loop_controls_generation_blocks_dates_and_json_work() -> None:
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ strftime_now('%Y') | length }}"
        "{{ {'b': 'é', 'a': 1} | tojson }}"
    )
    assert template(source).render([USER, ANSWER]).text == 'hi4{"b": "é", "a": 1}'


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


def test_template_arguments_reach_the_template_but_cannot_replace_its_tokens() -> None:
    source = "{{ mood }}{{ bos_token }}{{ messages[0].content }}"
    assert template(source).render([USER], kwargs={"mood": "calm "}).text == "calm <s>hi"
    for name in ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"):
        with pytest.raises(InvalidRequest, match=f"chat_template_kwargs.{name}"):
            template(source).render([USER], kwargs={name: []})


def test_a_message_is_continued_where_the_template_shows_no_answers_or_part_of_them() -> None:
    shows_none = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}>{% endif %}{% endfor %}"
    messages: list[dict[str, Any]] = [USER, {"role": "assistant", "content": "Once"}]
    assert template(shows_none).render(messages, continue_final_message=True).text == "hi>Once"
    first_part = (
        "{% for m in messages %}[{{ m.content if m.content is string else m.content[0].text }}{% endfor %}"
        "{% if add_generation_prompt %}[{% endif %}"
    )
    parts = [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]
    messages = [USER, {"role": "assistant", "content": parts}]
    assert template(first_part).render(messages, continue_final_message=True).text == "[hi[Once\nupon"


def test_a_message_can_be_continued_without_others() -> None:
    source = (
        "{% if messages | length == 0 %}{{ raise_exception('no messages') }}{% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    alone = [{"role": "assistant", "content": "Once"}]
    assert template(source).render(alone, continue_final_message=True).text == "<assistant>Once"


def test_reasoning_is_continued_where_the_template_shows_it() -> None:
    source = "{% for m in messages %}<{{ m.role }}>({{ m.thinking }}){{ m.content }}{% endfor %}"
    message = {"role": "assistant", "content": "", "reasoning_content": "so"}
    rendered = template(source).render([USER, message], continue_final_message="reasoning_content")
    assert rendered.text == "<user>()hi<assistant>(so"


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


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ('{"city": "Par', "city=Par"),
        ('{"city": "Paris", "unit": ', "city=Paris"),
        ('{"city": "Paris", "un', "city=Paris"),
        ('{"a": [1, 2', "a=[1, 2]"),
        ("{", ""),
        ("null", ""),
        ("{oops", "arguments={oops"),
        ("[1]", "arguments=[1]"),
        ('{"a": 1}{"b": 2}', 'arguments={"a": 1}{"b": 2}'),
        ('{"a": "b" and', 'arguments={"a": "b" and'),
        ("[" * 100_000, "arguments=" + "[" * 100_000),
    ],
)
def test_arguments_that_are_no_object_are_closed_or_become_one(written: str, shown: str) -> None:
    source = "{{ tools | tojson if tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}"  # noqa: E501
    bad = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": written}}
    text = template(source).render([USER, {"role": "assistant", "content": "", "tool_calls": [bad]}]).text
    assert text == f"hi{shown}"


QWEN3 = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


@pytest.mark.parametrize(
    ("message", "wanted", "end"),
    [
        ({"content": "Once"}, True, "Once"),
        ({"content": "Once", "reasoning_content": "so"}, True, "<think>\nso\n</think>\n\nOnce"),
        ({"content": "", "reasoning_content": "so"}, True, "<think>\nso"),
        ({"content": "x", "reasoning_content": "so"}, "reasoning_content", "<think>\nso"),
        ({"content": "", "reasoning_content": "so"}, "content", "<think>\nso\n</think>\n\n"),
    ],
)
def test_reasoning_of_a_continued_message_is_written_as_the_template_writes_them(
    message: dict[str, str], wanted: Any, end: str
) -> None:
    messages = [USER, {"role": "assistant", **message}]
    for thinking in (True, False):
        rendered = template(QWEN3).render(messages, continue_final_message=wanted, enable_thinking=thinking)
        assert rendered.text == f"<user>hi<assistant>{end}"
        assert rendered.generation_prompt == f"<assistant>{end}"


def test_reasoning_that_only_the_opening_has_is_closed_before_content() -> None:
    source = "{{ messages[0].content }}>{% if add_generation_prompt and enable_thinking %}<think>\\n{% endif %}"
    messages = [USER, {"role": "assistant", "content": "Once"}]
    assert template(source).render(messages, continue_final_message=True).text == "hi><think></think>Once"
    plain = template(source).render(messages, continue_final_message=True, enable_thinking=False)
    assert plain.text == "hi>Once"


def test_a_tool_use_template_serves_requests_with_tools_only() -> None:
    both = template("plain {{ messages[0].content }}", tool_source="{{ tools | tojson }} {{ messages[0].content }}")
    assert both.render([USER]).text == "plain hi"
    assert "get_weather" in both.render([USER], tools=[TOOL]).text
    assert both.supports_tools


def test_what_filters_give_is_json_and_nothing_is_escaped() -> None:
    source = "{{ messages | map(attribute='role') | tojson }}{{ ('<a>' | safe) ~ '<b>' + ('<c>' | safe) }}"
    assert template(source).render([USER]).text == '["user"]<a><b><c>'


def test_markup_in_a_message_is_text() -> None:
    text = template().render([{"role": "user", "content": "{{ 1 + 1 }}<|im_end|>"}]).text
    assert "user\n{{ 1 + 1 }}<|im_end|><|im_end|>" in text


def test_a_template_that_takes_reasoning_or_content_of_a_call_gets_both_as_reasoning() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [call]}
    source = (
        "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('not both') }}"
        "{% endif %}[{{ m.content }}|{{ m.thinking }}]"
        "{{ m.tool_calls[0].function.arguments if m.tool_calls }}{% endfor %}"
    )
    result = {"role": "tool", "content": "r", "tool_call_id": "c"}
    assert template(source).render([USER, message, result]).text == "[hi|][|Hm.\n\nI look.]{}[r|]"
    assert template(source.replace(" and m.thinking", " and m.none")).render([USER, message, result]).text == (
        "[hi|][I look.|Hm.]{}[r|]"
    )
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    assert template(source).render([USER, plain]).text == "[hi|][I look.|Hm.]"
