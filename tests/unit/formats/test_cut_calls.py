"""Calls that are cut off by a limit: nothing of their markup reaches the content, in one piece or as it comes.

A part of the first marker is no call yet: it is text that the model wrote and the client pays for.
llama-server shows none either once the function's name is complete (common/chat.cpp: texts are parsed leniently).
"""

import pytest

from server import formats
from server.formats.parsing.reasoning import OutputParser
from tests.unit.formats.reading import Read, chat_format, forced_calls, functions_of, parser, prompt_of
from tests.unit.formats.recorded import RECORDED, Recorded
from tests.unit.formats.test_call_grammars import TOOLS, VARIANTS, walk

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
    text, form = walk(name, sign, lark, 1), chat_format(name, sign)
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
