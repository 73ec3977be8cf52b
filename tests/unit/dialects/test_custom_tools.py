"""The input of a custom tool call, parsed from its streamed arguments."""

from functools import partial

import pytest

from server.dialects.custom_tools import input_parser
from server.formats.parsing.pieces import ContentText, Piece, ToolCallArguments, ToolCallBegin
from tests.unit.dialects.builders import SequenceParser

ARGUMENTS = {
    '{"input": "a\\n\\ud83d\\ude00\\u00e9\\\\"}': "a\n\U0001f600é\\",
    '{"other": 1, "input": "b"}': "b",
    "*** x": "*** x",
    r'{"input": "a\ud83d\u0062\udc00"}': "a?b?",
}


@pytest.mark.parametrize("written", ARGUMENTS)
def test_every_split_of_the_arguments_gives_the_same_input(written: str) -> None:
    for at in range(len(written)):
        first: list[Piece] = [ToolCallBegin(1, "c", "patch"), ToolCallArguments(1, written[:at])]
        script = partial(SequenceParser, first, [ToolCallArguments(1, written[at:])], [ContentText("!")])
        parser = input_parser(script, {"patch"})()
        *call, last = [piece for _ in range(3) for piece in parser.feed("")]
        assert last == ContentText("!")
        assert "".join(piece.text for piece in call if isinstance(piece, ToolCallArguments)) == ARGUMENTS[written]


@pytest.mark.parametrize("written", ["", "{}", '{"in', '{"input": ', '{"other": "b'])
def test_call_that_a_limit_cuts_before_its_input_has_none(written: str) -> None:
    script = partial(SequenceParser, [ToolCallBegin(1, "c", "patch"), ToolCallArguments(1, written)])
    parser = input_parser(script, {"patch"})()
    assert [*parser.feed(""), *parser.finish(cut=True)] == [ToolCallBegin(1, "c", "patch")]
