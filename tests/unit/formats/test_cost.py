"""The cost of parsing grows linearly with the output, and that of grammars with the schema."""

import json
import time
from typing import Any

import pytest

from server.formats.calls.parameters import as_json
from server.formats.parameter_schema import ANY, types_of
from server.formats.parsing.reader import MAX_WORD, Reader
from tests.unit.formats.parsing import forced_calls, make_parser, parse_text
from tests.unit.formats.recorded import RECORDED, Recorded, tool

CHUNKS = ["x" * 2000] * 100

POSITIONS = [(recorded, text) for recorded in RECORDED for text in ("Paris", "I look", "Hm") if text in recorded.text]


@pytest.mark.parametrize(("recorded", "text"), POSITIONS, ids=lambda value: getattr(value, "format", value))
def test_parser_buffers_little_of_long_arguments_content_and_reasoning(recorded: Recorded, text: str) -> None:
    parser = make_parser(recorded.format, template=recorded.template, prompt=recorded.prompt)
    parser.feed(recorded.text[: recorded.text.index(text) + 2])
    for chunk in CHUNKS:
        parser.feed(chunk)
        assert len(parser.text) < MAX_WORD


def chars_copied(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> int:
    """Return how many characters readers copy to parse a text in one chunk: each `consume` copies the rest, too."""
    n_copied = 0
    consume = Reader.consume

    def counting(reader: Reader, n: int) -> str:
        nonlocal n_copied
        n_copied += len(reader.text)
        return consume(reader, n)

    with monkeypatch.context() as patch:
        patch.setattr(Reader, "consume", counting)
        ((_, arguments),) = parse_text(make_parser(name), text).calls
    assert len(json.loads(arguments)["place"]) > 100
    return n_copied


CALLS = {
    "hermes": '<tool_call>{"name": "get_weather", "arguments": {"place": {%s}}}</tool_call>',
    "qwen3-coder": "<tool_call><function=get_weather><parameter=place>{%s}</parameter></function></tool_call>",
    "lfm2": "<|tool_call_start|>[get_weather(place={%s})]<|tool_call_end|>",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [("hermes", '"v"'), ("qwen3-coder", '"v"'), ("qwen3-coder", "'v'"), ("lfm2", '"v"'), ("lfm2", "'v'")],
)
def test_arguments_in_one_chunk_are_parsed_in_linear_time(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = (
        chars_copied(monkeypatch, name, CALLS[name] % ", ".join(f'"key{k}": {value}' for k in range(n)))
        for n in (1000, 4000)
    )
    assert long < 4.6 * short


@pytest.mark.parametrize("text", ["[" * 4000, "[))" * 2000, "[" + "[], 'a', " * 1000 + "{'b': True}]"])
def test_untyped_argument_in_brackets_is_not_read_bracket_by_bracket(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Reader, "consume")
    assert as_json(text, ANY)[0] == ("[" if text.endswith("]") else '"')


def test_start_of_an_argument_of_several_types_is_examined_in_linear_time() -> None:
    """A text after 50,000 spaces took minutes."""
    tools = [tool("get_weather", {"type": "object", "properties": {"place": {"type": ["string", "null"]}}})]
    parser, started_at = make_parser("qwen3-coder", tools=tools), time.process_time()
    parser.feed(CALLS["qwen3-coder"].partition("{")[0] + " " * 50_000 + "a")
    assert time.process_time() - started_at < 10


class CountingSchema(dict[str, Any]):
    """A schema that counts the keyword reads of all schemas."""

    n_reads = 0

    def get(self, *args: Any) -> Any:
        CountingSchema.n_reads += 1
        return super().get(*args)


def test_schema_with_exponentially_many_reference_paths_is_read_in_linear_time() -> None:
    layers = {f"n{n}": CountingSchema(anyOf=[CountingSchema({"$ref": f"#/$defs/n{n + 1}"})] * 10) for n in range(6)}
    definitions = layers | {"n6": CountingSchema(type="string")}
    parameters = {"type": "object", "properties": {"x": layers["n0"]}, "$defs": definitions}
    assert types_of(layers["n0"], parameters) >= {"string"}
    assert len(forced_calls("qwen3-coder", "", [tool("f", parameters)])) < 10_000
    assert CountingSchema.n_reads < 1_000_000


def test_any_of_next_to_one_of_yields_a_grammar_of_bounded_size() -> None:
    leaves = [{"anyOf": [{"minLength": 8 * n + k} for k in range(8)]} for n in range(16)]
    tree = {"type": "string", "anyOf": leaves, "oneOf": [{"maxLength": n} for n in range(200, 300)]}
    parameters = {"type": "object", "properties": {"x": tree}}
    assert len(json.dumps(parameters)) < 10_000
    assert len(forced_calls("qwen3-coder", "", [tool("f", parameters)])) < 500_000
