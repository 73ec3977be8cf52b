"""The grammars of forced and triggered calls: each format's parser turns accepted text into calls that fit the schema.

`random_text` plays a model that picks any token that the grammar allows.
"""

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
from tests.unit.formats.parsing import (
    chat_format,
    every_character,
    forced_calls,
    functions_of,
    generation_prompt_of,
    make_parser,
    parse_text,
)
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
VARIANTS = [(each.name, "") for each in formats.FORMATS] + [
    (each.name, template) for each in formats.FORMATS for template, _ in each.variants
]


def random_text(name: str, template: str, lark: str, seed: int, prefix: str = "") -> str:
    """Return random text that the grammar accepts after `prefix`."""
    syntax = ChatFormat.of(formats.BY_NAME[name], template).tool_call_syntax
    ends = [syntax.close, *text_ends(syntax.arguments), "<|message|>"]
    constraint = WORDS.after(WORDS.lark(lark), prefix)
    assert constraint is not None
    return walk(constraint, WordVocab(), seed, n_free=40, ends=ends).decode("utf-8", "replace")


def text_ends(arguments: Arguments) -> list[str]:
    """Return the markup that may end a text argument in that notation."""
    if isinstance(arguments, Braces):
        return [arguments.quote]
    if isinstance(arguments, Elements):
        return [f"{arguments.prefix}</{key}>" for key in (*STEP["properties"], *PLACE["properties"], "item")]
    return [getattr(arguments, "after", "")]


def assert_calls_match_schemas(name: str, text: str, prompt: str | None = None) -> int:
    """Parse a text that must contain nothing but calls that match their schemas, and return how many."""
    prompt = generation_prompt_of(name) if prompt is None else prompt
    message = parse_text(make_parser(name, tools=TOOLS, prompt=prompt), text)
    assert message.calls, text
    assert not message.content.strip(), (text, message)
    for function, arguments in message.calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[function])
    return len(message.calls)


@pytest.mark.parametrize("function", ["", "step"])
@pytest.mark.parametrize(("name", "template"), VARIANTS)
def test_text_of_a_forced_grammar_parses_to_valid_calls(name: str, template: str, function: str) -> None:
    lark = forced_calls(name, template, TOOLS, name=function, parallel=True)
    for seed in range(2 if function else 4):
        n_calls = assert_calls_match_schemas(name, random_text(name, template, lark, seed))
        assert n_calls == 1 or not function


@pytest.mark.parametrize(("name", "template"), VARIANTS)
def test_text_after_each_trigger_parses_to_valid_calls(name: str, template: str) -> None:
    triggers = chat_format(name, template).call_triggers(functions_of(TOOLS), parallel=True)
    assert len({trigger.lark for trigger in triggers}) == 1  # a grammar per function would repeat all functions in each
    for seed, trigger in enumerate(triggers):
        text = trigger.text + random_text(name, template, trigger.lark, seed, trigger.begun)
        if name == "muse":
            assert_calls_match_schemas(name, " to=step<|message|>" + text)
        else:
            prompt = generation_prompt_of(name) if trigger.at_start else formats.BY_NAME[name].turn_start
            assert_calls_match_schemas(name, text, prompt)


def test_muse_grammar_accepts_only_known_functions_as_recipient() -> None:
    lark = forced_calls("muse", "", TOOLS, name="", parallel=True)
    for recipient, known in (("step", True), ("step_all", True), ("other", False)):
        assert takes(WORDS.lark(lark), f" to={recipient}<|message|><atem:function_calls>".encode()) is known


@pytest.mark.parametrize("header", ["<|channel|>commentary to=functions.step_all", " to=functions.step_all"])
@pytest.mark.parametrize("after", ["<|channel|>commentary json", " <|constrain|>json", ""])
def test_forced_harmony_call_accepts_the_recipient_before_or_after_the_channel(header: str, after: str) -> None:
    lark = forced_calls("harmony", "", TOOLS, name="", parallel=True)
    text = f"{header}{after}<|message|>{{}}"
    assert takes(WORDS.lark(lark), text.encode())
    assert assert_calls_match_schemas("harmony", text) == 1


