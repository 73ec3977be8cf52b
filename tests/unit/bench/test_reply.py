"""Bytes and their times to what a client saw."""

import pytest

from server.bench.connection import Arrival
from server.bench.errors import BadReply, Refused, UnknownModel
from server.bench.reply import read_stream, refusal
from tests.unit.bench.scripted import events, text_event, usage_event

STREAM = [text_event("a"), text_event("b"), text_event("", "length"), usage_event(10, 2, 4)]


def arrivals(pieces: list[bytes]) -> list[Arrival]:
    return [Arrival(float(i), piece) for i, piece in enumerate(pieces)]


@pytest.mark.parametrize("chunked", [True, False])
def test_an_event_is_timed_by_the_arrival_of_its_end(chunked: bool) -> None:
    record = read_stream(0.0, arrivals(events(STREAM, chunked=chunked)))
    assert record.events == [1.0, 2.0]
    assert (record.text, record.n_predicted, record.n_prompt, record.n_computed) == ("ab", 2, 10, 6)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_it_does_not_matter_how_the_bytes_are_cut(chunked: bool, size: int) -> None:
    raw = b"".join(events(STREAM, chunked=chunked))
    cut = [raw[at : at + size] for at in range(0, len(raw), size)]
    record = read_stream(0.0, arrivals(cut))
    assert record.text == "ab"
    assert len(record.events) == 2
    assert all(raw[: int((time + 1) * size)].count(b"}\n") >= n for n, time in enumerate(record.events, 1))


def test_llama_servers_timings_say_what_was_computed() -> None:
    last = {**text_event("", "length"), "timings": {"prompt_n": 3, "cache_n": 9, "predicted_n": 5}}
    record = read_stream(0.0, arrivals(events([text_event("a"), last], chunked=True)))
    assert (record.n_predicted, record.n_prompt, record.n_computed) == (5, 12, 3)


def test_a_stream_without_its_end_is_an_error_unless_it_was_cut_on_purpose() -> None:
    pieces = arrivals(events([text_event("a"), text_event("b")], chunked=True, done=False)[:-2])
    with pytest.raises(BadReply, match="without \\[DONE\\]"):
        read_stream(0.0, pieces)
    assert read_stream(0.0, pieces, cut=True).text == "a"


def test_an_error_in_the_middle_of_a_stream_is_told() -> None:
    stream = [text_event("a"), {"error": {"message": "out of memory"}}]
    with pytest.raises(BadReply, match="out of memory"):
        read_stream(0.0, arrivals(events(stream, chunked=True)))


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (401, b'{"error": {"message": "Invalid API Key"}}', Refused, "Invalid API Key"),
        (404, b'{"error": "model \'x\' not found"}', UnknownModel, "model 'x' not found"),
        (422, b'{"detail": "no such field"}', BadReply, "no such field"),
        (502, b"<html>bad gateway</html>", BadReply, "bad gateway"),
        (500, b"", BadReply, "no reason given"),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(status: int, body: bytes, kind: type, said: str) -> None:
    error = refusal(status, body)
    assert type(error) is kind
    assert said in str(error)
    assert str(status) in str(error)
