"""The forms of tool calls: read in any split, nothing lost; and grammars that force them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.chat.calls import CallFormat, CallParser
from server.chat.hermes import FORMAT as HERMES
from server.chat.llama3 import FORMAT as LLAMA3
from server.chat.mistral import FORMAT as MISTRAL
from server.chat.parser import call_format, call_tags, forced_call_grammar
from server.chat.pieces import Content, Piece, ToolCallArguments, ToolCallBegin
from server.chat.template import ChatTemplate
from tests.unit.grammar.builders import BYTES, matches

Read = tuple[str, list[tuple[str, str]]]


def read(form: CallFormat, text: str, cuts: list[int], *, parallel: bool = True) -> Read:
    """Content, and each call's name and arguments."""
    parser = CallParser(form, parallel=parallel)
    pieces: list[Piece] = []
    for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True):
        pieces += parser.feed(text[a:b])
    pieces += parser.finish()
    content, names, arguments = "", [], []
    for piece in pieces:
        match piece:
            case Content():
                content += piece.text
            case ToolCallBegin():
                assert piece.index == len(names)
                assert len(piece.id) == form.id_length
                names.append(piece.name)
                arguments.append("")
            case ToolCallArguments():
                arguments[piece.index] += piece.text
    return content, list(zip(names, arguments, strict=True))


ODD = '{"b":  [1, {"c": "}]\\"</tool_call>"}] , "é": null}'
CASES: list[tuple[CallFormat, str, Read]] = [
    (HERMES, '<tool_call>\n{"name": "f", "arguments": ' + ODD + "}\n</tool_call>", ("", [("f", ODD)])),
    (HERMES, '<tool_call>{"name":"f","arguments":{}}</tool_call>\n\n', ("", [("f", "{}")])),
    (HERMES, '<tool_call>{"name":"f","arguments":{}, "id": {"x": "}"}}</tool_call> ok', (" ok", [("f", "{}")])),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")])),
    (HERMES, '<tool_call>{"name": "f", "arguments": {}} and more', (" and more", [("f", "{}")])),
    (HERMES, '<tool_call>{"name": "f", "arguments": {}</tool_call>', ("", [("f", "{}")])),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1', ("", [("f", '{"a": 1')])),
    (HERMES, '<tool_call>{"name": "f", "argu', ('<tool_call>{"name": "f", "argu', [])),
    (HERMES, "<tool_call>[1]</tool_call>", ("<tool_call>[1]</tool_call>", [])),
    (HERMES, '<tool_call><tool_call>{"name":"f","arguments":{}}</tool_call>', ("<tool_call>", [("f", "{}")])),
    (
        HERMES,
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        ('<tool_call>{"name": 5, "arguments": {}}</tool_call>', []),
    ),
    (HERMES, "a <tool_cal b </tool_call>", ("a <tool_cal b </tool_call>", [])),
    (LLAMA3, '{"name": "f", "parameters": {"a": 1}}', ("", [("f", '{"a": 1}')])),
    (LLAMA3, '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', ("", [("f", "{}")])),
    (LLAMA3, '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', ("", [("f", "{}"), ("g", "{}")])),
    (LLAMA3, '{"answer": 42} is JSON', ('{"answer": 42} is JSON', [])),
    (LLAMA3, 'Look: {"name": "f", "parameters": {}}', ('Look: {"name": "f", "parameters": {}}', [])),
    (LLAMA3, '<|python_tag|>brave_search.call(query="x")', ('<|python_tag|>brave_search.call(query="x")', [])),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "a1b2c3d4e"}]', ("", [("f", '{"a": 1}')])),
    (
        MISTRAL,
        'ok [TOOL_CALLS] [{"name": "f", "arguments": {}}, {"arguments": {"x": 2}, "name": "g"}]',
        ("ok", [("f", "{}"), ("g", '{"x": 2}')]),
    ),
    (MISTRAL, "[TOOL_CALLS]f[ARGS]{}", ("[TOOL_CALLS]f[ARGS]{}", [])),
]


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
def test_whole_or_character_by_character_a_call_is_the_same(form: CallFormat, text: str, expected: Read) -> None:
    assert read(form, text, []) == expected
    assert read(form, text, list(range(1, len(text)))) == expected


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_any_split_gives_the_same(case: tuple[CallFormat, str, Read], data: st.DataObject) -> None:
    form, text, expected = case
    cuts = data.draw(st.sets(st.integers(1, len(text) - 1), max_size=8))
    assert read(form, text, sorted(cuts)) == expected


FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": ',
    "{",
    "}",
    '"',
    "[TOOL_CALLS]",
    "[",
    "]",
    ",",
    "x",
    "\n",
    "\\",
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([HERMES, LLAMA3, MISTRAL]), st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.data())
def test_nonsense_reads_the_same_in_any_split_and_letters_are_not_lost(
    form: CallFormat, fragments: list[str], data: st.DataObject
) -> None:
    text = "".join(fragments)
    cuts = data.draw(st.sets(st.integers(0, len(text)), max_size=6))
    whole, parts = read(form, text, []), read(form, text, sorted(cuts))
    assert whole == parts
    if not whole[1]:
        assert (
            whole[0] == text or whole[0].split() == text.split() or "".join(whole[0].split()) == "".join(text.split())
        )


def test_only_the_first_call_counts_without_parallel_calls() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert read(HERMES, call + call, [], parallel=False) == ("", [("f", "{}")])


def test_the_form_follows_from_the_template() -> None:
    assert call_format("… <tool_call>\n{ … }\n</tool_call>") is HERMES
    assert call_format("<tool_call><function=x><parameter=y></tool_call>") is None
    assert call_format('<|python_tag|> {"name": "x", "parameters": {}}') is LLAMA3
    assert call_format("[TOOL_CALLS] [") is MISTRAL
    assert call_format("[TOOL_CALLS] [ARGS]") is None
    assert call_tags(ChatTemplate("", bos_token="", eos_token="")) == ("<tool_call>", "</tool_call>")


POINT = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/n"}},
    "required": ["at"],
    "$defs": {"n": {"type": "integer"}},
}
TOOLS = [
    {"type": "function", "function": {"name": "move", "parameters": POINT}},
    {"type": "function", "function": {"name": "move_all"}},
]
SOURCES = {
    "hermes": "{{ tools }}{{ messages }}<tool_call></tool_call>",
    "llama3": '{{ tools }}{{ messages }}<|python_tag|>{"name": "x", "parameters": {}}',
    "mistral": "{{ tools }}{{ messages }}[TOOL_CALLS]",
}


@pytest.mark.parametrize(
    ("source", "wrap", "key", "joint"),
    [
        ("hermes", "<tool_call>\n{}\n</tool_call>", "arguments", "\n"),
        ("llama3", "{}", "parameters", ""),
        ("mistral", "[TOOL_CALLS][{}]", "arguments", ""),
    ],
)
def test_a_forced_call_takes_what_the_parser_reads_and_nothing_else(
    source: str, wrap: str, key: str, joint: str
) -> None:
    template = ChatTemplate(SOURCES[source], bos_token="", eos_token="")
    form = call_format(template.tool_source)
    assert form is not None

    def call(name: str, arguments: str) -> str:
        return wrap.replace("{}", f'{{"name": "{name}", "{key}": {arguments}}}')

    either = BYTES.lark(forced_call_grammar(template, TOOLS, name="", parallel=True))
    assert matches(either.fork(), call("move", '{"at": 3}'))
    assert matches(either.fork(), call("move_all", '{"any": [1]}'))
    assert not matches(either.fork(), call("move", '{"at": "3"}'))
    assert not matches(either.fork(), "Hello")
    named = BYTES.lark(forced_call_grammar(template, TOOLS, name="move", parallel=True))
    assert matches(named.fork(), call("move", '{"at": 3}'))
    assert not matches(named.fork(), call("move_all", "{}"))
    assert read(form, call("move", '{"at": 3}'), []) == ("", [("move", '{"at": 3}')])
    if joint:
        two = call("move", '{"at": 3}') + joint + call("move_all", "{}")
        assert matches(either.fork(), two)
        single = BYTES.lark(forced_call_grammar(template, TOOLS, name="", parallel=False))
        assert not matches(single, two)


def test_a_tag_that_is_a_control_token_is_named_by_its_id() -> None:
    template = ChatTemplate(SOURCES["mistral"], bos_token="", eos_token="")
    lark = forced_call_grammar(template, TOOLS, name="", parallel=True, control={"[TOOL_CALLS]": 258}.get)
    constraint = BYTES.lark(lark)
    assert not constraint.allows(ord("["))
    assert constraint.allows(258)
    constraint.accept(258)
    assert constraint.allows(ord("["))


@pytest.mark.parametrize("source", SOURCES)
def test_a_call_and_a_json_answer_can_stand_side_by_side(source: str) -> None:
    template = ChatTemplate(SOURCES[source], bos_token="", eos_token="")
    calls = forced_call_grammar(template, TOOLS, name="", parallel=True).removeprefix("start")
    answer = '{"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}'
    grammar = BYTES.lark(f"start: calls | answer\ncalls{calls}answer: %json {answer}\n")
    assert matches(grammar.fork(), '{"answer": 3}')
    assert not matches(grammar.fork(), '{"question": 3}')
    if source == "llama3":
        assert matches(grammar.fork(), '{"name": "move", "parameters": {"at": 3}}')
