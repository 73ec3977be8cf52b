"""A tool name that the grammar lets a model write is one that the family's parser reads."""

import json

import pytest

from server import formats
from server.formats.written import calls_text
from tests.unit.formats.reading import every_character, forced_call_grammar, parser, read, template
from tests.unit.formats.recorded import tool
from tests.unit.structured.builders import WORDS, matches

NAMES = (
    *("look_up", "look-up", "look.up", "mcp/look", "mcp:look", "mcp::look/up", "2look", "a.b-c_d/e:f", "look:0"),
    *("functions.look", "/look", ":look", "-look", "look:"),
)
VARIANTS = [
    (form.name, sign) for form in formats.FORMATS for sign in ("", *(sign for sign, _ in form.variants)) if form.forced
]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(("name", "sign"), VARIANTS)
def test_the_grammar_and_the_parser_take_the_same_names(name: str, sign: str) -> None:
    form = formats.BY_NAME[name].tool_call_syntax(sign)
    assert form is not None
    prompt = formats.BY_NAME[name].turn_start + (">>>" if name == "functionary-v3.2" else "")
    for function in NAMES:
        tools = [tool(function, SCHEMA)]
        lead = "" if form.lead is None else function.join(form.lead)
        text = lead + calls_text(form, [(function, '{"city": "Paris"}')])
        assert matches(WORDS.lark(forced_call_grammar(template(name, sign), tools)), text)
        for cuts in ([], every_character(text)):
            found = read(parser(name, sign=sign, prompt=prompt, tools=tools), text, cuts)
            calls = [(called, json.loads(arguments)) for called, arguments in found.calls]
            assert (calls, found.content.strip()) == ([(function, {"city": "Paris"})], "")
