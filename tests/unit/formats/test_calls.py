"""Calls: read as they arrive, cut off, and with arguments that are text."""

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
from server.formats.parsing.pieces import Piece, ToolCallArguments
from server.formats.parsing.reasoning import OutputParser
from server.formats.parsing.stream_parser import Reading, StreamParser
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat
from server.structured.grammar.limits import MAX_CALLS_CHARS
from server.structured.text_grammar import TextGrammar
from tests.support.fakes import FakeVocab
from tests.unit.formats.reading import (
    Read,
    chat_format,
    every_character,
    forced_calls,
    functions_of,
    parser,
    prompt_of,
    read,
)
from tests.unit.formats.recorded import RECORDED, Recorded, tool
from tests.unit.formats.test_call_grammars import TOOLS, VARIANTS, walked
from tests.unit.structured.builders import BYTES, walk

Meant = tuple[str, list[tuple[str, str]]]


def read_as(form: str, text: str, cuts: list[int], *, parallel: bool = True) -> Meant:
    """Content, and each call's name and arguments."""
    functions = [tool(name, {}) for name in ("f", "g")]
    found = read(parser(form, tools=functions, parallel=parallel), text, cuts)
    return found.content, found.calls


ODD = '{"b":  [1, {"c": "}]\\"</tool_call>"}] , "é": null}'
CASES: list[tuple[str, str, Meant]] = [
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
def test_any_split_gives_the_same(case: tuple[str, str, Meant], data: st.DataObject) -> None:
    form, text, expected = case
    cuts = data.draw(st.sets(st.integers(1, len(text) - 1), max_size=8))
    assert read_as(form, text, sorted(cuts)) == expected


def test_the_tags_of_the_format_are_shown() -> None:
    hermes = chat_format("hermes")
    assert hermes.tags(calls=True) == ("<think>", "</think>", "<tool_call>", "</tool_call>")
    assert hermes.tags(calls=False) == ("<think>", "</think>")
    assert "<|channel|>" in chat_format("harmony").tags(calls=False)


def test_arguments_that_nest_too_deeply_are_text() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    for text in (f'<tool_call>{{"name": "f", "arguments": {deep}}}</tool_call>', f'<tool_call>{{"arguments": {deep}}}'):
        content, calls = read_as("hermes", text, [])
        assert (content, calls) in ((text, []), ("", [("f", deep)]))


CALLS = [recorded for recorded in RECORDED if recorded.calls]
N_DOUBTFUL = 3
"""Characters of markup that may as well be text."""
STEP = 5
NO_ADAPTERS = ("llama3", "generic", "pythonic", "gemma3", "xlam", "glm4")
"""Formats whose calls may begin as an answer does, which is known after the function's name."""


def cut(made: OutputParser, text: str, *, in_one_piece: bool) -> Read:
    """The message of a text that a limit has ended."""
    found = Read()
    for piece in (text,) if in_one_piece else text:
        found.take(made.feed(piece))
    found.take(made.finish(cut=True))
    return found


@pytest.mark.parametrize(("name", "sign"), VARIANTS)
def test_a_forced_call_never_shows_its_markup(name: str, sign: str) -> None:
    lark = forced_calls(name, sign, TOOLS, name="", parallel=True)
    text, form = walked(name, sign, lark, 1), chat_format(name, sign)
    for n in range(0, len(text), STEP):
        made = form.parser(
            functions_of(TOOLS),
            generation_prompt=prompt_of(name),
            reasoning_format="none" if n % 3 else "auto",
            forced=True,
        )
        found = cut(made, text[:n], in_one_piece=n % 2 == 0)
        assert not found.content, text[:n]


@pytest.mark.parametrize("recorded", CALLS, ids=lambda recorded: recorded.format)
def test_neither_does_a_call_that_a_model_has_begun(recorded: Recorded) -> None:
    for n in range(0, len(recorded.text), STEP):
        made = parser(recorded.format, sign=recorded.sign, prompt=recorded.prompt)
        found = cut(made, recorded.text[:n], in_one_piece=n % 2 == 0)
        said = found.content.strip()
        if recorded.content.startswith(said):
            continue
        beside = said.removeprefix(recorded.content).strip()
        if recorded.format in NO_ADAPTERS and "city" not in beside:
            assert '"parameters"' not in beside
            assert '"arguments"' not in beside
            continue
        half_marker = recorded.text[:n].rstrip().endswith(beside)
        whole_marker = any(tag in beside for tag in formats.BY_NAME[recorded.format].openings)
        assert len(beside) <= N_DOUBTFUL or (half_marker and not whole_marker), recorded.text[:n]


@pytest.mark.parametrize("written", ["look at <tool", "look at <tool_call", "[x] <thi", "<thin", "  <tool_cal"])
def test_half_a_marker_is_text_where_the_reply_is_cut(written: str) -> None:
    for in_one_piece in (False, True):
        assert cut(parser("hermes"), written, in_one_piece=in_one_piece).content == written
        thought = cut(parser("hermes", sign="</think>"), f"<think>{written.strip()}</thi", in_one_piece=in_one_piece)
        assert (thought.reasoning, thought.content) == (f"{written.strip()}</thi", "")


@pytest.mark.parametrize("end", [",", ", "])
def test_a_comma_in_a_list_of_calls_is_markup_where_the_reply_is_cut(end: str) -> None:
    for form, written in (
        ("apertus", '<|tools_prefix|>[{"get_weather": {}}'),
        ("granite3", '<|tool_call|>[{"name": "get_weather", "arguments": {}}'),
    ):
        for in_one_piece in (False, True):
            found = cut(parser(form), written + end, in_one_piece=in_one_piece)
            assert (found.content, found.calls) == ("", [("get_weather", "{}")])


@pytest.mark.parametrize("written", ["a", "all", "get_time\n{}>>>al"])
def test_half_a_recipient_is_markup_where_the_reply_is_cut(written: str) -> None:
    for in_one_piece in (False, True):
        made = parser("functionary-v3.2", prompt=prompt_of("functionary-v3.2"))
        assert cut(made, written, in_one_piece=in_one_piece).content == ""


@pytest.mark.parametrize(
    ("form", "written", "whole"),
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
def test_half_an_argument_is_none_where_the_reply_is_cut(form: str, written: str, whole: dict[str, str]) -> None:
    for in_one_piece in (False, True):
        [(_, arguments)] = cut(parser(form), written, in_one_piece=in_one_piece).calls
        assert object_of(arguments, whole=True) == whole


@pytest.mark.parametrize(
    ("written", "whole"),
    [
        ('{"a": 1, "b": 12', {"a": 1}),
        ('{"a": 1, "b": -1.5e', {"a": 1}),
        ('{"a": "x", "b": [12 ', {"a": "x", "b": [12]}),
        *((text, {"arguments": text}) for text in ("{see page 12", '{"a": "x"} 12', '{"a": 1 12', '{"a": 1, 12')),
        *((f'{{"a": 5, "d": {cut}', {"a": 5}) for cut in ("2024-01-1", "1.2.3", "1.5e+")),
        *((text, {}) for text in ('{"a": 12', '{"a": -1.5e', '{"a": "1.2.3')),
        *((text, {"arguments": text}) for text in ('{"version": 1.2.3', '{"a": 1, 1.2.3', '{"a": 1, "b" 1.2.3')),
        ('{"a": true', {"a": True}),
    ],
)
def test_a_number_is_only_cut_off_truncated_json(written: str, whole: dict[str, Any]) -> None:
    assert object_of(written, whole=True) == whole


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        *((f'{{"city": "Paris", {cut}', {"city": "Paris"}) for cut in ('"un', '"unit": ')),
        *(('{"a": [1, 2', {"a": [1, 2]}), ("{", {}), ("null", {}), ("[1]", {"arguments": [1]})),
        *((text, {"arguments": text}) for text in ("{oops", '{"a": 1}{"b": 2}', '{"a": "b" and')),
    ],
)
def test_arguments_of_earlier_turns_are_shown_as_an_object(written: str, shown: dict[str, Any]) -> None:
    assert object_of(written) == shown


