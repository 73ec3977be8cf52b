"""Parsing of timed replies, and figures computed from them. `tests/api/test_bench.py` runs the whole command."""

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


def read(parts: list[bytes], *, closed: bool = False) -> ClientRecord:
    return read_stream(0.0, [(float(i), part) for i, part in enumerate(parts)], closed=closed)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_events_have_the_time_of_the_read_that_completes_them(chunked: bool, size: int) -> None:
    raw = b"".join(reply(*TEXTS, {"usage": USAGE}, chunked=chunked))
    record = read([raw[at : at + size] for at in range(0, len(raw), size)])
    assert (record.text, record.n_predicted, record.n_prompt, record.n_computed) == ("ab", 2, 10, 6)
    assert len(record.events) == 2
    for n, time in enumerate(record.events, 1):
        assert raw[: int(time * size)].count(b"}\n") < n <= raw[: int((time + 1) * size)].count(b"}\n")


def test_llama_servers_timings_give_the_computed_tokens() -> None:
    timings = {"prompt_n": 3, "cache_n": 9, "predicted_n": 5}
    record = read(reply(*TEXTS, {"choices": [], "timings": timings}, chunked=True))
    assert (record.n_predicted, record.n_prompt, record.n_computed) == (5, 12, 3)


def test_incomplete_stream_is_an_error_unless_the_client_closed_it() -> None:
    parts = reply(*TEXTS, chunked=True, done=False)[:-2]
    with pytest.raises(BenchError, match="without \\[DONE\\]"):
        read(parts)
    assert read(parts, closed=True).text == "a"
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
def test_error_replies_have_exit_status_and_message(status: int, body: bytes, exit_status: int, message: str) -> None:
    error = refusal(status, body)
    assert error.status == exit_status
    assert f"{status}" in str(error)
    assert message in str(error)


def stream(sent: float, events: list[float]) -> ClientRecord:
    return ClientRecord(sent=sent, events=events, done=events[-1], n_predicted=len(events))


def test_stream_figures_use_total_time_for_rates_and_each_client_for_latencies() -> None:
    figures = scenarios.of_streams([stream(0, [1, 2, 3]), stream(1, [4, 5])])
    assert figures["tok/s"] == pytest.approx(1.0)
    assert (figures["TTFT p50 ms"], figures["TTFT max ms"]) == (1000, 3000)
    assert (figures["ITL p99 ms"], figures["TPOT p50 ms"]) == (1000, 1000)


def test_longest_gap_includes_the_start_and_the_end_of_the_interval() -> None:
    running = [stream(0, [1, 2, 6, 8]), stream(0, [1, 3, 4, 5, 9])]
    assert scenarios.longest_gap_s(running, 2.5, 8.0) == 3.5
    assert scenarios.longest_gap_s([stream(0, [1])], 2.0, 9.0) == 7.0


def test_new_tokens_of_a_conversation_exclude_those_of_earlier_turns() -> None:
    assert scenarios.n_new([ClientRecord(n_prompt=n, n_predicted=4) for n in (10, 20, 22)]) == 10 + 7 + 1


def test_random_text_depends_only_on_the_seed() -> None:
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
def test_urls_with_and_without_scheme_are_parsed(url: str, host: str, port: int, prefix: str) -> None:
    target = parse_target(url)
    assert (target.host, target.port, target.prefix) == (host, port, prefix)
    assert parse_target(target.url).url == target.url


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://x/?a=1", "http://[::1", "http://a..b"])
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(BenchError, match="--url"):
        parse_target(url)
