"""Detection of a template's format: by texts in its source, by name, and for every template of llama.cpp."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from server.formats import BY_NAME, FORMATS, recognised
from server.formats.recognition import n_common
from server.formats.tool_call_syntax import Parameters
from server.formats.tool_format import ToolFormat
from server.templates.built_in import format_of, names
from server.templates.template import ChatTemplate
from tests.support.downloads import TEMPLATES, needs_templates
from tests.support.yaml_text import loaded
from tests.unit.formats.parsing import functions_of, make_parser, parse_text
from tests.unit.formats.recorded import FULL, PARAMETERS, tool
from tests.unit.templates.corpus import make_template

pytestmark = pytest.mark.slow

FORMATS_OF_TEMPLATES = loaded(Path(__file__).with_name("shipped.yaml"))
SHIPPED = {name: form for form, templates in FORMATS_OF_TEMPLATES.items() for name in templates}
WITHOUT_CALLS = {
    "HuggingFaceTB-SmolLM3-3B",
    "LFM2-8B-A1B",
    "LFM2.5-Instruct",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}


@pytest.mark.parametrize("tool_format", [each for each in FORMATS if each.signs], ids=lambda each: each.name)
def test_template_source_with_all_signs_of_a_group_is_recognised(tool_format: ToolFormat) -> None:
    for group in tool_format.signs:
        assert recognised(" … ".join(group)) is tool_format
        other_signs = "".join(sign for other in tool_format.signs if other != group for sign in other)
        for missing in group:
            incomplete = " … ".join(sign for sign in group if sign != missing)
            assert recognised(incomplete) is not tool_format or missing in other_signs


def test_format_set_by_name_overrides_detection() -> None:
    assert recognised("{{ messages[0].content }}").name == "generic"
    template = make_template("{{ messages[0].content }}", tool_format="harmony")
    assert template.chat_format().tool_format.name == "harmony"
    assert recognised("<tool_call></tool_call>", "glm").name == "glm"
    parser = make_parser("llama3", template="<tool_call></tool_call>")
    assert parse_text(parser, '{"name": "get_weather", "parameters": {}}').calls == [("get_weather", "{}")]


HERMES = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}OPEN{{ c.function | tojson }}CLOSE{% endfor %}<|im_end|>{% endfor %}"
    "{{ tools | tojson if tools }}{% if add_generation_prompt %}assistant:{% endif %}"
)


def test_rendered_calls_take_precedence_over_texts_in_the_source() -> None:
    mentioned = HERMES.replace("OPEN", "<tool_call>\n").replace("CLOSE", "\n</tool_call>") + "{# [TOOL_CALLS] #}"
    assert recognised(mentioned).name == "mistral"
    assert make_template(mentioned).chat_format().tool_format.name == "hermes"
    built = HERMES.replace("OPEN", "{{ '<tool' ~ '_call>' }}").replace("CLOSE", "{{ '</tool' ~ '_call>' }}")
    assert recognised(built).name == "generic"
    assert make_template(built).chat_format().tool_format.name == "hermes"


def test_unparsable_rendered_calls_set_a_doubt() -> None:
    odd = HERMES.replace("OPEN", "~~").replace("CLOSE", "~~")
    found = make_template(odd + "{# <tool_call></tool_call> #}").chat_format()
    assert (found.tool_format.name, found.doubt) == ("hermes", "no parser reads the tool calls that it renders")
    set_by_name = make_template(odd, tool_format="glm").chat_format()
    assert (set_by_name.tool_format.name, set_by_name.doubt) == ("glm", "")
    without_calls = make_template("{{ messages[0].content }}{{ tools | tojson if tools }}").chat_format()
    assert without_calls.tool_format.name == "generic"
    assert "nothing in it shows" in without_calls.doubt


def test_syntax_variant_is_chosen_by_the_rendered_call() -> None:
    call = "<tool_call>{{ c.function.name }}LINE{% for k, v in c.function.arguments.items() %}"
    call += "<arg_key>{{ k }}</arg_key>LINE<arg_value>{{ v }}</arg_value>LINE{% endfor %}</tool_call>"
    source = HERMES.replace("OPEN{{ c.function | tojson }}CLOSE", call)
    for line in ("", "\n"):
        found = make_template(source.replace("LINE", line)).chat_format()
        assert found.tool_format.name == "glm"
        assert isinstance(found.tool_call_syntax.arguments, Parameters)
        assert found.tool_call_syntax.arguments.separator == line


def test_built_in_templates_use_the_formats_of_their_models() -> None:
    for name in names():
        format_name = format_of(name)
        if format_name != "auto":
            assert make_template(name).chat_format().tool_format is BY_NAME[format_name]
        if format_name not in ("auto", "qwen3-coder"):
            prompt = make_template(name).render([{"role": "user", "content": "hi"}], tools=TOOLS).text
            assert "get_weather" in prompt
    assert make_template("llama3", tool_format="glm").chat_format().tool_format.name == "glm"


@cache
def shipped(name: str) -> ChatTemplate:
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>")


@needs_templates
def test_format_of_every_shipped_template_is_detected_from_rendered_calls() -> None:
    assert {name: shipped(name).chat_format().tool_format.name for name in SHIPPED} == SHIPPED
    assert not any(shipped(name).chat_format().doubt for name in SHIPPED)


@needs_templates
def test_format_of_every_shipped_template_is_detected_from_its_source() -> None:
    detected = {path.stem: recognised(path.read_text(encoding="utf-8")).name for path in TEMPLATES.glob("*.jinja")}
    assert detected == SHIPPED


def described(parameters: dict[str, Any]) -> dict[str, Any]:
    """Add what strict templates require: a description of each property, and additionalProperties of objects."""
    properties = {
        name: {
            "description": "d",
            **({"additionalProperties": {"type": "string"}} if "properties" in part else {}),
            **part,
        }
        for name, part in parameters["properties"].items()
    }
    return {**parameters, "properties": properties}


ZONE = {"type": "object", "properties": {"zone": {"type": "string"}}}
TOOLS = (tool("get_weather", described(PARAMETERS)), tool("get_time", described(ZONE)))


@needs_templates
def test_capabilities_name_the_templates_that_render_no_calls() -> None:
    assert {name for name in SHIPPED if not shipped(name).capabilities.tool_calls} == WITHOUT_CALLS


@needs_templates
@pytest.mark.parametrize("name", sorted(SHIPPED.keys() - WITHOUT_CALLS))
def test_call_rendered_by_a_shipped_template_parses_back(name: str) -> None:
    template = shipped(name)
    user = {"role": "user", "content": "hi"}
    call = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": FULL}}
    turn = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]}
    conversation = template.render([user, turn], tools=TOOLS, add_generation_prompt=False).text
    prompt = template.render([user], tools=TOOLS)
    opening = prompt.generation_prompt if conversation.startswith(prompt.text) else ""
    if not opening:
        prompt = template.render([user], tools=TOOLS, add_generation_prompt=False)
    parser = template.chat_format().parser(functions_of(TOOLS), generation_prompt=opening)
    ((function, arguments),) = parse_text(parser, conversation[n_common(prompt.text, conversation) :]).calls
    assert (function, json.loads(arguments)) == ("get_weather", json.loads(FULL))
