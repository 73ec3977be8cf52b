"""Schemas of nested arguments in the notations of Gemma 4 and MiniMax M3: accepted and rejected calls."""

import json
from functools import partial
from typing import Any

import pytest

from server.errors import InvalidRequest
from tests.unit.formats.parsing import forced_calls, make_parser, parse_text
from tests.unit.formats.recorded import tool as recorded_tool
from tests.unit.structured.builders import BYTES, matches

NS = "]<]minimax[>["


tool = partial(recorded_tool, "f")


def one(schema: Any, **more: Any) -> dict[str, Any]:
    """Return the schema of an object with one parameter, `a`."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False, **more}


def accepts(name: str, schema: Any, call: str) -> bool:
    """Return whether the format's grammar for that schema accepts the call."""
    return matches(BYTES.lark(forced_calls(name, "", [tool(schema)], name="f", parallel=False)), call)


def gemma(arguments: str) -> str:
    return f"<|tool_call>call:f{arguments}<tool_call|>".replace("'", '<|"|>')


def minimax(elements: str) -> str:
    """Return a call with the namespace token before each tag of `elements`."""
    inside = elements.replace("<", f"{NS}<")
    return f'{NS}<tool_call>\n{NS}<invoke name="f">{inside}{NS}</invoke>\n{NS}</tool_call>'


TREE = one({"$ref": "#/$defs/tree"}) | {
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "required": ["n"],
            "additionalProperties": False,
        }
    }
}
TWO = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
CASES: list[tuple[Any, str, str, Any]] = [
    # schema, Gemma 4, MiniMax M3, parsed arguments (None: the grammar rejects the call)
    (one({"type": "string"}), "{a:'Hi, {you}'}", "<a>Hi, {you}</a>", {"a": "Hi, {you}"}),
    (one({"type": "string"}), "{a:''}", "<a></a>", {"a": ""}),
    (one({"type": "string"}), "{a:5}", "", None),
    (one({"type": "string", "minLength": 2, "maxLength": 3}), "{a:'xyz'}", "<a>xyz</a>", {"a": "xyz"}),
    (one({"type": "string", "minLength": 2, "maxLength": 3}), "{a:'x'}", "<a>x</a>", None),
    (one({"type": "string", "pattern": "^[a-c]+$"}), "{a:'abc'}", "<a>abc</a>", {"a": "abc"}),
    (one({"type": "string", "pattern": "^[a-c]+$"}), "{a:'abd'}", "<a>abd</a>", None),
    (one({"type": "string", "pattern": "^(?!ab|b$)[a-c]+$"}), "{a:'ba'}", "<a>ba</a>", {"a": "ba"}),
    (one({"type": "string", "pattern": "^(?!ab|b$)[a-c]+$"}), "{a:'abc'}", "<a>b</a>", None),
    (one({"type": "string", "pattern": "^(?=.{2,3}$)[a-c]+$"}), "{a:'ab'}", "<a>ab</a>", {"a": "ab"}),
    (one({"type": "string", "pattern": "^(?=.{2,3}$)[a-c]+$"}), "{a:'abca'}", "<a>abca</a>", None),
    (one({"type": "string", "pattern": r"^(?=a\$)."}), "{a:'a$b'}", "<a>a$b</a>", {"a": "a$b"}),
    (one({"type": "integer", "maximum": 9}), "{a:7}", "<a>7</a>", {"a": 7}),
    (one({"type": "integer", "maximum": 9}), "{a:70}", "<a>70</a>", None),
    (one({"type": "boolean"}), "{a:true}", "<a>true</a>", {"a": True}),
    (one({"type": ["integer", "null"]}), "{a:null}", "<a>null</a>", {"a": None}),
    (one({"enum": ["x", 5, None]}), "{a:5}", "<a>5</a>", {"a": 5}),
    (one({"enum": ["x", 5, None]}), "{a:'x'}", "<a>x</a>", {"a": "x"}),
    (one({"enum": ["x", 5, None]}), "{a:'y'}", "<a>y</a>", None),
    (one({"const": "c"}), "{a:'c'}", "<a>c</a>", {"a": "c"}),
    (one({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}), "{a:5}", "<a>5</a>", {"a": 5}),
    (one({"type": "array", "items": {"type": "integer"}}), "{a:[]}", "<a></a>", {"a": []}),
    (
        one({"type": "array", "items": {"type": "integer"}}),
        "{a:[1,2]}",
        "<a><item>1</item><item>2</item></a>",
        {"a": [1, 2]},
    ),
    (
        one({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}),
        "{a:[1,2,3]}",
        "<a><item>1</item><item>2</item><item>3</item></a>",
        None,
    ),
    (one({"type": "array", "items": {"type": "integer"}, "minItems": 1}), "{a:[]}", "<a></a>", None),
    (one(TWO), "{a:{a:'x',b:1}}", "<a><a>x</a><b>1</b></a>", {"a": {"a": "x", "b": 1}}),
    (one(TWO), "{a:{b:1}}", "<a><b>1</b></a>", {"a": {"b": 1}}),
    (one(TWO), "{a:{}}", "<a></a>", {"a": {}}),
    (one(TWO), "{a:{a:'x',c:1}}", "<a><c>1</c></a>", None),
    (TWO, "{a:'x'}", "<a>x</a>", {"a": "x"}),
    (TWO, "{}", "", {}),
    (TWO | {"required": ["b"]}, "{a:'x'}", "<a>x</a>", None),
    (TWO | {"required": ["b"], "anyOf": [{"required": ["a"]}]}, "{a:'x'}", "<a>x</a>", None),
    (TWO | {"required": ["b"], "anyOf": [{"required": ["b"]}]}, "{b:1}", "<b>1</b>", {"b": 1}),
    (TREE, "{a:{n:1}}", "<a><n>1</n></a>", {"a": {"n": 1}}),
    (
        TREE,
        "{a:{n:1,kids:[{n:2},{n:3,kids:[]}]}}",
        "<a><n>1</n><kids><item><n>2</n></item><item><n>3</n><kids></kids></item></kids></a>",
        {"a": {"n": 1, "kids": [{"n": 2}, {"n": 3, "kids": []}]}},
    ),
    (TREE, "{a:{n:1,kids:[{}]}}", "<a><n>1</n><kids><item></item></kids></a>", None),
    (one({}), "{a:'x'}", "<a>x</a>", {"a": "x"}),
    (one(True), "{a:5}", "<a>5</a>", {"a": 5}),
]


