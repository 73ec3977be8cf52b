"""Templates: what they get, and what they may refuse."""

import pytest

from server.chat.template import ChatTemplate
from server.errors import ConfigError, InvalidRequest

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


def template(source: str = "", **options: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", **options)  # type: ignore[arg-type]


def test_no_template_means_chatml() -> None:
    rendered = template().render([{"role": "system", "content": "Be brief."}, USER])
    assert rendered.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered.generation_prompt == "<|im_start|>assistant\n"


def test_a_built_in_template_goes_by_its_name() -> None:
    assert template("chatml").render([USER]) == template().render([USER])


def test_chatml_shows_tools_calls_and_results() -> None:
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "18 C"}]
    text = template().render(messages, tools=[TOOL]).text
    assert '"name": "get_weather"' in text
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>' in text
    assert "<tool_response>\n18 C\n</tool_response>" in text


def test_text_parts_become_one_string_for_a_plain_template() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\na\nb<|im_end|>" in template().render([{"role": "user", "content": parts}]).text


def test_a_template_that_wants_parts_gets_parts() -> None:
    source = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    assert template(source).render([USER]).text == "[hi]"


def test_arguments_become_an_object_for_a_template_that_iterates_them() -> None:
    source = (
        "{{ tools | tojson if tools }}{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"
        "{% endfor %}{% endfor %}"
    )
    text = (
        template(source).render([USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}], tools=[TOOL]).text
    )
    assert text.endswith("hicity=Paris")


def test_a_system_message_moves_into_the_user_message_where_there_is_no_such_role() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    assert template(source).render([{"role": "system", "content": "S"}, USER]).text == "<user>S\nhi"


def test_the_templates_own_complaint_reaches_the_client() -> None:
    source = "{% if messages | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}{{ messages[0].content }}"
    with pytest.raises(InvalidRequest, match="one at a time"):
        template(source).render([USER, USER])


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


def test_the_sandbox_keeps_python_out() -> None:
    source = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(InvalidRequest):
        template(source).render([USER])


def test_loop_controls_generation_blocks_dates_and_json_work() -> None:
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ strftime_now('%Y') | length }}"
        "{{ {'b': 'é', 'a': 1} | tojson }}"
    )
    assert template(source).render([USER, USER]).text == 'hi4{"b": "é", "a": 1}'


def test_thinking_is_found_and_switched() -> None:
    source = (
        "{{ messages[0].content }}{% if add_generation_prompt %}>{% if enable_thinking %}<think>{% endif %}{% endif %}"
    )
    thinking = template(source)
    assert thinking.supports_thinking
    assert thinking.render([USER]).generation_prompt == "><think>"
    assert thinking.render([USER], enable_thinking=False).generation_prompt == ">"
    assert not template().supports_thinking


def test_template_arguments_reach_the_template_but_cannot_replace_its_tokens() -> None:
    source = "{{ bos_token }}{{ mood }}{{ messages[0].content }}"
    text = template(source).render([USER], kwargs={"mood": "calm ", "bos_token": "X"}).text
    assert text == "<s>calm hi"


def test_a_last_message_is_continued() -> None:
    rendered = template().render([USER, {"role": "assistant", "content": "Once upon"}], continue_final_message=True)
    assert rendered.text.endswith("<|im_start|>assistant\nOnce upon")


def test_tools_need_a_template_that_shows_them() -> None:
    with pytest.raises(InvalidRequest, match="does not support tools"):
        template("{{ messages[0].content }}").render([USER], tools=[TOOL])


def test_arguments_that_are_no_json_are_named() -> None:
    source = "{{ tools | tojson if tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}"  # noqa: E501
    bad = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{oops"}}
    with pytest.raises(InvalidRequest, match="tool call 'f'"):
        template(source).render([USER, {"role": "assistant", "content": "", "tool_calls": [bad]}])