PARAMETER_NAMES = ("$filter", "@odata.type", "a/b", "é😀", "first-name")
WITH_PARAMETER_MARKUP = [
    each.name
    for each in formats.FORMATS
    if isinstance(each.syntax.arguments, Parameters | Braces | Elements) and not each.framed
]


@pytest.mark.parametrize("name", WITH_PARAMETER_MARKUP)
def test_parameter_names_with_special_characters_are_accepted_and_parsed(name: str) -> None:
    arguments = dict.fromkeys(PARAMETER_NAMES, "Paris")
    properties = {key: {"type": "string"} for key in PARAMETER_NAMES}
    tools = [tool("step", {"type": "object", "properties": properties, "required": [*PARAMETER_NAMES]})]
    text = calls_text(formats.BY_NAME[name].syntax, [("step", json.dumps(arguments, ensure_ascii=False))])
    ((function, parsed),) = parse_text(make_parser(name, tools=tools), text).calls
    assert (function, json.loads(parsed)) == ("step", arguments)
    assert takes(WORDS.lark(forced_calls(name, "", tools)), text.encode())


LISTS = {"x": {"type": "array"}, "y": {"const": 5}}


@pytest.mark.parametrize(("name", "template"), VARIANTS)
def test_strings_in_json_arguments_may_contain_the_closing_markup(name: str, template: str) -> None:
    syntax = ChatFormat.of(formats.BY_NAME[name], template).tool_call_syntax
    if not isinstance(syntax.arguments, Parameters):
        return
    after = syntax.arguments.after.strip()
    arguments = {"x": [f'\\"a{after}b', {after: f"{after}{after}\\"}], "y": 5}
    tools = [tool("step", {"type": "object", "properties": LISTS, "required": [*LISTS]})]
    text = ("" if syntax.lead is None else "step".join(syntax.lead)) + calls_text(
        syntax, [("step", json.dumps(arguments))]
    )
    assert matches(WORDS.lark(forced_calls(name, template, tools)), text)
    for splits in ([], every_character(text)):
        parser = make_parser(name, template=template, prompt=generation_prompt_of(name), tools=tools)
        assert [json.loads(parsed) for _, parsed in parse_text(parser, text, splits).calls] == [arguments]


@pytest.mark.parametrize("value", ['["a"', "['a\"b']", "[it's \"", '["a\n', '5 "'])
def test_closing_markup_ends_a_value_that_is_not_inside_a_json_string(value: str) -> None:
    text = calls_text(formats.BY_NAME["glm"].syntax, [("step", '{"x": [], "y": 5}')]).replace("[]", value)
    tools = [tool("step", {"type": "object", "properties": LISTS})]
    ((_, parsed),) = parse_text(make_parser("glm", tools=tools), text).calls
    assert json.loads(parsed)["y"] == 5


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        *(({}, text, text) for text in ("(see below)", "[todo]", "{x}", "{'x'}", "(1, 2)", "['a' 'b']", "[it's, 'a']")),
        ({"type": ["string", "array"]}, "[todo]", "[todo]"),
        ({}, "{'a': [True, None, 'b\\'c', \"d'\"]}", {"a": [True, None, "b'c", "d'"]}),
        ({}, "['a',\n 1.5]", ["a", 1.5]),
        ({"type": "array"}, "[todo]", ["todo"]),
    ],
)
def test_text_that_may_be_a_string_is_a_list_or_object_only_if_it_is_a_literal(
    schema: Any, text: str, value: object
) -> None:
    tools = [tool("step", {"type": "object", "properties": {"x": schema}})]
    call = f"<tool_call>step\n<arg_key>x</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    ((_, parsed),) = parse_text(make_parser("glm", tools=tools), call).calls
    assert json.loads(parsed) == {"x": value}


