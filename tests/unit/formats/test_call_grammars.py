"""Each format's grammar of forced and of begun calls: what it lets pass, its own parser reads as a call that fits."""

import json
import re
from typing import Any

import jsonschema
import pytest

from server import formats
from server.errors import InvalidRequest
from server.formats.chat_format import ChatFormat
from server.formats.grammar.argument_rules import argument_rule
from server.formats.grammar.lark_text import LarkText
from server.formats.tool_call_syntax import Arguments, Braces, Elements, Parameters
from server.formats.written import calls_text
from tests.unit.formats.reading import chat_format, every_character, forced_calls, functions_of, parser, prompt_of, read
from tests.unit.formats.recorded import tool
from tests.unit.structured.builders import WORDS, WordVocab, matches, takes, walk

pytestmark = pytest.mark.slow

PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "tag": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}
STEP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "hours": {"type": "array", "items": {"$ref": "#/$defs/hour"}},
        "place": PLACE,
        "code": {"type": "string", "minLength": 2, "maxLength": 5},
    },
    "required": ["city", "days", "code"],
    "additionalProperties": False,
    "$defs": {"hour": {"enum": [8, 12]}},
}
NONE: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"step": STEP, "step_all": NONE}
TOOLS = [tool(name, schema) for name, schema in SCHEMAS.items()]
VARIANTS = [(form.name, "") for form in formats.FORMATS] + [
    (form.name, sign) for form in formats.FORMATS for sign, _ in form.variants
]


def walked(name: str, sign: str, lark: str, seed: int, begun: str = "") -> str:
    """What a bad model would write in that format, after `begun`."""
    form = ChatFormat.of(formats.BY_NAME[name], sign).tool_call_syntax
    ends = [form.close, *ends_of(form.arguments), "<|message|>"]
    constraint = WORDS.after(WORDS.lark(lark), begun)
    assert constraint is not None
    return walk(constraint, WordVocab(), seed, at_most=40, ends=ends).decode("utf-8", "replace")


def ends_of(arguments: Arguments) -> list[str]:
    """What ends a text in that notation."""
    if isinstance(arguments, Braces):
        return [arguments.quote]
    if isinstance(arguments, Elements):
        return [f"{arguments.prefix}</{key}>" for key in (*STEP["properties"], *PLACE["properties"], "item")]
    return [getattr(arguments, "after", "")]


def check(name: str, text: str, prompt: str | None = None) -> int:
    """Reads a text that must be calls that fit; how many."""
    found = read(parser(name, tools=TOOLS, prompt=prompt_of(name) if prompt is None else prompt), text)
    assert found.calls, text
    assert not found.content.strip(), (text, found)
    for function, arguments in found.calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[function])
    return len(found.calls)


@pytest.mark.parametrize("function", ["", "step"])
@pytest.mark.parametrize(("name", "sign"), VARIANTS)
def test_what_a_forced_grammar_lets_pass_is_read_as_calls_that_fit_or_one_of_a_named_function(
    name: str, sign: str, function: str
) -> None:
    lark = forced_calls(name, sign, TOOLS, name=function, parallel=True)
    for seed in range(2 if function else 4):
        n_calls = check(name, walked(name, sign, lark, seed))
        assert n_calls == 1 or not function


@pytest.mark.parametrize(("name", "sign"), VARIANTS)
def test_after_each_trigger_only_a_call_that_fits_is_allowed(name: str, sign: str) -> None:
    found = chat_format(name, sign).call_triggers(functions_of(TOOLS), parallel=True)
    assert len({trigger.lark for trigger in found}) == 1  # one for each function would have all of them, too
    for number, trigger in enumerate(found):
        text = trigger.text + walked(name, sign, trigger.lark, number, trigger.begun)
        if name == "muse":
            check(name, " to=step<|message|>" + text)
        else:
            check(name, text, prompt_of(name) if trigger.at_start else formats.BY_NAME[name].turn_start)


def test_a_muse_call_is_addressed_to_a_function() -> None:
    lark = forced_calls("muse", "", TOOLS, name="", parallel=True)
    for recipient, known in (("step", True), ("step_all", True), ("someone", False)):
        assert takes(WORDS.lark(lark), f" to={recipient}<|message|><atem:function_calls>".encode()) is known


@pytest.mark.parametrize("header", ["<|channel|>commentary to=functions.step_all", " to=functions.step_all"])
@pytest.mark.parametrize("after", ["<|channel|>commentary json", " <|constrain|>json", ""])
def test_a_forced_harmony_call_may_name_its_recipient_first(header: str, after: str) -> None:
    lark = forced_calls("harmony", "", TOOLS, name="", parallel=True)
    text = f"{header}{after}<|message|>{{}}"
    assert takes(WORDS.lark(lark), text.encode())
    assert check("harmony", text) == 1


NAMES = ("$filter", "@odata.type", "a/b", "é😀", "first-name")


MARKED = [
    form.name
    for form in formats.FORMATS
    if isinstance(form.syntax.arguments, Parameters | Braces | Elements) and not form.framed
]


@pytest.mark.parametrize("name", MARKED)
def test_parameters_may_have_names_of_any_api(name: str) -> None:
    form = formats.BY_NAME[name].syntax
    given = dict.fromkeys(NAMES, "Paris")
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in NAMES}, "required": [*NAMES]}
    tools = [{"type": "function", "function": {"name": "step", "parameters": schema}}]
    text = calls_text(form, [("step", json.dumps(given, ensure_ascii=False))])
    found = read(parser(name, tools=tools), text)
    assert [(each[0], json.loads(each[1])) for each in found.calls] == [("step", given)]
    assert takes(WORDS.lark(forced_calls(name, "", tools)), text.encode())


