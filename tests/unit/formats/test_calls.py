"""Parsing of calls: in any split, truncated by a token limit, and with text arguments that a grammar constrains."""

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server import formats
from server.formats import FORMATS
from server.formats.arguments import object_of
from server.formats.grammar.call_grammar import CallGrammar
from server.formats.grammar.lark_text import LarkText
from server.formats.parsing.pieces import ToolCallArguments
from server.formats.parsing.reasoning import OutputParser
from server.formats.parsing.stream_parser import ParserOptions, StreamParser
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat
from server.formats.written import calls_text
from server.structured.grammar.limits import MAX_CALLS_CHARS
from server.structured.text_grammar import TextGrammar
from tests.support.fakes import FakeVocab
from tests.unit.formats.parsing import (
    ParsedMessage,
    chat_format,
    every_character,
    forced_calls,
    functions_of,
    generation_prompt_of,
    make_parser,
    parse_text,
)
from tests.unit.formats.recorded import RECORDED, Recorded, tool
from tests.unit.formats.test_call_grammars import TOOLS, VARIANTS, random_text
from tests.unit.structured.builders import BYTES, walk

ContentAndCalls = tuple[str, list[tuple[str, str]]]


def content_and_calls(name: str, text: str, splits: list[int]) -> ContentAndCalls:
    """Return the content, and each call's name and arguments."""
    message = parse_text(make_parser(name, tools=[tool(function, {}) for function in ("f", "g")]), text, splits)
    return message.content, message.calls


