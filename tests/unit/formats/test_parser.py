"""Parsers: the same result for every split of the text, and nothing lost."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.formats.parsing.pieces import ContentText, Reasoning, ToolCallArguments, ToolCallBegin
from server.templates.template import ChatTemplate
from tests.unit.formats.reading import output_parser

TEMPLATE = ChatTemplate("", bos_token="", eos_token="")
TOOLS = ({"type": "function", "function": {"name": "add", "parameters": {}}},)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "}\\"{"}}\n</tool_call>'
OTHER = '<tool_call>\n{"arguments": {"x": [1, {"y": 2}]}, "name": "other"}\n</tool_call>'


def parse(
    text: str, cuts: list[int] | None = None, *, prompt: str = "", reasoning: str = "auto", parallel: bool = True
) -> dict[str, object]:
    """Feed `text` in the given pieces; what came, summed up."""
    parser = output_parser(
        TEMPLATE,
        tools=TOOLS,
        parse_tools=True,
        reasoning_format=reasoning,
        generation_prompt=prompt,
        parallel_tool_calls=parallel,
    )
    cuts = sorted(cuts or [])
    pieces = []
    for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True):
        pieces += parser.feed(text[a:b])
    pieces += parser.finish()
    calls: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, ToolCallBegin):
            assert piece.index == len(calls)
            calls.append([piece.name, ""])
        elif isinstance(piece, ToolCallArguments):
            calls[piece.index][1] += piece.text
    return {
        "content": "".join(p.text for p in pieces if isinstance(p, ContentText)),
        "reasoning": "".join(p.text for p in pieces if isinstance(p, Reasoning)),
        "calls": [(name, json.loads(arguments)) for name, arguments in calls],
    }


CASES = [
    ("Hello there. ", {"content": "Hello there. ", "reasoning": "", "calls": []}),
    (CALL, {"content": "", "reasoning": "", "calls": [("add", {"a": 1, "b": '}"{'})]}),
    (
        f"Let me see.\n{CALL}\n{OTHER}\n",
        {
            "content": "Let me see.",
            "reasoning": "",
            "calls": [("add", {"a": 1, "b": '}"{'}), ("other", {"x": [1, {"y": 2}]})],
        },
    ),
    (
        f"<think>\nI add.\n\nYes \n</think>\n\nNow:\n{CALL}",
        {"content": "Now:", "reasoning": "I add.\n\nYes", "calls": [("add", {"a": 1, "b": '}"{'})]},
    ),
    ("<think>never closed", {"content": "", "reasoning": "never closed", "calls": []}),
    (
        "<tool_call>\nnot json\n</tool_call> x",
        {"content": "<tool_call>\nnot json\n</tool_call> x", "reasoning": "", "calls": []},
    ),
    ("a < b and <tool_", {"content": "a < b and <tool_", "reasoning": "", "calls": []}),
    (
        '<tool_call>{"name": "s", "arguments": "{\\"k\\": 1}"}</tool_call>',
        {"content": "", "reasoning": "", "calls": [("s", {"k": 1})]},
    ),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_the_whole_text_and_single_characters_mean_the_same(text: str, expected: dict[str, object]) -> None:
    assert parse(text) == expected
    assert parse(text, list(range(1, len(text)))) == expected


@given(st.sampled_from(CASES), st.data())
def test_any_split_means_the_same(case: tuple[str, dict[str, object]], data: st.DataObject) -> None:
    cuts = data.draw(st.sets(st.integers(1, max(len(case[0]) - 1, 1)), max_size=8))
    assert parse(case[0], list(cuts)) == case[1]


@given(st.text(st.sampled_from('<>/tool_call{}"name: think\n'), max_size=60), st.data())
def test_text_that_is_no_call_is_not_lost(text: str, data: st.DataObject) -> None:
    if "<tool_call>" in text or text.lstrip().startswith("<think>"):
        return
    cuts = data.draw(st.sets(st.integers(0, len(text)), max_size=6))
    assert parse(text, list(cuts))["content"] == text
