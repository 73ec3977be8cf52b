from dataclasses import replace

import pytest

from server.errors import LlamapoolError
from server.pool.loading import chat_template
from server.pool.protocols import ModelInfo
from server.pool.spec import ChatParams
from tests.unit.pool.fakes import spec

INFO = ModelInfo(chat_template="own {{ x }}", chat_template_tool_use="tools", bos_token="<s>", eos_token="</s>")


def test_a_model_is_rendered_by_its_own_templates() -> None:
    template = chat_template(INFO, spec("a"))
    assert template.source == "own {{ x }}"
    assert template.tool_source == "tools"


def test_a_template_that_does_not_compile_is_an_error_with_words() -> None:
    with pytest.raises(LlamapoolError):
        chat_template(replace(INFO, chat_template="{% if"), spec("a"))


def test_a_template_whose_calls_nobody_reads_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    odd = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}~~{{ c.function | tojson }}~~{% endfor %};{% endfor %}"
        "{{ tools | tojson if tools }}"
    )
    info = replace(INFO, chat_template=odd, chat_template_tool_use="")
    chat_template(info, spec("a"))
    assert "model a: its chat template: no parser reads the tool calls that it renders" in caplog.text
    caplog.clear()
    chat_template(info, spec("a", chat=ChatParams(tool_format="hermes")))
    chat_template(INFO, spec("a"))
    assert not caplog.messages
