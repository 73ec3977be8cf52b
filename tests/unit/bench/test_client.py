"""Replies as bytes with times, and figures computed from them. `tests/api/test_bench.py` runs the whole command."""

import json
from typing import Any

import pytest

from server.bench import scenarios
from server.bench.client import (
    BAD_REPLY,
    REFUSED,
    UNKNOWN_MODEL,
    BenchError,
    ClientRecord,
    parse_target,
    read_stream,
    refusal,
)
from server.bench.scenarios import SYLLABLES, RandomText

TEXTS = [{"choices": [{"text": text}]} for text in "ab"]
USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


def reply(*values: Any, chunked: bool, done: bool = True) -> list[bytes]:
    """Return the head and the events of a streamed reply."""
    texts = [f"data: {json.dumps(value)}\n\n".encode() for value in values] + [b"data: [DONE]\n\n"] * done
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if not chunked:
        return [head + b"\r\n", *texts]
    chunks = [b"%x\r\n%b\r\n" % (len(text), text) for text in texts]
    return [head + b"Transfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"]


def read(pieces: list[bytes], *, cut: bool = False) -> ClientRecord:
    return read_stream(0.0, [(float(i), piece) for i, piece in enumerate(pieces)], cut=cut)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_an_event_has_the_time_of_the_read_that_completes_it(chunked: bool, size: int) -> None:
    raw = b"".join(reply(*TEXTS, {"usage": USAGE}, chunked=chunked))
    record = read([raw[at : at + size] for at in range(0, len(raw), size)])
    assert (record.text, record.n_predicted, record.n_prompt, record.n_computed) == ("ab", 2, 10, 6)
    assert len(record.events) == 2
    for n, time in enumerate(record.events, 1):
        assert raw[: int(time * size)].count(b"}\n") < n <= raw[: int((time + 1) * size)].count(b"}\n")


def test_timings_of_llama_server_count_computed_tokens() -> None:
    timings = {"prompt_n": 3, "cache_n": 9, "predicted_n": 5}
    record = read(reply(*TEXTS, {"choices": [], "timings": timings}, chunked=True))
    assert (record.n_predicted, record.n_prompt, record.n_computed) == (5, 12, 3)


def test_a_stream_without_its_end_is_an_error_unless_the_client_closed_it() -> None:
    pieces = reply(*TEXTS, chunked=True, done=False)[:-2]
    with pytest.raises(BenchError, match="without \\[DONE\\]"):
        read(pieces)
    assert read(pieces, cut=True).text == "a"
    with pytest.raises(BenchError, match="out of memory"):
        read(reply({"error": {"message": "out of memory"}}, chunked=True))


@pytest.mark.parametrize(
    ("status", "body", "exit_status", "message"),
    [
        (401, b'{"error": {"message": "Invalid API Key"}}', REFUSED, "Invalid API Key"),
        (404, b'{"error": "model \'x\' not found"}', UNKNOWN_MODEL, "model 'x' not found"),
        (422, b'{"detail": "no such field"}', BAD_REPLY, "no such field"),
        (502, b"<html>bad gateway</html>", BAD_REPLY, "bad gateway"),
        (500, b"", BAD_REPLY, "no reason given"),
    ],
)
def test_an_error_reply_has_an_exit_status(status: int, body: bytes, exit_status: int, message: str) -> None:
    error = refusal(status, body)
    assert error.status == exit_status
    assert f"{status}" in str(error)
    assert message in str(error)


def stream(sent: float, events: list[float]) -> ClientRecord:
    return ClientRecord(sent=sent, events=events, done=events[-1], n_predicted=len(events))


def test_rates_count_the_whole_time_and_waits_each_client() -> None:
    found = scenarios.of_streams([stream(0, [1, 2, 3]), stream(1, [4, 5])])
    assert found["tok/s"] == pytest.approx(1.0)
    assert (found["TTFT p50 ms"], found["TTFT max ms"]) == (1000, 3000)
    assert (found["ITL p99 ms"], found["TPOT p50 ms"]) == (1000, 1000)


def test_the_longest_gap_begins_or_ends_at_the_new_request() -> None:
    running = [stream(0, [1, 2, 6, 8]), stream(0, [1, 3, 4, 5, 9])]
    assert scenarios.longest_gap_s(running, 2.5, 8.0) == 3.5
    assert scenarios.longest_gap_s([stream(0, [1])], 2.0, 9.0) == 7.0


def test_new_tokens_of_a_conversation_are_those_of_no_earlier_turn() -> None:
    assert scenarios.n_new([ClientRecord(n_prompt=n, n_predicted=4) for n in (10, 20, 22)]) == 10 + 7 + 1


def test_the_same_seed_writes_the_same_words() -> None:
    assert RandomText("a 1").text(20) == RandomText("a 1").text(20) != RandomText("a 2").text(20)
    words = RandomText("a 1", 0.5).text(60).split(" ")[1:]
    assert len(words) == 30
    assert all(len(word) in (4, 6) and word[:2] in SYLLABLES for word in words)


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix"),
    [
        ("localhost:8080", "localhost", 8080, ""),
        ("https://api.example.org/openai/v1", "api.example.org", 443, "/openai"),
        ("http://[::1]:8000", "::1", 8000, ""),
    ],
)
def test_urls_are_parsed_as_users_write_them(url: str, host: str, port: int, prefix: str) -> None:
    target = parse_target(url)
    assert (target.host, target.port, target.prefix) == (host, port, prefix)
    assert parse_target(target.url).url == target.url


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://x/?a=1", "http://[::1", "http://a..b"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(BenchError, match="--url"):
        parse_target(url)
