"""Markup of calls in reasoning: only mentioned if the reasoning ends, calls if it never does."""

from typing import Any

import pytest

from server import formats
from tests.unit.formats.reading import Read, chat_format, every_character, parser, read
from tests.unit.formats.recorded import PARIS, RECORDED, Recorded


def tags(form: str) -> tuple[str, str]:
    return chat_format(form, " ".join(formats.BY_NAME[form].markup)).reasoning_tags


def calls_of(recorded: Recorded) -> str:
    """What a recorded turn writes from its first call on."""
    openings = formats.BY_NAME[recorded.format].openings
    return recorded.text[
        min((at for tag in openings if (at := recorded.text.find(tag)) >= 0), default=len(recorded.text)) :
    ]


def first(form: str) -> Recorded | None:
    fitting = [each for each in RECORDED if each.format == form and each.calls and calls_of(each)]
    return next(iter(fitting), None)


NOT_MENTIONED = {
    "generic",  # calls only at the beginning of a message
    "llama3",
    "xlam",
    "glm4",
    "pythonic",
    "harmony",  # a message of reasoning ends where another begins
    "muse",
    "inkling",
    "functionary-v3.2",  # no reasoning
}
FORMS = [form.name for form in formats.FORMATS if form.name not in NOT_MENTIONED]


def both_ways(form: str, text: str, opened: str) -> Read:
    sign = "" if formats.BY_NAME[form].inline_reasoning else tags(form)[1]
    prompt = formats.BY_NAME[form].turn_start + opened
    found = read(parser(form, sign=sign, prompt=prompt), text)
    assert read(parser(form, sign=sign, prompt=prompt), text, every_character(text)) == found
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prefilled", [False, True])
def test_a_call_that_reasoning_mentions_is_reasoning(form: str, prefilled: bool) -> None:
    recorded = first(form)
    assert recorded is not None
    opening, closing = tags(form)
    thought = f"I could write {calls_of(recorded)} but need not."
    lead = formats.BY_NAME[form].leads[:1]
    text = f"{'' if prefilled else opening}{thought}{closing}{''.join(lead)}It is sunny."
    found = both_ways(form, text, opening if prefilled else "")
    assert (found.calls, found.content) == ([], "It is sunny.")
    assert found.reasoning.split() == thought.split()


@pytest.mark.parametrize("mention", ["<tool_call>", "<tool_call> tags", '<tool_call>{"a": 1}</tool_call>'])
def test_markup_that_is_no_call_is_reasoning_in_one_piece(mention: str) -> None:
    made = parser("hermes", sign="</think>")
    found = Read()
    found.take(made.feed(f"<think>I write {mention} now, "))
    assert found.reasoning.startswith(f"I write {mention[:11]}")
    found.take(made.feed(f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'))
    found.take(made.finish())
    assert found.reasoning == f"I write {mention} now,"
    assert found.calls == [("get_weather", PARIS)]


CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'


@pytest.mark.parametrize(("prompt", "before"), [("", "<think>One.</think>\n\n"), ("<think>\n\n</think>\n\n", "")])
@pytest.mark.parametrize("options", [{}, {"tools": []}])
@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("Hi.\n<think>\nTwo.\n</think>\n\nBye.", "Hi. Bye.", "Two."),
        ("<think>Two.</think>\nBye.", "Bye.", "Two."),
        ("Hi.<think>Two.", "Hi.", "Two."),
        ("Hi.\n<think>Two.</think>\n<think>Three.</think>Bye.", "Hi. Bye.", "Two. Three."),
        ("</think>\n\nHi.", "Hi.", ""),
        ("Hi.\n</think>\n\nBye.", "Hi. Bye.", ""),
        ("Hi</think>", "Hi", ""),
        # What an answer says about the tags stays text.
        ("Write `<think>` and `</think>`.", "Write `<think>` and `</think>`.", ""),
        ("Put <think> in front, </think> after.", "Put <think> in front, </think> after.", ""),
        ("```\n<think>\nx\n</think>\n```\nSo.", "``` <think> x </think> ``` So.", ""),
        ('He said "</think>".', 'He said "</think>".', ""),
        ("a < b <thin c", "a < b <thin c", ""),
    ],
)
def test_reasoning_that_comes_again_is_reasoning(
    prompt: str, before: str, options: dict[str, Any], text: str, content: str, reasoning: str
) -> None:
    for cuts in ([], every_character(before + text)):
        found = read(parser("hermes", sign="</think>", prompt=prompt, **options), before + text, cuts)
        assert " ".join(found.content.split()) == content
        assert found.reasoning.removeprefix("One.").split() == reasoning.split()


@pytest.mark.parametrize("form", ["granite3", "ernie", "hunyuan-a13b", "xlam", "generic"])
@pytest.mark.parametrize("options", [{}, {"tools": []}])
def test_it_comes_again_in_formats_with_answers_in_tags_or_calls_at_the_start(
    form: str, options: dict[str, Any]
) -> None:
    made = parser(form, sign="</think>", **options)
    found = read(made, "<think>One.</think>\n\nHi.\n<think>Two.</think>\nBye.")
    assert (found.reasoning, " ".join(found.content.split())) == ("One.\nTwo.", "Hi. Bye.")


def test_reasoning_between_calls_is_reasoning() -> None:
    found = both_ways("hermes", f"<think>One.</think>{CALL}\n<think>Two.</think>\n{CALL}", "")
    assert (found.reasoning, found.content, len(found.calls)) == ("One.\nTwo.", "", 2)


def test_reasoning_that_was_cut_off_after_a_mention_is_reasoning() -> None:
    found = both_ways("hermes", "<think>I write <tool_call>, then", "")
    assert (found.reasoning, found.content, found.calls) == ("I write <tool_call>, then", "", [])