ODD = '{"b":  [1, {"c": "}]\\"</tool_call>"}] , "é": null}'
CASES: list[tuple[str, str, ContentAndCalls]] = [
    ("qwen3-coder", "<function=f>\n</function>\n</seed:tool_call>", ("", [("f", "{}")])),
    ("gemma3", "```tool_code\nprint([f(), g()])\n```", ("", [("f", "{}"), ("g", "{}")])),
    ("gemma3", "```tool_code\n[f()]\n[g()]\n```", ("", [("f", "{}"), ("g", "{}")])),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": ' + ODD + "}\n</tool_call>", ("", [("f", ODD)])),
    ("hermes", '<tool_call>{"name":"f","arguments":{}}</tool_call>\n\n', ("", [("f", "{}")])),
    ("hermes", '<tool_call>{"name":"f","arguments":{}, "id": {"x": "}"}}</tool_call> ok', (" ok", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}} and more', (" and more", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}</tool_call>', ("", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', ("", [("f", '{"a": 1')])),
    ("hermes", '<tool_call>{"name": "f", "argu', ('<tool_call>{"name": "f", "argu', [])),
    ("hermes", "<tool_call>[1]</tool_call>", ("<tool_call>[1]</tool_call>", [])),
    ("hermes", '<tool_call><tool_call>{"name":"f","arguments":{}}</tool_call>', ("<tool_call>", [("f", "{}")])),
    (
        "hermes",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        ('<tool_call>{"name": 5, "arguments": {}}</tool_call>', []),
    ),
    ("hermes", "a <tool_cal b </tool_call>", ("a <tool_cal b </tool_call>", [])),
    ("llama3", '{"name": "f", "parameters": {"a": 1}}', ("", [("f", '{"a": 1}')])),
    ("llama3", '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', ("", [("f", "{}")])),
    ("llama3", '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', ("", [("f", "{}"), ("g", "{}")])),
    ("llama3", '{"answer": 42} is JSON', ('{"answer": 42} is JSON', [])),
    ("llama3", 'Look: {"name": "f", "parameters": {}}', ('Look: {"name": "f", "parameters": {}}', [])),
    ("llama3", '<|python_tag|>brave_search.call(query="x")', ('<|python_tag|>brave_search.call(query="x")', [])),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "a1b2c3d4e"}]', ("", [("f", '{"a": 1}')])),
    (
        "mistral",
        'ok [TOOL_CALLS] [{"name": "f", "arguments": {}}, {"arguments": {"x": 2}, "name": "g"}]',
        ("ok", [("f", "{}"), ("g", '{"x": 2}')]),
    ),
    ("mistral", "[TOOL_CALLS]f[ARGS]{}", ("[TOOL_CALLS]f[ARGS]{}", [])),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', ("", [("f", "{}")])),
    ("hermes", '<tool_call>{"arguments": null, "name": "f"}</tool_call>', ("", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f", "arguments": "null"}</tool_call>', ("", [("f", "{}")])),
    ("kimi-k2", "<|tool_call_begin|>f<|tool_call_argument_begin|>null<|tool_call_end|>", ("", [("f", "{}")])),
    ("harmony", "<|channel|>commentary to=functions.f<|message|>null<|call|>", ("", [("f", "{}")])),
    ("harmony", "   to=functions.f<|channel|>commentary json<|message|>{}<|call|>", ("", [("f", "{}")])),
    ("harmony", "<|channel|>commentary to=browser.open<|message|>{}<|call|>", ("{}", [])),
    ("harmony", "<|channel|>commentary to=functions.f code<|message|>print(1)<|call|>", ("print(1)", [])),
    ("harmony", "<|start|>assistant to=python<|channel|>analysis code<|message|>print(1)<|call|>ok", ("ok", [])),
]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_calls_parse_alike_in_any_split(case: tuple[str, str, ContentAndCalls], data: st.DataObject) -> None:
    name, text, expected = case
    splits = data.draw(st.sets(st.integers(1, len(text) - 1), max_size=8))
    assert content_and_calls(name, text, sorted(splits)) == expected


def test_preserved_tags_include_call_markup_only_if_calls_are_allowed() -> None:
    hermes = chat_format("hermes")
    assert hermes.tags(calls=True) == ("<think>", "</think>", "<tool_call>", "</tool_call>")
    assert hermes.tags(calls=False) == ("<think>", "</think>")
    assert "<|channel|>" in chat_format("harmony").tags(calls=False)


def test_too_deeply_nested_arguments_become_content_or_stay_whole() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    for text in (f'<tool_call>{{"name": "f", "arguments": {deep}}}</tool_call>', f'<tool_call>{{"arguments": {deep}}}'):
        assert content_and_calls("hermes", text, []) in ((text, []), ("", [("f", deep)]))


CALLS = [recorded for recorded in RECORDED if recorded.calls]
MAX_AMBIGUOUS_CHARS = 3
"""Characters of truncated markup that may also be text."""
STEP = 5
AMBIGUOUS_STARTS = ("llama3", "generic", "pythonic", "gemma3", "xlam", "glm4")
"""Formats whose calls and answers may start alike: it is a call for sure after the function's name."""


def parse_truncated(parser: OutputParser, text: str, *, one_chunk: bool) -> ParsedMessage:
    """Parse a text that a token limit ended, whole or by character."""
    message = ParsedMessage()
    for chunk in (text,) if one_chunk else text:
        message.add(parser.feed(chunk))
    message.add(parser.finish(cut=True))
    return message


@pytest.mark.parametrize(("name", "template"), VARIANTS)
def test_truncated_forced_call_leaves_no_markup_in_content(name: str, template: str) -> None:
    lark = forced_calls(name, template, TOOLS, name="", parallel=True)
    text = random_text(name, template, lark, 1)
    for n in range(0, len(text), STEP):
        parser = chat_format(name, template).parser(
            functions_of(TOOLS),
            generation_prompt=generation_prompt_of(name),
            reasoning_format="none" if n % 3 else "auto",
            forced=True,
        )
        assert not parse_truncated(parser, text[:n], one_chunk=n % 2 == 0).content, text[:n]


@pytest.mark.parametrize("recorded", CALLS, ids=lambda recorded: recorded.format)
def test_truncated_unforced_call_leaves_no_markup_in_content(recorded: Recorded) -> None:
    for n in range(0, len(recorded.text), STEP):
        parser = make_parser(recorded.format, template=recorded.template, prompt=recorded.prompt)
        content = parse_truncated(parser, recorded.text[:n], one_chunk=n % 2 == 0).content.strip()
        if recorded.content.startswith(content):
            continue
        extra = content.removeprefix(recorded.content).strip()
        if recorded.format in AMBIGUOUS_STARTS and "city" not in extra:
            assert '"parameters"' not in extra
            assert '"arguments"' not in extra
            continue
        is_truncated_marker = recorded.text[:n].rstrip().endswith(extra)
        has_whole_marker = any(tag in extra for tag in formats.BY_NAME[recorded.format].openings)
        assert len(extra) <= MAX_AMBIGUOUS_CHARS or (is_truncated_marker and not has_whole_marker), recorded.text[:n]


@pytest.mark.parametrize("text", ["look at <tool", "look at <tool_call", "[x] <thi", "<thin", "  <tool_cal"])
def test_truncated_marker_at_the_end_of_a_truncated_reply_is_text(text: str) -> None:
    for one_chunk in (False, True):
        assert parse_truncated(make_parser("hermes"), text, one_chunk=one_chunk).content == text
        parser = make_parser("hermes", template="</think>")
        message = parse_truncated(parser, f"<think>{text.strip()}</thi", one_chunk=one_chunk)
        assert (message.reasoning, message.content) == (f"{text.strip()}</thi", "")


@pytest.mark.parametrize("end", [",", ", "])
def test_comma_after_the_last_call_of_a_truncated_list_is_dropped(end: str) -> None:
    for name, text in (
        ("apertus", '<|tools_prefix|>[{"get_weather": {}}'),
        ("granite3", '<|tool_call|>[{"name": "get_weather", "arguments": {}}'),
    ):
        for one_chunk in (False, True):
            message = parse_truncated(make_parser(name), text + end, one_chunk=one_chunk)
            assert (message.content, message.calls) == ("", [("get_weather", "{}")])


@pytest.mark.parametrize("text", ["a", "all", "get_time\n{}>>>al"])
def test_truncated_functionary_recipient_is_dropped(text: str) -> None:
    for one_chunk in (False, True):
        parser = make_parser("functionary-v3.2", prompt=generation_prompt_of("functionary-v3.2"))
        assert parse_truncated(parser, text, one_chunk=one_chunk).content == ""


@pytest.mark.parametrize(
    ("name", "text", "complete"),
    [
        ("pythonic", "[get_weather(", {}),
        ("pythonic", "[get_weather(ci", {}),
        ("pythonic", "[get_weather(city='Paris', exact=Tru", {"city": "Paris"}),
        ("gemma4", "<|tool_call>call:get_weather{", {}),
        ("gemma4", '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,da', {"city": "Paris"}),
        ("minimax-m2", '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="days">3</p', {}),
        ("minimax-m2", '<minimax:tool_call>\n<invoke name="get_time">\n<parameter name="zone">Eur', {}),
    ],
)
def test_truncated_argument_is_omitted_from_the_call(name: str, text: str, complete: dict[str, str]) -> None:
    for one_chunk in (False, True):
        [(_, arguments)] = parse_truncated(make_parser(name), text, one_chunk=one_chunk).calls
        assert object_of(arguments, whole=True) == complete


@pytest.mark.parametrize("name", ["glm", "minimax-m3"])
@pytest.mark.parametrize(
    ("text", "streamed"),
    [("[a", '"[a'), ("nul", ""), ("null", ""), ("nullify", '"nullify'), ("12", ""), ("12 km", '"12 km')],
)
def test_argument_that_may_be_null_or_a_number_streams_once_it_is_a_text(name: str, text: str, streamed: str) -> None:
    tools = [tool("step", {"type": "object", "properties": {"x": {"type": ["string", "null", "number"]}}})]
    call = calls_text(formats.BY_NAME[name].syntax, [("step", '{"x": "@"}')])
    message = ParsedMessage()
    message.add(make_parser(name, tools=tools).feed(call.partition("@")[0] + text))
    assert message.calls == [("step", f'{{"x": {streamed}')]


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ('{"a": 1, "b": 12', {"a": 1}),
        ('{"a": 1, "b": -1.5e', {"a": 1}),
        ('{"a": "x", "b": [12 ', {"a": "x", "b": [12]}),
        *((text, {"arguments": text}) for text in ("{see page 12", '{"a": "x"} 12', '{"a": 1 12', '{"a": 1, 12')),
        *((f'{{"a": 5, "d": {end}', {"a": 5}) for end in ("2024-01-1", "1.2.3", "1.5e+")),
        *((text, {}) for text in ('{"a": 12', '{"a": -1.5e', '{"a": "1.2.3')),
        *((text, {"arguments": text}) for text in ('{"version": 1.2.3', '{"a": 1, 1.2.3', '{"a": 1, "b" 1.2.3')),
        ('{"a": true', {"a": True}),
    ],
)
def test_last_number_is_omitted_only_if_the_json_is_truncated(text: str, complete: dict[str, Any]) -> None:
    assert object_of(text, whole=True) == complete


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((f'{{"city": "Paris", {end}', {"city": "Paris"}) for end in ('"un', '"unit": ')),
        *(('{"a": [1, 2', {"a": [1, 2]}), ("{", {}), ("null", {}), ("[1]", {"arguments": [1]})),
        *((text, {"arguments": text}) for text in ("{oops", '{"a": 1}{"b": 2}', '{"a": "b" and')),
    ],
)
def test_arguments_of_earlier_turns_become_an_object(text: str, expected: dict[str, Any]) -> None:
    assert object_of(text) == expected


