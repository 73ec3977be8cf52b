"""The forms of tool calls: read in any split, nothing lost."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.formats.reading import chat_format, parser, read
from tests.unit.formats.recorded import tool

Meant = tuple[str, list[tuple[str, str]]]


def read_as(form: str, text: str, cuts: list[int], *, parallel: bool = True) -> Meant:
    """Content, and each call's name and arguments."""
    functions = [tool(name, {}) for name in ("f", "g")]
    found = read(parser(form, tools=functions, parallel=parallel), text, cuts)
    return found.content, found.calls


ODD = '{"b":  [1, {"c": "}]\\"</tool_call>"}] , "é": null}'
CASES: list[tuple[str, str, Meant]] = [
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