DATE = {"type": "string", "format": "date"}
UNIT = {"anyOf": [{"type": "string", "enum": ["C", "F"]}, {"type": "null"}], "default": None}


@pytest.mark.parametrize("name", WITH_PARAMETER_MARKUP)
@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (DATE, "2024-02-29", "2023-02-29"),
        (UNIT, "C", "K"),
        (UNIT, None, 5),
        ({"type": "string", "pattern": r"^\w[\w-]\D\d\\$"}, "a-٣3\\", "a-b٣\\"),
        ({"type": "string", "pattern": r"^\W[\D]\$$"}, "é٣$", "a٣$"),
        ({"type": "string", "pattern": "^[^:[&&,--]+$"}, "ab", "a-b"),
        ({"type": "string", "pattern": "^(x|[]a])$"}, "x", "a]"),
        ({"enum": ["ab", "b"], "pattern": "^a"}, "ab", "b"),
        ({"maxLength": 9, "anyOf": [{"pattern": "^a{10}"}, {"type": "string", "enum": ["F"]}]}, "F", "a"),
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
def test_string_formats_enums_and_alternatives_are_enforced(
    name: str, schema: Any, valid: object, invalid: object
) -> None:
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "$defs": {"unit": UNIT}}
    grammar = WORDS.lark(forced_calls(name, "", [tool("step", parameters)]))
    for value, expected in ((valid, True), (invalid, False)):
        text = calls_text(formats.BY_NAME[name].syntax, [("step", json.dumps({"x": value}))])
        assert matches(grammar.fork(), text) is expected


BRACES = ("gemma4", "function-gemma")


@pytest.mark.parametrize("name", WITH_PARAMETER_MARKUP)
@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["b"], "pattern": "^a"},
        {"type": "string", "pattern": "^ab$", "maxLength": 1},
        {"type": "string", "pattern": "[]a]"},
    ],
)
def test_text_whose_limits_exclude_each_other_is_rejected(name: str, schema: Any) -> None:
    lark = forced_calls(name, "", [tool("step", {"type": "object", "properties": {"x": schema}})])
    with pytest.raises(InvalidRequest, match="no text matches all limits"):
        WORDS.lark(lark)


def test_text_that_may_be_empty_before_a_control_token_has_other_limits() -> None:
    rules = LarkText(WORDS.control_token, ["<tool>"])
    parameters = {"properties": {"x": {"type": "string", "maxLength": 0, "enum": [""]}}, "required": ["x"]}
    rule = argument_rule(Parameters("<x>", ":", "<tool>"), {"parameters": parameters}, rules)
    assert takes(WORDS.lark(rules.whole(rule)), [*b"<x>x:", WordVocab().n_tokens - 1])


NULLABLE = {"type": ["string", "null"]}


@pytest.mark.parametrize("name", [name for name in WITH_PARAMETER_MARKUP if name not in BRACES])
@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({**NULLABLE, "maxLength": 1, "pattern": "^[0-9]$"}, ["1", None], ["12", "a"]),
        ({**NULLABLE, "minLength": 6}, ["abcdef", None], ["abcde"]),
        ({"type": ["string", "integer", "boolean"], "pattern": "^[a-c]+$"}, ["ab", -12, True], ["abd", None]),
    ],
)
def test_limits_of_a_text_that_may_also_be_a_scalar_are_enforced(
    name: str, schema: Any, valid: list[object], invalid: list[object]
) -> None:
    assert_values(name, schema, valid, invalid)


