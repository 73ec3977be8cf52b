import math

import orjson
import pytest

from server.dialects import common as wire
from server.dialects.usage import Usage
from server.engine.request import FinishReason, Progress, Timings
from tests.unit.dialects.builders import finished, logprob


def test_timings_have_llama_servers_keys_and_count_n_minus_one_steps() -> None:
    assert wire.timings(Timings(2, 1, 2.0, 3, 10.0)) == {
        "cache_n": 2,
        "prompt_n": 1,
        "prompt_ms": 2.0,
        "prompt_per_token_ms": 2.0,
        "prompt_per_second": 500.0,
        "predicted_n": 3,
        "predicted_ms": 10.0,
        "predicted_per_token_ms": 5.0,
        "predicted_per_second": 200.0,
    }


def test_timings_of_nothing_divide_by_nothing() -> None:
    assert set(wire.timings(Timings()).values()) == {0}


def test_progress_counts_cached_tokens_as_processed() -> None:
    got = wire.progress(Progress(0, total=44, cached=16, computed=20, elapsed_ms=3.7))
    assert got["prompt_progress"] == {"total": 44, "cache": 16, "processed": 20, "time_ms": 3}
    assert (got["timings"]["cache_n"], got["timings"]["prompt_n"]) == (16, 4)


def test_usage_counts_each_prompt_once_and_every_choice() -> None:
    ends = [(0, finished(0)), (0, finished(1)), (1, finished(0, n_prompt=7, n_cached=2))]
    assert Usage.of(ends).openai() == {
        "completion_tokens": 9,
        "prompt_tokens": 12,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


@pytest.mark.parametrize(
    ("piece", "shown"),
    [(b"abc", "abc"), ("é".encode(), "é"), ("é".encode()[:1], ""), (b"\xa9", "\ufffd"), (b"a\xf0\x9f\x98", "a")],
)
def test_a_piece_is_shown_as_far_as_it_is_text(piece: bytes, shown: str) -> None:
    assert wire.shown_piece(piece) == shown


def test_logprobs_have_llama_servers_shape() -> None:
    token = logprob(b"\xc3", -math.inf, token=7, top=[logprob(b"b", -0.1, token=8)])
    got = wire.logprobs([token])
    assert got == {
        "content": [
            {
                "id": 7,
                "token": "",
                "bytes": [195],
                "logprob": -3.4028234663852886e38,
                "top_logprobs": [{"id": 8, "token": "b", "bytes": [98], "logprob": -0.1}],
            }
        ]
    }
    assert b"null" not in orjson.dumps(got)


def test_finish_reasons_are_openais() -> None:
    assert wire.finish_reason(FinishReason.EOS) == "stop"
    assert wire.finish_reason(FinishReason.STOP) == "stop"
    assert wire.finish_reason(FinishReason.LIMIT, called=True) == "length"
    assert wire.finish_reason(FinishReason.EOS, called=True) == "tool_calls"


def test_ids_are_32_letters_and_digits_and_differ() -> None:
    ids = {wire.random_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(i) == 32 and i.isalnum() and i.isascii() for i in ids)
