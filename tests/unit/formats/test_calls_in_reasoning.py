"""Call markup inside reasoning is reasoning if the reasoning ends, and calls if it never ends. Repeated reasoning."""

from typing import Any

import pytest

from server import formats
from tests.unit.formats.parsing import ParsedMessage, chat_format, every_character, make_parser, parse_text
from tests.unit.formats.recorded import PARIS, RECORDED, Recorded


def reasoning_tags_of(name: str) -> tuple[str, str]:
    return chat_format(name, " ".join(formats.BY_NAME[name].markup)).reasoning_tags


def calls_text_of(recorded: Recorded) -> str:
    """Return the recorded text from the first call on."""
    openings = formats.BY_NAME[recorded.format].openings
    starts = [recorded.text.find(tag) for tag in openings if tag in recorded.text]
    return recorded.text[min(starts) :] if starts else ""


NOT_APPLICABLE = {
    "generic",  # calls only at the start of a message
    "llama3",
    "xlam",
    "glm4",
    "pythonic",
    "harmony",  # a reasoning message ends where another message begins
    "muse",
    "inkling",
    "functionary-v3.2",  # no reasoning
}
FORMATS = [each.name for each in formats.FORMATS if each.name not in NOT_APPLICABLE]


def parse_whole_and_by_character(name: str, text: str, prompt: str = "") -> ParsedMessage:
    """Return the message, and assert that both ways give the same."""
    template = "" if formats.BY_NAME[name].inline_reasoning else reasoning_tags_of(name)[1]
    prompt = formats.BY_NAME[name].turn_start + prompt
    message = parse_text(make_parser(name, template=template, prompt=prompt), text)
    assert parse_text(make_parser(name, template=template, prompt=prompt), text, every_character(text)) == message
    return message


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("opened_by_prompt", [False, True])
def test_call_inside_closed_reasoning_is_reasoning(name: str, opened_by_prompt: bool) -> None:
    calls = next(calls_text_of(each) for each in RECORDED if each.format == name and each.calls and calls_text_of(each))
    opening, closing = reasoning_tags_of(name)
    reasoning = f"I could write {calls} but need not."
    lead = formats.BY_NAME[name].leads[:1]
    text = f"{'' if opened_by_prompt else opening}{reasoning}{closing}{''.join(lead)}It is sunny."
    message = parse_whole_and_by_character(name, text, opening if opened_by_prompt else "")
    assert (message.calls, message.content) == ([], "It is sunny.")
    assert message.reasoning.split() == reasoning.split()


CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'


@pytest.mark.parametrize("markup", ["<tool_call>", "<tool_call> tags", '<tool_call>{"a": 1}</tool_call>'])
def test_markup_without_a_call_in_open_reasoning_is_reasoning(markup: str) -> None:
    parser = make_parser("hermes", template="</think>")
    message = ParsedMessage()
    message.add(parser.feed(f"<think>I write {markup} now, "))
    assert message.reasoning.startswith(f"I write {markup[:11]}")
    message.add(parser.feed(CALL))
    message.add(parser.finish())
    assert message.reasoning == f"I write {markup} now,"
    assert message.calls == [("get_weather", PARIS)]


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
        # Tags that an answer mentions are text.
        ("Write `<think>` and `</think>`.", "Write `<think>` and `</think>`.", ""),
        ("Put <think> in front, </think> after.", "Put <think> in front, </think> after.", ""),
        ("```\n<think>\nx\n</think>\n```\nSo.", "``` <think> x </think> ``` So.", ""),
        ('He said "</think>".', 'He said "</think>".', ""),
        ("a < b <thin c", "a < b <thin c", ""),
    ],
)
def test_repeated_reasoning_is_separated_and_mentioned_tags_are_content(
    prompt: str, before: str, options: dict[str, Any], text: str, content: str, reasoning: str
) -> None:
    for splits in ([], every_character(before + text)):
        parser = make_parser("hermes", template="</think>", prompt=prompt, **options)
        message = parse_text(parser, before + text, splits)
        assert " ".join(message.content.split()) == content
        assert message.reasoning.removeprefix("One.").split() == reasoning.split()


@pytest.mark.parametrize("name", ["granite3", "ernie", "hunyuan-a13b", "xlam", "generic"])
@pytest.mark.parametrize("options", [{}, {"tools": []}])
def test_repeated_reasoning_is_separated_with_answer_tags_or_calls_at_the_start(
    name: str, options: dict[str, Any]
) -> None:
    parser = make_parser(name, template="</think>", **options)
    message = parse_text(parser, "<think>One.</think>\n\nHi.\n<think>Two.</think>\nBye.")
    assert (message.reasoning, " ".join(message.content.split())) == ("One.\nTwo.", "Hi. Bye.")


@pytest.mark.parametrize(
    ("text", "reasoning", "n_calls"),
    [
        (f"<think>One.</think>{CALL}\n<think>Two.</think>\n{CALL}", "One.\nTwo.", 2),
        ("<think>I write <tool_call>, then", "I write <tool_call>, then", 0),
    ],
)
def test_reasoning_between_calls_and_truncated_reasoning_is_separated(text: str, reasoning: str, n_calls: int) -> None:
    message = parse_whole_and_by_character("hermes", text)
    assert (message.reasoning, message.content, len(message.calls)) == (reasoning, "", n_calls)
