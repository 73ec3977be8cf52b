"""Contract of all formats: recorded, damaged and truncated outputs parse to the right message in any split."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.formats import BY_NAME, FORMATS
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat
from server.formats.written import calls_text
from tests.unit.formats.parsing import ParsedMessage, every_character, generation_prompt_of, make_parser, parse_text
from tests.unit.formats.recorded import FULL, PARIS, RECORDED, Recorded

pytestmark = pytest.mark.slow

WITH_CALLS = [recorded for recorded in RECORDED if recorded.calls]


def parse_recorded(
    recorded: Recorded, text: str | None = None, splits: Sequence[int] = (), **options: Any
) -> ParsedMessage:
    """Parse a recorded output, or another text in its place."""
    parser = make_parser(recorded.format, template=recorded.template, prompt=recorded.prompt, **options)
    return parse_text(parser, recorded.text if text is None else text, splits)


def decoded_calls(calls: Iterable[tuple[str, str]]) -> list[tuple[str, object]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.format)
def test_recorded_output_parses_to_its_message(recorded: Recorded) -> None:
    message = parse_recorded(recorded)
    assert (message.content, message.reasoning) == (recorded.content, recorded.reasoning)
    assert decoded_calls(message.calls) == decoded_calls(recorded.calls)
    assert len(set(message.ids)) == len(message.ids)
    assert parse_recorded(recorded, splits=every_character(recorded.text)) == message


LOSSLESS = {each.name for each in FORMATS if not each.framed} - {
    *("kimi-k2", "lfm2", "pythonic", "hunyuan", "function-gemma", "olmo3", "glm4", "k2-horizon", "step3"),
}
"""Formats whose only markup is that of calls."""


def without_whitespace(text: str) -> str:
    return "".join(text.split())


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(RECORDED), st.data())
def test_damaged_output_parses_alike_in_any_split_and_loses_no_text(recorded: Recorded, data: st.DataObject) -> None:
    """The damage: a part is removed or replaced by noise, and another part is repeated."""
    text = recorded.text
    at = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 4)))
    noise = data.draw(st.sampled_from(["", "x", '"', "{", "}", "[", "]", ")", "\n", "<", ">", "\\", "'", ","]))
    broken = text[: at[0]] + noise + text[at[1] : at[2]] + text[at[2] : at[3]] * 2 + text[at[3] :]
    whole = parse_recorded(recorded, broken)
    splits = sorted(data.draw(st.sets(st.integers(0, len(broken)), max_size=8)))
    assert parse_recorded(recorded, broken, splits) == whole
    assert parse_recorded(recorded, broken, every_character(broken)) == whole
    if recorded.format in LOSSLESS:
        unparsed = parse_recorded(recorded, broken, reasoning_format="none")
        if not unparsed.calls:
            assert without_whitespace(unparsed.content) == without_whitespace(broken)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(BY_NAME)), st.data())
def test_random_markup_fragments_parse_alike_whole_and_by_character(name: str, data: st.DataObject) -> None:
    json_and_python = ['{"name": "get_weather", "arguments": ', "{}", "get_weather", "(city=", '"', "x", " "]
    outputs = [recorded.text for recorded in RECORDED if recorded.format == name]
    samples = [text[n : n + 12] for text in outputs for n in range(0, len(text), 12)]
    fragments = st.sampled_from([*BY_NAME[name].markup, *json_and_python, *samples])
    text = "".join(data.draw(st.lists(fragments, max_size=12)))
    whole = parse_text(make_parser(name), text)
    assert parse_text(make_parser(name), text, every_character(text)) == whole


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(BY_NAME)), st.text(st.characters(codec="utf-8"), max_size=60))
def test_plain_text_becomes_content_unchanged(name: str, text: str) -> None:
    assert parse_text(make_parser(name, reasoning_format="none"), text) == ParsedMessage(content=text)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.format)
def test_only_the_first_call_is_emitted_without_parallel_calls(recorded: Recorded) -> None:
    assert len(parse_recorded(recorded, parallel=False).calls) == min(len(recorded.calls), 1)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.format)
def test_reasoning_formats_none_and_deepseek_legacy_keep_reasoning_in_content(recorded: Recorded) -> None:
    message = parse_recorded(recorded, reasoning_format="none")
    assert not message.reasoning
    assert recorded.reasoning in message.content
    legacy = parse_recorded(recorded, reasoning_format="deepseek-legacy")
    assert legacy.reasoning == recorded.reasoning
    assert recorded.reasoning in legacy.content
    assert decoded_calls(legacy.calls) == decoded_calls(parse_recorded(recorded).calls)


@pytest.mark.parametrize("recorded", WITH_CALLS, ids=lambda recorded: recorded.format)
def test_truncated_output_keeps_argument_text(recorded: Recorded) -> None:
    for n in range(0, len(recorded.text), 11):
        message = parse_recorded(recorded, recorded.text[:n])
        emitted = message.content + message.reasoning + "".join(arguments for _, arguments in message.calls)
        if "Paris" in recorded.text[:n]:
            assert "Paris" in emitted


@pytest.mark.parametrize("recorded", WITH_CALLS, ids=lambda recorded: recorded.format)
def test_call_name_and_partial_argument_stream_before_the_argument_ends(recorded: Recorded) -> None:
    if '"arguments": {"city": "Rome"}, "name"' in recorded.text:
        return  # the name follows the arguments
    if "<think>" in recorded.text and "</think>" not in recorded.text:
        return  # the reasoning never ends, so they are calls only at the end of the text
    parser = make_parser(recorded.format, template=recorded.template, prompt=recorded.prompt)
    message = ParsedMessage()
    message.add(parser.feed(recorded.text[: recorded.text.index("Paris") + 3]))
    assert message.calls[:1] == [("get_weather", '{"city": "Par')]


def test_every_format_has_a_unique_name_and_a_recorded_call() -> None:
    assert len(BY_NAME) == len(FORMATS)
    assert {recorded.format for recorded in WITH_CALLS} == set(BY_NAME)


@pytest.mark.parametrize(
    ("tool_format", "syntax"),
    [pytest.param(each, syntax, id=f"{each.name}-{n}") for each in FORMATS for n, syntax in enumerate(each.syntaxes)],
)
def test_calls_written_for_the_prompt_parse_back(tool_format: ToolFormat, syntax: ToolCallSyntax) -> None:
    name, prompt = tool_format.name, generation_prompt_of(tool_format.name)
    text = calls_text(syntax, [("get_weather", FULL)])
    if name == "muse":
        text = " to=get_weather<|message|>" + text  # its template writes the recipient
    message = parse_text(make_parser(name, prompt=prompt), text)
    assert decoded_calls(message.calls) == [("get_weather", json.loads(FULL))]
    assert not message.content
    if syntax.several and name != "muse":
        text = calls_text(syntax, [("get_weather", PARIS), ("get_time", "{}")])
        assert len(parse_text(make_parser(name, prompt=prompt), text).calls) == 2
    assert "{cut" in calls_text(syntax, [("get_weather", "{cut")])
