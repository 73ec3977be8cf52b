"""Ollama's formats of durations, sizes, quantizations and metadata, and calls in truncated replies."""

import orjson
import pytest

from server.dialects.fields import parse
from server.dialects.ollama.models import _human, _quantization, _value
from server.dialects.ollama.vectors import EmbedBody
from server.dialects.ollama.write import OllamaWriter, Reply
from server.engine.request import FinishReason
from server.errors import InvalidRequest
from server.formats.parsing.pieces import Piece, ToolCallArguments, ToolCallBegin
from tests.unit.dialects.builders import SequenceParser, finished, text


@pytest.mark.parametrize(
    ("keep_alive", "seconds"),
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
def test_keep_alive_is_a_number_of_seconds_or_a_go_duration(keep_alive: object, seconds: float) -> None:
    assert parse(EmbedBody, {"keep_alive": keep_alive}).keep_alive == pytest.approx(seconds)


@pytest.mark.parametrize("keep_alive", ["", "soon", "5 m", "m", "1h30", True, [], "9" * 100 + "s"])
def test_other_durations_are_rejected(keep_alive: object) -> None:
    with pytest.raises(InvalidRequest, match="keep_alive"):
        parse(EmbedBody, {"keep_alive": keep_alive})


@pytest.mark.parametrize(
    ("n", "shown"), [(999, "999"), (1000, "1.00K"), (134515008, "134.52M"), (8030261312, "8.0B"), (10**12, "1.0T")]
)
def test_parameter_counts_are_written_like_ollamas(n: int, shown: str) -> None:
    assert _human(n) == shown


@pytest.mark.parametrize(
    ("ftype", "shown"),
    [("Q4_K - Medium", "Q4_K_M"), ("all F32", "F32"), ("Q4_1", "Q4_1"), ("IQ3_XS - 3.3 bpw", "IQ3_XS"), ("", "")],
)
def test_quantizations_have_ollamas_names(ftype: str, shown: str) -> None:
    assert _quantization(ftype) == shown


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((str(number), number) for number in (32, -1, 0.5)),
        *(("10000.000000", 1e4), ("true", True)),
        *((text, text) for text in ("123456789012345678901", "1e5", " 5 ", "05", "null", "[1]", "llama")),
    ],
)
def test_numbers_and_booleans_in_metadata_become_json_values(text: str, value: object) -> None:
    found = _value(text)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(
    ("reason", "written", "is_sent"),
    [
        (FinishReason.LIMIT, "", False),
        (FinishReason.LIMIT, '{"to": "Bob", "bo', False),
        (FinishReason.STOP, '{"to": "Bob"', False),
        (FinishReason.LIMIT, '{"to": "Bob"}', True),
        (FinishReason.EOS, "", True),
        (FinishReason.EOS, '{"to": "Bob"', True),
    ],
)
def test_a_call_that_a_limit_cuts_off_is_not_sent(
    reason: FinishReason, written: str, is_sent: bool, streams: bool
) -> None:
    """Ollama sends complete calls only, and its clients execute a call when it arrives."""
    pieces: list[Piece] = [ToolCallBegin(0, "a", "look"), ToolCallArguments(0, "{}"), ToolCallBegin(1, "b", "send")]
    parser = SequenceParser([*pieces, ToolCallArguments(1, written)])
    writer = OllamaWriter(Reply("demo", chat=True), lambda: parser, started_at=0.0, loaded_at=0.0)
    writer.streams = streams
    lines = [orjson.loads(line) for event in (text("x"), finished(0, reason)) for line in writer.feed(0, event)]
    lines = lines if streams else [orjson.loads(orjson.dumps(writer.body()))]
    calls = [call["function"]["name"] for line in lines for call in line["message"].get("tool_calls", ())]
    assert calls == (["look", "send"] if is_sent else ["look"])
    assert lines[-1]["done_reason"] == ("length" if reason is FinishReason.LIMIT else "stop")
