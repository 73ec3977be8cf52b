"""Long outputs cost in proportion: little text is held, and little is copied."""

import json
from typing import Any

import pytest

from server.formats.parameter_schema import types_of
from server.formats.parsing.reader import MAX_WORD, Reader
from server.formats.parsing.stream_parser import StreamParser
from tests.unit.formats.reading import forced_calls, parser, read
from tests.unit.formats.recorded import RECORDED, Recorded, tool

PIECES = ["x" * 2000] * 100  # 200 kB

PLACES = [(recorded, place) for recorded in RECORDED for place in ("Paris", "I look", "Hm") if place in recorded.text]


@pytest.mark.parametrize(("recorded", "place"), PLACES, ids=lambda value: getattr(value, "format", value))
def test_little_of_long_content_reasoning_and_arguments_is_held(recorded: Recorded, place: str) -> None:
    made = parser(recorded.format, sign=recorded.sign, prompt=recorded.prompt)
    made.feed(recorded.text[: recorded.text.index(place) + 2])
    for piece in PIECES:
        made.feed(piece)
        assert isinstance(made, StreamParser)
        assert len(made.text) < MAX_WORD


def copied(monkeypatch: pytest.MonkeyPatch, form: str, text: str) -> int:
    """Characters that readers copy for a text that comes all at once: what they consume, and the rest each time."""
    n_copied = 0
    consume = Reader.consume

    def counting(reader: Reader, n: int) -> str:
        nonlocal n_copied
        n_copied += len(reader.text)
        return consume(reader, n)

    with monkeypatch.context() as patch:
        patch.setattr(Reader, "consume", counting)
        found = read(parser(form), text)
    assert len(found.calls) == 1
    assert len(json.loads(found.calls[0][1])["place"]) > 100
    return n_copied


LONG = {
    "hermes": '<tool_call>{"name": "get_weather", "arguments": {"place": {%s}}}</tool_call>',
    "qwen3-coder": "<tool_call><function=get_weather><parameter=place>{%s}</parameter></function></tool_call>",
    "lfm2": "<|tool_call_start|>[get_weather(place={%s})]<|tool_call_end|>",
}


@pytest.mark.parametrize("form", LONG)
@pytest.mark.parametrize("value", ['"v"', "'v'"])
def test_arguments_that_come_in_one_piece_cost_in_proportion(
    form: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "hermes" and value == "'v'":
        return  # no JSON
    short, long = (
        copied(monkeypatch, form, LONG[form] % ", ".join(f'"key{k}": {value}' for k in range(n))) for n in (1000, 4000)
    )
    assert long < 4.6 * short


class Counted(dict[str, Any]):
    """A schema that counts how often schemas are looked at."""

    n_looks = 0

    def get(self, *args: Any) -> Any:
        Counted.n_looks += 1
        return super().get(*args)


def test_a_schema_that_references_lead_to_in_countless_ways_costs_in_proportion() -> None:
    layers = {f"n{n}": Counted(anyOf=[Counted({"$ref": f"#/$defs/n{n + 1}"})] * 10) for n in range(6)}
    parameters = {"type": "object", "properties": {"x": layers["n0"]}, "$defs": layers | {"n6": Counted(type="string")}}
    assert types_of(layers["n0"], parameters) >= {"string"}
    assert len(forced_calls("qwen3-coder", "", [tool("f", parameters)])) < 10_000
    assert Counted.n_looks < 1_000_000


def test_alternatives_beside_alternatives_cost_in_proportion() -> None:
    leaves = [{"anyOf": [{"minLength": 8 * n + k} for k in range(8)]} for n in range(16)]
    tree = {"type": "string", "anyOf": leaves, "oneOf": [{"maxLength": n} for n in range(200, 300)]}
    parameters = {"type": "object", "properties": {"x": tree}}
    assert len(json.dumps(parameters)) < 10_000
    assert len(forced_calls("qwen3-coder", "", [tool("f", parameters)])) < 500_000
