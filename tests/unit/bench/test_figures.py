"""Records to figures, and figures to a table."""

from typing import Any

import pytest

from server.bench import figures
from server.bench.command import ScenarioResult, document, table
from server.bench.errors import BenchError
from server.bench.prompts import SYLLABLES, RandomText
from server.bench.reply import ClientRecord
from server.bench.scenarios import SCENARIOS, named
from server.bench.target import parse_target


def stream(sent: float, events: list[float], **fields: Any) -> ClientRecord:
    return ClientRecord(sent=sent, events=events, done=events[-1], n_predicted=len(events), **fields)


def test_rates_are_over_the_whole_time_and_waits_are_each_clients_own() -> None:
    seen = figures.of_streams([stream(0, [1, 2, 3]), stream(1, [4, 5])])
    assert seen["tok/s"] == pytest.approx(1.0)
    assert (seen["TTFT p50 ms"], seen["TTFT max ms"]) == (1000, 3000)
    assert (seen["ITL p99 ms"], seen["TPOT p50 ms"]) == (1000, 1000)


def test_one_streams_rate_is_that_between_its_tokens() -> None:
    assert figures.decode_rate(stream(0, [10, 11, 12])) == pytest.approx(1.0)
    assert figures.decode_rate(stream(0, [10, 10, 10, 10])) == pytest.approx(0.4)


def test_a_gap_reaches_from_the_newcomers_request_to_its_first_token() -> None:
    running = [stream(0, [1, 2, 6, 8]), stream(0, [1, 3, 4, 5, 9])]
    assert figures.longest_gap_s(running, 2.5, 8.0) == 3.5
    assert figures.longest_gap_s([stream(0, [1])], 2.0, 9.0) == 7.0


def test_computed_tokens_are_shown_only_when_every_reply_tells_them() -> None:
    told = stream(0, [1], n_prompt=10, n_computed=4)
    assert figures.of_prompts([told, told]) == {"prompt tokens": 20, "prompt tokens computed": 8}
    assert figures.of_prompts([told, stream(0, [1], n_prompt=10)]) == {"prompt tokens": 20}
    assert figures.of_prompts([told, stream(0, [1])]) == {}


def test_what_is_new_in_a_turn_is_all_but_the_turns_before() -> None:
    talk = [
        ClientRecord(n_prompt=10, n_predicted=4),
        ClientRecord(n_prompt=20, n_predicted=4),
        ClientRecord(n_prompt=22, n_predicted=4),
    ]
    assert figures.n_new(talk) == 10 + 7 + 1


def test_the_same_seed_writes_the_same_words_and_another_writes_others() -> None:
    assert RandomText("a 1").text(20) == RandomText("a 1").text(20) != RandomText("a 2").text(20)
    words = RandomText("a 1").text(30).split(" ")[1:]
    assert len(words) == 30
    assert all(len(word) in (4, 6) and word[:2] in SYLLABLES for word in words)
    assert len(RandomText("a 1", 0.5).text(30).split()) == 15


def test_a_table_has_the_median_and_the_spread_and_says_what_failed() -> None:
    one, slots = SCENARIOS[:2]
    rounds = [{"tok/s": 10.0}, {"tok/s": 30.0}, {"tok/s": 12.0}]
    shown = table([ScenarioResult(one, rounds), ScenarioResult(slots, failure="the server answered 501: no")])
    assert "one       tok/s   12.0    10.0 to 30.0" in shown
    assert "slots     not measured  the server answered 501: no" in shown


def test_the_document_keeps_every_round() -> None:
    value = document([ScenarioResult(SCENARIOS[0], [{"tok/s": 1.0}])], url="http://x")
    assert value["url"] == "http://x"
    assert value["scenarios"] == [{"name": "one", "title": "one stream", "rounds": [{"tok/s": 1.0}], "failure": None}]


def test_scenarios_are_chosen_by_name() -> None:
    assert [scenario.name for scenario in named("rate, one")] == ["one", "rate"]
    assert named("all") == list(SCENARIOS)
    with pytest.raises(BenchError, match="no scenario fast; there are one,"):
        named("one,fast")


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix"),
    [
        ("localhost:8080", "localhost", 8080, ""),
        ("http://127.0.0.1:11434/v1/", "127.0.0.1", 11434, ""),
        ("https://api.example.org/openai/v1", "api.example.org", 443, "/openai"),
        ("http://[::1]:8000", "::1", 8000, ""),
    ],
)
def test_addresses_are_taken_as_clients_write_them(url: str, host: str, port: int, prefix: str) -> None:
    target = parse_target(url)
    assert (target.host, target.port, target.prefix) == (host, port, prefix)
    assert parse_target(target.url).url == target.url
    authority = target.url.split("/")[2]
    assert f"\r\nHost: {authority}\r\n".encode() in target.head("GET", "/v1/models", 0, keep=True)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://x/?a=1", "http://[::1", "http://a..b"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BenchError, match="--url"):
        parse_target(url)


def test_a_key_with_a_line_break_is_refused() -> None:
    with pytest.raises(BenchError, match="API key"):
        parse_target("http://x", "a\r\nb")