@pytest.mark.parametrize("name", [name for name in WITH_PARAMETER_MARKUP if name not in (*BRACES, "minimax-m3")])
@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (
            {"anyOf": [{"type": "null"}, {"type": "string", "not": {"pattern": "^a$"}}], "maxLength": 3},
            ["abc", None],
            ["abcd"],
        ),
        ({"anyOf": [{"type": "string", "minLength": 6}, {"type": "null"}]}, ["abcdef", None], ["abcde"]),
        ({"maxLength": 3}, ["abc", 12345, [1234], {"a": "bcd"}], ["abcd"]),
        ({**NULLABLE, "enum": [None]}, [None], ["a"]),
        ({**NULLABLE, "enum": ["a", None, 5]}, ["a", None], [5]),
        ({"enum": [1, 2, "auto"]}, [1, 2, "auto"], [3, "a"]),
        ({"enum": ["a", "b", 5], "pattern": "^a"}, ["a", 5], ["b", "ab"]),
        ({"type": ["string", "array"], "items": {"type": "integer"}}, ["a", [1]], []),
    ],
)
def test_values_of_several_types_are_enforced(
    name: str, schema: Any, valid: list[object], invalid: list[object]
) -> None:
    assert_values(name, schema, valid, invalid)


@pytest.mark.parametrize("name", [*BRACES, "minimax-m3"])
@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"minLength": 2, "maxLength": 3}, ["ab", 5], ["a", "abcd"]),
        ({"pattern": "^a"}, ["ab", None, 5], ["b"]),
        ({"format": "date"}, ["2024-02-29"], ["now"]),
    ],
)
def test_limits_of_a_text_without_a_type_are_enforced_in_nested_notations(
    name: str, schema: Any, valid: list[object], invalid: list[object]
) -> None:
    assert_values(name, schema, valid, invalid)


@pytest.mark.parametrize("name", BRACES)
@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"minimum": 3}, [3, 3.5, "a", [1], {"a": 2}], [2]),
        ({"items": {"maximum": 3}, "maxItems": 1}, [[2], "a", 5], [[5], [1, 2]]),
        ({"required": ["a"]}, [{"a": 1}, 3], [{"b": 1}, {}]),
        ({"items": {"$ref": "#/$defs/n"}}, [[1], "a", 5, None], [["a"]]),
        ({"pattern": "^a", "maxLength": 0}, [5, None, [1]], ["a"]),
        ({"enum": ["a", 5, None], "pattern": "^b"}, [5, None], ["a", "b"]),
    ],
)
def test_limits_of_other_values_without_a_type_are_enforced_in_braces(
    name: str, schema: Any, valid: list[object], invalid: list[object]
) -> None:
    assert_values(name, schema, valid, invalid)


def assert_values(name: str, schema: Any, valid: list[object], invalid: list[object]) -> None:
    """Assert which values of a parameter the format's grammar accepts, and that valid ones parse back."""
    definitions = {"n": {"type": "number"}}
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "$defs": definitions}
    tools = [tool("step", parameters)]
    grammar = WORDS.lark(forced_calls(name, "", tools))
    for value in (*valid, *invalid):
        text = calls_text(formats.BY_NAME[name].syntax, [("step", json.dumps({"x": value}))])
        assert matches(grammar.fork(), text) is (value in valid), value
        if value in valid:
            ((_, parsed),) = parse_text(make_parser(name, tools=tools), text).calls
            assert json.loads(parsed) == {"x": value}


@pytest.mark.parametrize("name", ["deepseek-dsml", "gigachat-3.5", "kimi-k3"])
def test_types_of_a_format_are_those_of_the_schema(name: str) -> None:
    tools = [tool("step", {"type": "object", "properties": {"x": {"enum": ["auto", None]}}, "required": ["x"]})]
    grammar = WORDS.lark(forced_calls(name, "", tools))
    for written, value in (("auto", None), ("null", "null")):
        text = calls_text(formats.BY_NAME[name].syntax, [("step", json.dumps({"x": value}))])
        assert not matches(grammar.fork(), text.replace(json.dumps(value).strip('"'), written))


