"""Ollama's durations, and what its clients write in their own way."""

from typing import Any

import pytest

from server.dialects.fields import parse
from server.dialects.ollama.models import _human, _quantization
from server.dialects.ollama.parse import read_functions
from server.dialects.ollama.parse import read_ollama_messages as read_messages
from server.dialects.ollama.vectors import EmbedBody
from server.errors import InvalidRequest


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (0, 0),
        (90, 90),
        (1.5, 1.5),
        (-1, -1),
        ("-1", -1),
        ("-5m", -1),
        ("0", 0),
        ("300", 300),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("250ms", 0.25),
        (1e300, -1),
        ("2562047h47m16s", -1),
    ],
)
def test_durations_are_numbers_of_seconds_or_gos(given: object, seconds: float) -> None:
    assert parse(EmbedBody, {"keep_alive": given}).keep_alive == pytest.approx(seconds)


@pytest.mark.parametrize("given", ["", "soon", "5 m", "m", "1h30", True, [], "9" * 100 + "s"])
def test_other_durations_are_refused(given: object) -> None:
    with pytest.raises(InvalidRequest, match="keep_alive"):
        parse(EmbedBody, {"keep_alive": given})


def test_several_types_of_a_parameter_become_a_list() -> None:
    properties = {"a": {"type": "integer, string"}, "b": {"type": "array", "items": {}}, "c": {"type": ["string"]}}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    (tool,) = read_functions([{"type": "function", "function": function}], []).tools
    assert [each["type"] for each in tool.parameters["properties"].values()] == [
        ["integer", "string"],
        "array",
        ["string"],
    ]


def test_results_answer_calls_by_id_by_name_and_in_order() -> None:
    def call(name: str, **more: str) -> dict[str, object]:
        return {"function": {"name": name, "arguments": {"x": 1}}, **more}

    found = read_messages(
        [
            {"role": "Assistant", "tool_calls": [call("f"), call("g"), call("f", id="own")]},
            {"role": "tool", "content": "1", "tool_name": "g"},
            {"role": "tool", "content": "2", "tool_call_id": "own"},
            {"role": "tool", "content": "3"},
            {"role": "tool", "content": "4", "name": "h"},
        ]
    )
    assert found[0].role == "assistant"
    assert [(message.call_id, message.name) for message in found[1:]] == [
        ("call_1", "g"),
        ("own", "f"),
        ("call_0", "f"),
        ("", "h"),
    ]
    assert [each.arguments for each in found[0].calls] == ['{"x":1}'] * 3


def test_an_id_that_no_call_has_is_as_none() -> None:
    calls: list[dict[str, Any]] = [{"function": {"name": name, "arguments": {}}} for name in ("f", "g")]
    results = [{"role": "tool", "content": text, "tool_call_id": text} for text in ("first", "second")]
    found = read_messages([{"role": "assistant", "tool_calls": calls}, *results])
    assert [(message.call_id, message.name) for message in found[1:]] == [("call_0", "f"), ("call_1", "g")]


@pytest.mark.parametrize(
    ("n", "shown"), [(999, "999"), (1000, "1.00K"), (134515008, "134.52M"), (8030261312, "8.0B"), (10**12, "1.0T")]
)
def test_sizes_are_ollamas(n: int, shown: str) -> None:
    assert _human(n) == shown


@pytest.mark.parametrize(
    ("ftype", "shown"),
    [("Q4_K - Medium", "Q4_K_M"), ("all F32", "F32"), ("Q4_1", "Q4_1"), ("IQ3_XS - 3.3 bpw", "IQ3_XS"), ("", "")],
)
def test_quantizations_are_ollamas(ftype: str, shown: str) -> None:
    assert _quantization(ftype) == shown
