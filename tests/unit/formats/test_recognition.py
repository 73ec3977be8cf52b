"""Which format a template speaks: by its signs, by name, and for every template of the source distribution."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from server.formats import BY_NAME, FORMATS, recognised
from server.formats.recognition import n_common
from server.formats.tool_call_syntax import Parameters
from server.templates.built_in import format_of, names
from server.templates.template import ChatTemplate
from tests.support.downloads import TEMPLATES, needs_templates
from tests.support.yaml_text import loaded
from tests.unit.formats.reading import functions_of, parser, read
from tests.unit.formats.recorded import FULL, PARAMETERS, tool

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


@pytest.mark.parametrize("form", [form for form in FORMATS if form.signs], ids=lambda form: form.name)
def test_a_template_with_all_signs_of_a_group_speaks_that_format(form: Any) -> None:
    for group in form.signs:
        assert recognised(" … ".join(group)) is form
        for missing in group:
            assert recognised(" … ".join(sign for sign in group if sign != missing)) is not form or missing in "".join(
                sign for other in form.signs if other != group for sign in other
            )


def test_without_any_sign_it_is_the_generic_format() -> None:
    assert recognised("{{ messages[0].content }}").name == "generic"


def test_a_format_can_be_set_by_its_name() -> None:
    assert recognised("<tool_call></tool_call>", "glm").name == "glm"
    found = read(parser("llama3", sign="<tool_call></tool_call>"), '{"name": "get_weather", "parameters": {}}')
    assert found.calls == [("get_weather", "{}")]
    assert speaker("{{ messages[0].content }}", tool_format="harmony").chat_format().tool_format.name == "harmony"


HERMES = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}OPEN{{ c.function | tojson }}CLOSE{% endfor %}<|im_end|>{% endfor %}"
    "{{ tools | tojson if tools }}{% if add_generation_prompt %}assistant:{% endif %}"
)


def speaker(source: str, **options: Any) -> ChatTemplate:
    return ChatTemplate(source, bos_token="", eos_token="", **options)


def test_what_a_template_renders_counts_more_than_its_signs() -> None:
    mentioned = HERMES.replace("OPEN", "<tool_call>\n").replace("CLOSE", "\n</tool_call>") + "{# [TOOL_CALLS] #}"
    assert recognised(mentioned).name == "mistral"
    assert speaker(mentioned).chat_format().tool_format.name == "hermes"
    built = HERMES.replace("OPEN", "{{ '<tool' ~ '_call>' }}").replace("CLOSE", "{{ '</tool' ~ '_call>' }}")
    assert recognised(built).name == "generic"
    assert speaker(built).chat_format().tool_format.name == "hermes"


def test_a_template_whose_calls_nobody_reads_is_doubted() -> None:
    odd = HERMES.replace("OPEN", "~~").replace("CLOSE", "~~")
    found = speaker(odd + "{# <tool_call></tool_call> #}").chat_format()
    assert (found.tool_format.name, found.doubt) == ("hermes", "no parser reads the tool calls that it renders")
    set_by_name = speaker(odd, tool_format="glm").chat_format()
    assert (set_by_name.tool_format.name, set_by_name.doubt) == ("glm", "")
    told = speaker("{{ messages[0].content }}{{ tools | tojson if tools }}").chat_format()
    assert told.tool_format.name == "generic"
    assert "nothing in it shows" in told.doubt


def test_a_shape_is_chosen_by_what_is_rendered() -> None:
    call = "<tool_call>{{ c.function.name }}LINE{% for k, v in c.function.arguments.items() %}"
    call += "<arg_key>{{ k }}</arg_key>LINE<arg_value>{{ v }}</arg_value>LINE{% endfor %}</tool_call>"
    source = HERMES.replace("OPEN{{ c.function | tojson }}CLOSE", call)
    for line in ("", "\n"):
        found = speaker(source.replace("LINE", line)).chat_format()
        assert found.tool_format.name == "glm"
        assert isinstance(found.tool_call_syntax.arguments, Parameters)
        assert found.tool_call_syntax.arguments.joint == line


def test_built_in_templates_carry_the_formats_of_their_models() -> None:
    for name in names():
        wanted = format_of(name)
        found = speaker(name).chat_format().tool_format
        if wanted != "auto":
            assert found is BY_NAME[wanted]
        if wanted not in ("auto", "qwen3-coder"):
            prompt = speaker(name).render([{"role": "user", "content": "hi"}], tools=TOOLS).text
            assert "get_weather" in prompt
    assert speaker("llama3", tool_format="glm").chat_format().tool_format.name == "glm"


def test_names_are_unique_and_every_shipped_templates_format_exists() -> None:
    assert len(BY_NAME) == len(FORMATS)
    assert set(SHIPPED.values()) <= set(BY_NAME)


@cache
def shipped(name: str) -> ChatTemplate:
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>")


@needs_templates
def test_every_template_is_recognised_by_what_it_renders() -> None:
    assert {name: shipped(name).chat_format().tool_format.name for name in SHIPPED} == SHIPPED
    assert not any(shipped(name).chat_format().doubt for name in SHIPPED)


@needs_templates
def test_the_signs_of_every_template_of_the_source_distribution_say_the_same() -> None:
    found = {path.stem: recognised(path.read_text(encoding="utf-8")).name for path in TEMPLATES.glob("*.jinja")}
    assert found == SHIPPED


def described(parameters: dict[str, Any]) -> dict[str, Any]:
    """As strict templates want it: each property with a description, objects with additionalProperties."""
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
def test_these_templates_render_no_calls() -> None:
    assert {name for name in SHIPPED if not shipped(name).capabilities.tool_calls} == WITHOUT_CALLS


@needs_templates
@pytest.mark.parametrize("name", sorted(SHIPPED.keys() - WITHOUT_CALLS))
def test_what_a_template_makes_of_a_call_reads_as_that_call(name: str) -> None:
    made = shipped(name)
    user = {"role": "user", "content": "hi"}
    call = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": FULL}}
    turn = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]}
    whole = made.render([user, turn], tools=TOOLS, add_generation_prompt=False).text
    asked = made.render([user], tools=TOOLS)
    opening = asked.generation_prompt if whole.startswith(asked.text) else ""
    if not opening:
        asked = made.render([user], tools=TOOLS, add_generation_prompt=False)
    parser_of_turn = made.chat_format().parser(functions_of(TOOLS), generation_prompt=opening)
    found = read(parser_of_turn, whole[n_common(asked.text, whole) :])
    assert [(called, json.loads(arguments)) for called, arguments in found.calls] == [("get_weather", json.loads(FULL))]