DATE = {"type": "string", "format": "date"}
UNIT = {"anyOf": [{"type": "string", "enum": ["C", "F"]}, {"type": "null"}], "default": None}


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize(
    ("schema", "fitting", "other"),
    [
        (DATE, "2024-02-29", "2023-02-29"),
        (UNIT, "C", "K"),
        (UNIT, None, 5),
        ({"$ref": "#/$defs/unit", "title": "Unit"}, "F", "f"),
        ({"anyOf": [DATE, {"type": "string", "maxLength": 3}]}, "now", "never"),
        (
            {
                "type": ["string", "null"],
                "example": "D",
                "anyOf": [{"type": "string", "enum": ["C"]}, {"type": "null"}],
            },
            "C",
            "K",
        ),
        ({"type": ["string", "integer"], "anyOf": [{"type": "string", "enum": ["C"]}, {"type": "null"}]}, "C", None),
    ],
)
def test_a_text_keeps_its_format_and_its_alternatives(name: str, schema: Any, fitting: object, other: object) -> None:
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "$defs": {"unit": UNIT}}
    grammar = WORDS.lark(forced_calls(name, "", [tool("step", parameters)]))
    for value, fits in ((fitting, True), (other, False)):
        text = calls_text(formats.BY_NAME[name].syntax, [("step", json.dumps({"x": value}))])
        assert matches(grammar.fork(), text) is fits


@pytest.mark.parametrize(
    "alternative",
    [
        {"type": "string", "pattern": "^a$|^b$"},
        {"type": "string", "not": {"const": "c"}},
        {"type": ["string", "null"], "maxLength": 1},
    ],
)
def test_a_text_of_alternatives_that_cannot_be_enforced_is_unlimited(alternative: Any) -> None:
    schema = {"anyOf": [{"type": "null"}, alternative], "maxLength": 3}
    parameters = {"type": "object", "properties": {"x": schema, "y": DATE}, "required": ["x", "y"]}
    grammar = WORDS.lark(forced_calls("qwen3-coder", "", [tool("step", parameters)]))
    for date, fits in (("2024-02-29", True), ("now", False)):
        text = calls_text(formats.BY_NAME["qwen3-coder"].syntax, [("step", json.dumps({"x": "abcd", "y": date}))])
        assert matches(grammar.fork(), text) is fits


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        ({"example": "Paris", "nullable": False, "format": "city", "deprecated": True, "x-order": 1}, True),
        ({"minLength": 0}, True),
        ({"format": "date"}, False),
        ({"minLength": 9}, False),
        ({"pattern": "^[a-c]"}, False),
        ({"enum": ["a"]}, False),
        ({"anyOf": [{"maxLength": 3}]}, False),
    ],
)
def test_only_a_limit_forbids_a_text_of_python(schema: Any, *, fits: bool) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "string", **schema}}, "required": ["x"]}
    grammar = WORDS.lark(forced_calls("lfm2", "", [tool("step", parameters)]))
    text = calls_text(formats.BY_NAME["lfm2"].syntax, [("step", '{"x": "Paris"}')])
    assert matches(grammar, re.sub(r"""["']Paris["']""", "'Paris'", text)) is fits


@pytest.mark.parametrize("name", [*MARKED, "hermes", "lfm2"])
def test_null_requires_no_parameter(name: str) -> None:
    lark = forced_calls(name, "", [tool("step", {"type": "object", "properties": {"x": DATE}, "required": None})])
    assert matches(WORDS.lark(lark), calls_text(formats.BY_NAME[name].syntax, [("step", "{}")]))


@pytest.mark.parametrize("parameters", [{"required": True}, {"properties": [5]}])
def test_malformed_parameters_are_refused(parameters: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"tools: '(required|properties)' must be"):
        forced_calls("qwen3-coder", "", [tool("step", parameters)])


def test_no_empty_text_precedes_a_control_token_where_a_pattern_forbids_it() -> None:
    rules, token = LarkText(WORDS.control_token, ["<tool>"]), WordVocab().n_tokens - 1
    parameters = {"properties": {"x": {"type": "string", "pattern": "^[a-c]+$"}}, "required": ["x"]}
    rule = argument_rule(Parameters("<x>", ":", "<tool>"), {"parameters": parameters}, rules)
    grammar = WORDS.lark(rules.whole(rule))
    assert takes(grammar.fork(), [*b"<x>x:ab", token])
    assert not takes(grammar, [*b"<x>x:", token])


TOOL_NAMES = (
    *("look_up", "look-up", "look.up", "mcp/look", "mcp:look", "mcp::look/up", "2look", "a.b-c_d/e:f", "look:0"),
    *("functions.look", "/look", ":look", "-look", "look:"),
)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(("name", "sign"), VARIANTS)
def test_the_grammar_and_the_parser_take_the_same_tool_names(name: str, sign: str) -> None:
    form = ChatFormat.of(formats.BY_NAME[name], sign).tool_call_syntax
    for function in TOOL_NAMES:
        tools = [tool(function, CITY)]
        lead = "" if form.lead is None else function.join(form.lead)
        text = lead + calls_text(form, [(function, '{"city": "Paris"}')])
        assert matches(WORDS.lark(forced_calls(name, sign, tools)), text)
        for cuts in ([], every_character(text)):
            found = read(parser(name, sign=sign, prompt=prompt_of(name), tools=tools), text, cuts)
            calls = [(called, json.loads(arguments)) for called, arguments in found.calls]
            assert (calls, found.content.strip()) == ([(function, {"city": "Paris"})], "")
