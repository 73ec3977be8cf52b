import pytest

from server.dialects import common as wire
from server.engine.request import Timings


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


@pytest.mark.parametrize(
    ("piece", "shown"),
    [(b"abc", "abc"), ("é".encode(), "é"), ("é".encode()[:1], ""), (b"\xa9", "\ufffd"), (b"a\xf0\x9f\x98", "a")],
)
def test_a_piece_is_shown_as_far_as_it_is_text(piece: bytes, shown: str) -> None:
    assert wire.shown_piece(piece) == shown