def test_long_digit_strings_in_truncated_arguments_parse_in_linear_time() -> None:
    digits = "1" * 100_000
    start_s = time.process_time()
    assert object_of(f'{{"d": "{digits}x", "e": tr', whole=True) == {"d": f"{digits}x"}
    assert time.process_time() - start_s < 2


@pytest.mark.parametrize(
    ("reasoning_format", "content", "reasoning"),
    [("auto", "", "Hm, a <tool_call>."), ("none", "<think>Hm, a <tool_call>.</think>", "")],
)
def test_reasoning_before_a_truncated_forced_call_is_kept(reasoning_format: str, content: str, reasoning: str) -> None:
    parser = make_parser("hermes", tools=TOOLS, reasoning_format=reasoning_format, forced=True)
    text = "<think>Hm, a <tool_call>.</think>\n<tool_call>\n{"
    message = parse_truncated(parser, text, one_chunk=False)
    assert (message.content.strip(), message.reasoning, message.calls) == (content, reasoning, [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3-coder", "<tool_call>\n<function=%s>\n</function>\n</tool_call>"),
        ("qwen3-coder", "<function=%s>\n</function>\n</tool_call>"),
        ("glm", "<tool_call>%s\n</tool_call>"),
        ("gemma4", "<|tool_call>call:%s{}<tool_call|>"),
        ("glm4", "%s\n{}"),
        ("glm4", "%s \n{}"),
    ],
)
@pytest.mark.parametrize("function", ["get", "get it", "get it now"])
def test_known_function_names_without_quotes_may_contain_spaces(name: str, text: str, function: str) -> None:
    tools = [tool(each, {}) for each in ("get", "get it", "get it now")]
    for splits in ([], every_character(text % function)):
        message = parse_text(make_parser(name, tools=tools), text % function, splits)
        assert (message.content, message.calls) == ("", [(function, "{}")])


PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
LINES = TextGrammar(
    "lark", 'start: (SIGN | line | "é")+ "!"\nSIGN: "x" | "<" | "\\"" | "\\\\"\nline: /[^!]{0,3}/ "\\n"'
)
SIGNS = TextGrammar("regex", r'[a<"\\\n]{1,20}!?')
SYNTAXES = [(tool_format, syntax) for tool_format in FORMATS for syntax in tool_format.syntaxes]


def arguments_of(tool_format: ToolFormat, text: str) -> str:
    primer = ">>>" if tool_format.name == "functionary-v3.2" else ""
    parser = StreamParser(tool_format.parse, ParserOptions(functions={"patch": PARAMETERS}, primer=primer))
    pieces = [piece for char in text for piece in parser.feed(char)] + parser.finish()
    return "".join(piece.text for piece in pieces if isinstance(piece, ToolCallArguments))


@pytest.mark.parametrize(("tool_format", "syntax"), SYNTAXES, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("grammar", [LINES, SIGNS], ids=["lark", "regex"])
def test_accepted_calls_parse_to_text_of_the_embedded_grammar(
    tool_format: ToolFormat, syntax: ToolCallSyntax, grammar: TextGrammar
) -> None:
    function = {"name": "patch", "description": "", "parameters": PARAMETERS, "text": grammar}
    lark = CallGrammar(syntax, [function], LarkText(), parallel=False).forced()
    expected = re.compile(r"[^!]*!" if grammar is LINES else r'[a<"\\\n]{1,20}!?')
    for seed in range(3):
        constraint = BYTES.lark(lark, max_chars=MAX_CALLS_CHARS)
        text = walk(constraint, FakeVocab(), seed, preferred=b'!<"\\\n/ax\xc3', closing=b"!").decode(errors="replace")
        assert expected.fullmatch(json.loads(arguments_of(tool_format, text))["input"]), text