def test_many_digits_of_truncated_arguments_are_read_in_time() -> None:
    digits = "1" * 100_000
    began = time.process_time()
    assert object_of(f'{{"d": "{digits}x", "e": tr', whole=True) == {"d": f"{digits}x"}
    assert time.process_time() - began < 2


@pytest.mark.parametrize("name", ["search", "search web"])
def test_a_name_that_begins_a_longer_one_is_found_before_a_space(name: str) -> None:
    functions = [tool(each, {}) for each in ("search", "search web")]
    written = f'{name} \n{{"q": "x"}}'
    for cuts in ([], list(range(1, len(written)))):
        assert read(parser("glm4", tools=functions), written, cuts).calls == [(name, '{"q": "x"}')]


def test_reasoning_before_a_forced_call_stays_where_it_is() -> None:
    hermes = chat_format("hermes")
    said = "<think>Hm, a <tool_call>.</think>\n<tool_call>\n{"
    for reasoning_format, content, reasoning in (
        ("auto", "", "Hm, a <tool_call>."),
        ("none", "<think>Hm, a <tool_call>.</think>", ""),
    ):
        made = hermes.parser(functions_of(TOOLS), reasoning_format=reasoning_format, forced=True)
        found = cut(made, said, in_one_piece=False)
        assert (found.content.strip(), found.reasoning, found.calls) == (content, reasoning, [])


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("qwen3-coder", "<tool_call>\n<function=get it now>\n</function>\n</tool_call>"),
        ("qwen3-coder", "<function=get it now>\n</function>\n</tool_call>"),
        ("glm", "<tool_call>get it now\n</tool_call>"),
        ("gemma4", "<|tool_call>call:get it now{}<tool_call|>"),
        ("glm4", "get it now\n{}"),
    ],
)
def test_a_known_name_in_bare_markup_may_contain_spaces(form: str, text: str) -> None:
    made = parser(form, tools=[tool(name, {}) for name in ("get it", "get it now")])
    found = read(made, text, every_character(text))
    assert (found.content, found.calls) == ("", [("get it now", "{}")])


PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
END = "!"
LINES = TextGrammar(
    "lark", 'start: (SIGN | line | "é")+ "!"\nSIGN: "x" | "<" | "\\"" | "\\\\"\nline: /[^!]{0,3}/ "\\n"'
)
SIGNS = TextGrammar("regex", r'[a<"\\\n]{1,20}!?')
FORMS = [(form, calls) for form in FORMATS for calls in (form.syntax, *(found for _, found in form.variants))]


def arguments_of(form: ToolFormat, text: str) -> str:
    reading = Reading(functions={"patch": PARAMETERS}, primer=">>>" if form.name == "functionary-v3.2" else "")
    parser = StreamParser(form.parse, reading)
    pieces: list[Piece] = [piece for char in text for piece in parser.feed(char)]
    pieces += parser.finish()
    return "".join(piece.text for piece in pieces if isinstance(piece, ToolCallArguments))


@pytest.mark.parametrize(("form", "calls"), FORMS, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("grammar", [LINES, SIGNS], ids=["lark", "regex"])
def test_every_call_that_is_allowed_is_read_as_a_text_of_the_grammar(
    form: ToolFormat, calls: ToolCallSyntax, grammar: TextGrammar
) -> None:
    function = {"name": "patch", "description": "", "parameters": PARAMETERS, "text": grammar}
    lark = CallGrammar(calls, [function], LarkText(), parallel=False).forced()
    wanted = re.compile(r"[^!]*!" if grammar is LINES else r'[a<"\\\n]{1,20}!?')
    for seed in range(3):
        made = BYTES.lark(lark, max_chars=MAX_CALLS_CHARS)
        text = walk(made, FakeVocab(), seed, liked=b'!<"\\\n/ax\xc3', closing=b"!").decode(errors="replace")
        assert wanted.fullmatch(json.loads(arguments_of(form, text))["input"]), text
