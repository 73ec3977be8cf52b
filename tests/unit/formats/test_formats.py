"""Every format: what its recorded outputs mean, in any split, whatever is broken in them."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.formats import BY_NAME, FORMATS
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat
from server.formats.written import calls_text
from tests.unit.formats.reading import Read, every_character, parser, prompt_of, read
from tests.unit.formats.recorded import FULL, PARIS, RECORDED, Recorded

pytestmark = pytest.mark.slow


def parse(recorded: Recorded, text: str | None = None, cuts: list[int] | None = None, **options: Any) -> Read:
    made = parser(recorded.format, sign=recorded.sign, prompt=recorded.prompt, **options)
    return read(made, recorded.text if text is None else text, cuts or [])


def values(found: Read) -> list[tuple[str, object]]:
    return [(name, json.loads(arguments)) for name, arguments in found.calls]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.format)
def test_a_recorded_output_means_what_is_documented(recorded: Recorded) -> None:
    found = parse(recorded)
    assert (found.content, found.reasoning) == (recorded.content, recorded.reasoning)
    assert values(found) == [(name, json.loads(arguments)) for name, arguments in recorded.calls]
    assert len(set(found.ids)) == len(found.ids)
    assert parse(recorded, cuts=every_character(recorded.text)) == found


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(RECORDED), st.data())
def test_any_split_means_the_same(recorded: Recorded, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(recorded.text) - 1), max_size=8)))
    assert parse(recorded, cuts=cuts) == parse(recorded)


LOSSLESS = {form.name for form in FORMATS if not form.framed} - {
    *("kimi-k2", "lfm2", "pythonic", "hunyuan", "function-gemma", "olmo3", "glm4", "k2-horizon", "step3"),
}
"""Formats that have no markup but calls."""


def letters(text: str) -> str:
    return "".join(text.split())


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(RECORDED), st.data())
def test_broken_output_reads_the_same_in_any_split_and_without_calls_nothing_is_lost(
    recorded: Recorded, data: st.DataObject
) -> None:
    """Cut out a part, double another: parsers never raise, and what is no call stays content."""
    text = recorded.text
    at = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 4)))
    noise = data.draw(st.sampled_from(["", "x", '"', "{", "}", "[", "]", ")", "\n", "<", ">", "\\", "'", ","]))
    broken = text[: at[0]] + noise + text[at[1] : at[2]] + text[at[2] : at[3]] * 2 + text[at[3] :]
    whole = parse(recorded, broken)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(broken)), max_size=8)))
    assert parse(recorded, broken, cuts) == whole
    assert parse(recorded, broken, every_character(broken)) == whole
    if recorded.format in LOSSLESS:
        unparsed = parse(recorded, broken, reasoning_format="none")
        if not unparsed.calls:
            assert letters(unparsed.content) == letters(broken)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(BY_NAME)), st.data())
def test_fragments_of_markup_in_any_order_never_raise(form: str, data: st.DataObject) -> None:
    tags = [
        *BY_NAME[form].markup,
        '{"name": "get_weather", "arguments": ',
        "{}",
        "get_weather",
        "(city=",
        '"',
        "x",
        " ",
    ]
    own = [recorded.text for recorded in RECORDED if recorded.format == form]
    tags += [text[n : n + 12] for text in own for n in range(0, len(text), 12)]
    text = "".join(data.draw(st.lists(st.sampled_from(tags), max_size=12)))
    whole = read(parser(form), text)
    assert read(parser(form), text, every_character(text)) == whole


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(BY_NAME)), st.text(st.characters(codec="utf-8"), max_size=60))
def test_plain_text_is_content_without_a_loss(form: str, text: str) -> None:
    found = read(parser(form, reasoning_format="none"), text)
    assert found == Read(content=text)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.format)
def test_only_the_first_call_counts_without_parallel_calls(recorded: Recorded) -> None:
    assert len(parse(recorded, parallel=False).calls) == min(len(recorded.calls), 1)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.format)
def test_reasoning_is_not_lost_where_it_stays_in_the_content(recorded: Recorded) -> None:
    found = parse(recorded, reasoning_format="none")
    assert not found.reasoning
    assert recorded.reasoning in found.content
    both = parse(recorded, reasoning_format="deepseek-legacy")
    assert both.reasoning == recorded.reasoning
    assert recorded.reasoning in both.content
    assert values(both) == values(parse(recorded))


@pytest.mark.parametrize("recorded", [r for r in RECORDED if r.calls], ids=lambda recorded: recorded.format)
def test_an_output_that_is_cut_off_is_not_lost(recorded: Recorded) -> None:
    """Letters of the arguments reach the client, as arguments or as content."""
    for n in range(0, len(recorded.text), 11):
        found = parse(recorded, recorded.text[:n])
        shown = found.content + found.reasoning + "".join(arguments for _, arguments in found.calls)
        if "Paris" in recorded.text[:n]:
            assert "Paris" in shown


@pytest.mark.parametrize("recorded", [r for r in RECORDED if r.calls], ids=lambda recorded: recorded.format)
def test_a_call_begins_before_it_is_complete(recorded: Recorded) -> None:
    if '"arguments": ' in recorded.text and '"arguments": {"city": "Rome"}, "name"' in recorded.text:
        return  # the name comes last
    if "<think>" in recorded.text and "</think>" not in recorded.text:
        return  # that they are calls is known at the end
    made = parser(recorded.format, sign=recorded.sign, prompt=recorded.prompt)
    found = Read()
    found.take(made.feed(recorded.text[: recorded.text.index("Paris") + 3]))
    assert found.calls
    assert found.calls[0] == ("get_weather", '{"city": "Par')


@pytest.mark.parametrize("form", sorted(BY_NAME))
def test_each_format_has_recorded_calls(form: str) -> None:
    assert any(recorded.calls for recorded in RECORDED if recorded.format == form)


@pytest.mark.parametrize(
    ("form", "written"),
    [pytest.param(form, each, id=f"{form.name}-{n}") for form in FORMATS for n, each in enumerate(form.call_forms)],
)
def test_what_a_model_is_told_to_write_is_read(form: ToolFormat, written: ToolCallSyntax) -> None:
    prompt = prompt_of(form.name)
    told = calls_text(written, [("get_weather", FULL)])
    if form.name == "muse":
        told = " to=get_weather<|message|>" + told  # which its own template writes
    found = read(parser(form.name, prompt=prompt), told)
    assert values(found) == [("get_weather", json.loads(FULL))]
    assert not found.content
    if written.several:
        two = calls_text(written, [("get_weather", PARIS), ("get_time", "{}")])
        assert form.name == "muse" or len(read(parser(form.name, prompt=prompt), two).calls) == 2
    assert "{cut" in calls_text(written, [("get_weather", "{cut")])