def case_id(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)[:40]


@pytest.mark.parametrize(("schema", "braces", "elements", "expected"), CASES, ids=case_id)
def test_nested_call_is_accepted_and_parsed_or_rejected(schema: Any, braces: str, elements: str, expected: Any) -> None:
    for name, call in (("gemma4", gemma(braces)), ("minimax-m3", minimax(elements))):
        if name == "minimax-m3" and not elements and expected is None:
            continue  # elements do not distinguish strings from numbers
        assert accepts(name, schema, call) is (expected is not None), call
        if expected is not None:
            ((function, arguments),) = parse_text(make_parser(name, tools=[tool(schema)]), call).calls
            assert (function, json.loads(arguments)) == ("f", expected)


def test_gemma4_accepts_any_value_without_a_schema() -> None:
    call = gemma("{x:[1,'two',{deep:[null,{}]}],y:true}")
    assert accepts("gemma4", {"type": "object"}, call)
    ((_, arguments),) = parse_text(make_parser("gemma4", tools=[tool({})]), call).calls
    assert json.loads(arguments) == {"x": [1, "two", {"deep": [None, {}]}], "y": True}
    assert not accepts("gemma4", {"type": "object"}, gemma("{x:[1,}"))
    assert accepts("gemma4", one({"enum": [{"b": ["x", 1]}]}), gemma("{a:{b:['x',1]}}"))


@pytest.mark.parametrize("name", ["gemma4", "minimax-m3"])
@pytest.mark.parametrize(
    ("schema", "error"),
    [
        (one({"oneOf": []}), "oneOf"),
        (one({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (one({"type": "array", "minItems": 3, "maxItems": 2}), "minItems"),
        (one({"type": "string", "not": {}}), "not"),
        (one(False), "no value"),
        (one({"$ref": "#/$defs/none"}), "leads nowhere"),
        (one({"$ref": "other.json"}), "leads nowhere"),
        (one({}, properties={"a b": {}}), "a b"),
        ({"type": "array"}, "must be an object"),
        (one({}, minProperties=1), "minProperties"),
        (one({"type": "integer", "anyOf": [{"type": "string"}]}), "anyOf"),
    ],
)
def test_error_names_the_keyword_that_cannot_be_enforced(name: str, schema: Any, error: str) -> None:
    with pytest.raises(InvalidRequest, match=error):
        forced_calls(name, "", [tool(schema)], name="f", parallel=False)


@pytest.mark.parametrize("schema", [one({"type": ["string", "array"]}), one({"enum": [[1]]})])
def test_minimax_m3_rejects_string_or_array_unions_and_array_enums(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match="can't be enforced"):
        forced_calls("minimax-m3", "", [tool(schema)], name="f", parallel=False)


def test_schema_with_too_many_combined_alternatives_is_rejected() -> None:
    properties = {f"a{n}": {"type": "string"} for n in range(100)}
    schema = {"properties": properties, "anyOf": [{"anyOf": [{"required": ["a1"]}] * 10}] * 10}
    with pytest.raises(InvalidRequest, match="too many alternatives"):
        forced_calls("gemma4", "", [tool(schema)], name="f", parallel=False)