@pytest.mark.parametrize(
    "alternative",
    [
        {"type": "string", "pattern": "^a$|^b$"},
        {"type": "string", "not": {"const": "c"}},
        {"type": ["string", "null"], "maxLength": 1},
    ],
)
def test_string_with_an_unenforceable_alternative_is_unconstrained(alternative: Any) -> None:
    schema = {"anyOf": [{"type": "null"}, alternative], "maxLength": 4}
    parameters = {"type": "object", "properties": {"x": schema, "y": DATE}, "required": ["x", "y"]}
    grammar = WORDS.lark(forced_calls("qwen3-coder", "", [tool("step", parameters)]))
    for date, expected in (("2024-02-29", True), ("now", False)):
        text = calls_text(formats.BY_NAME["qwen3-coder"].syntax, [("step", json.dumps({"x": "abcd", "y": date}))])
        assert matches(grammar.fork(), text) is expected


@pytest.mark.parametrize(
    ("schema", "accepted"),
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
def test_single_quoted_python_string_is_accepted_unless_a_keyword_limits_it(schema: Any, *, accepted: bool) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "string", **schema}}, "required": ["x"]}
    grammar = WORDS.lark(forced_calls("lfm2", "", [tool("step", parameters)]))
    text = calls_text(formats.BY_NAME["lfm2"].syntax, [("step", '{"x": "Paris"}')])
    assert matches(grammar, re.sub(r"""["']Paris["']""", "'Paris'", text)) is accepted


@pytest.mark.parametrize("name", [*WITH_PARAMETER_MARKUP, "hermes", "lfm2"])
def test_required_null_makes_all_parameters_optional(name: str) -> None:
    lark = forced_calls(name, "", [tool("step", {"type": "object", "properties": {"x": DATE}, "required": None})])
    assert matches(WORDS.lark(lark), calls_text(formats.BY_NAME[name].syntax, [("step", "{}")]))


@pytest.mark.parametrize("parameters", [{"required": True}, {"properties": [5]}])
def test_malformed_parameters_are_rejected(parameters: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"tools: '(required|properties)' must be"):
        forced_calls("qwen3-coder", "", [tool("step", parameters)])


def test_control_token_after_an_empty_text_is_rejected_if_the_pattern_requires_text() -> None:
    rules, token = LarkText(WORDS.control_token, ["<tool>"]), WordVocab().n_tokens - 1
    parameters = {"properties": {"x": {"type": "string", "pattern": "^[a-c]+$"}}, "required": ["x"]}
    rule = argument_rule(Parameters("<x>", ":", "<tool>"), {"parameters": parameters}, rules)
    grammar = WORDS.lark(rules.whole(rule))
    assert takes(grammar.fork(), [*b"<x>x:ab", token])
    assert not takes(grammar, [*b"<x>x:", token])


FUNCTION_NAMES = (
    *("look_up", "look-up", "look.up", "mcp/look", "mcp:look", "mcp::look/up", "2look", "a.b-c_d/e:f", "look:0"),
    *("functions.look", "/look", ":look", "-look", "look:"),
)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(("name", "template"), VARIANTS)
def test_grammar_and_parser_accept_the_same_function_names(name: str, template: str) -> None:
    syntax = ChatFormat.of(formats.BY_NAME[name], template).tool_call_syntax
    for function in FUNCTION_NAMES:
        tools = [tool(function, CITY)]
        lead = "" if syntax.lead is None else function.join(syntax.lead)
        text = lead + calls_text(syntax, [(function, '{"city": "Paris"}')])
        assert matches(WORDS.lark(forced_calls(name, template, tools)), text)
        for splits in ([], every_character(text)):
            parser = make_parser(name, template=template, prompt=generation_prompt_of(name), tools=tools)
            message = parse_text(parser, text, splits)
            calls = [(called, json.loads(arguments)) for called, arguments in message.calls]
            assert (calls, message.content.strip()) == ([(function, {"city": "Paris"})], "")
