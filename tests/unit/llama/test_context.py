"""Pure functions of contexts: batch padding, cost measurement, token masks, and splitting a text at special tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.runner_api import BatchEntry
from server.errors import InternalError
from server.llama.context.batch import n_evaluations, padded_lengths
from server.llama.context.cost import quickest
from server.llama.sampling.candidates import allowed_tokens
from server.llama.vocab import MIN_PIECE_BYTES, SpecialTexts
from tests.support.fakes import evaluations


def padded(lengths: list[int], evaluation_tokens: float, n_ubatch: int = 512) -> list[int]:
    entries = [BatchEntry(seq, 0, [1] * n, n_outputs=1) for seq, n in enumerate(lengths)]
    return padded_lengths(entries, evaluation_tokens, n_ubatch)


@pytest.mark.parametrize(
    ("lengths", "evaluation_tokens", "n_ubatch", "expected"),
    [
        ([5, 6, 5, 4, 6, 6], 9, 512, [6] * 6),
        ([2, 1, 1, 1], 9, 512, [2] * 4),  # one sequence has a draft token
        ([1, 1, 1, 9, 10], 9, 512, [1, 1, 1, 10, 10]),
        ([9, 1, 1, 1], 9, 512, [9, 1, 1, 1]),  # padding would cost more than an evaluation
        ([21, 21, 22, 21, 23, 21, 23, 20], 6, 512, [23] * 8),
        ([5, 6, 5, 4], 0, 512, [5, 6, 5, 4]),
        ([5, 6, 5, 4], 9, 23, [6, 6, 6, 4]),  # 24 tokens do not fit one evaluation
    ],
)
def test_adjacent_runs_of_similar_length_are_padded_to_the_longest(
    lengths: list[int], evaluation_tokens: float, n_ubatch: int, expected: list[int]
) -> None:
    assert padded(lengths, evaluation_tokens, n_ubatch) == expected


def test_a_gap_in_the_sequence_ids_separates_padding_groups() -> None:
    entries = [BatchEntry(seq, 0, [1] * n, n_outputs=1) for seq, n in ((0, 5), (1, 6), (3, 7))]
    assert padded_lengths(entries, 9, 512) == [6, 6, 7]


@given(st.lists(st.integers(1, 40), max_size=12), st.floats(0, 12), st.integers(1, 200))
def test_padding_never_costs_more_than_it_saves(lengths: list[int], evaluation_tokens: float, n_ubatch: int) -> None:
    def cost(each: list[int]) -> float:
        return sum(each) + evaluation_tokens * n_evaluations(each)

    to = padded(lengths, evaluation_tokens, n_ubatch)
    assert all(before <= after for before, after in zip(lengths, to, strict=True))
    assert cost(to) <= cost(lengths) + 1e-6
    assert all(to.count(n) * n <= n_ubatch for n in to if to.count(n) > lengths.count(n))


@given(st.lists(st.integers(1, 40), max_size=12))
def test_n_evaluations_matches_how_the_library_splits_a_batch(lengths: list[int]) -> None:
    assert n_evaluations(lengths) == evaluations(enumerate(lengths), 10**6)


@pytest.mark.parametrize(
    ("seconds", "quickest_s", "n_runs"),
    [
        pytest.param([0.010, 0.0109, 0.001], 0.010, 2, id="two runs agree"),
        pytest.param([0.9, 0.010, 0.0101, 0.001], 0.010, 3, id="the first run builds the graph"),
        pytest.param([0.02, 0.015, 0.010, 0.0101, 0.001], 0.010, 4, id="two disturbed runs"),
        pytest.param([0.06, 0.05, 0.04, 0.03, 0.02, 0.01, 0.001], 0.01, 6, id="at most six runs"),
        pytest.param([1.1, 0.6, 0.001], 0.6, 2, id="two runs of more than a second"),
        pytest.param([0.6, 0.3, 0.2, 0.001], 0.2, 3, id="three runs of more than a second"),
    ],
)
def test_quickest_stops_when_two_runs_agree_or_take_too_long(
    seconds: list[float], quickest_s: float, n_runs: int
) -> None:
    numbers: list[int] = []

    def run(number: int) -> float:
        numbers.append(number)
        return seconds[number]

    assert quickest(run) == quickest_s
    assert numbers == list(range(n_runs))


@given(st.sets(st.integers(0, 2047), min_size=1), st.integers(0, 40))
def test_allowed_tokens_are_the_set_bits_of_a_mask(tokens: set[int], n_padding_bits: int) -> None:
    n_vocab = 2048 - n_padding_bits
    bits = np.zeros(2048, np.uint8)
    bits[list(tokens)] = 1
    mask = np.packbits(bits, bitorder="little").tobytes()
    expected = sorted(token for token in tokens if token < n_vocab)
    if expected:
        assert allowed_tokens(mask, n_vocab).tolist() == expected
    else:
        with pytest.raises(InternalError, match="allows no token"):
            allowed_tokens(mask, n_vocab)


@pytest.mark.parametrize("n_bytes", [252, 257])
def test_rejects_a_token_mask_of_a_wrong_length(n_bytes: int) -> None:
    with pytest.raises(InternalError, match=f"a token mask of {n_bytes} bytes"):
        allowed_tokens(b"\xff" * n_bytes, 2048)


FILL = b"x" * MIN_PIECE_BYTES


def pieces(raw: bytes, *texts: bytes) -> list[bytes]:
    return list(SpecialTexts(texts).pieces(raw))


@pytest.mark.parametrize(
    ("raw", "special", "is_split"),
    [
        (b"<end><", [b"<end>", b"><"], False),
        (b"<<end>", [b"<end>", b"<<"], False),
        (b"<end>", [b"<end>", b"end"], False),
        (b"a<end>b", [b"<end>", b"a<end>b"], False),
        (b"aaa", [b"aa"], False),  # it overlaps itself
        (b"aa", [b"aa"], True),
    ],
)
def test_a_text_is_split_only_after_special_tokens_without_an_overlap(
    raw: bytes, special: list[bytes], is_split: bool
) -> None:
    expected = [FILL + raw, FILL] if is_split else [FILL + raw + FILL]
    assert pieces(FILL + raw + FILL, *special) == expected


@given(st.lists(st.sampled_from([b"<a>", b"<", b">", b"a", FILL]), max_size=40), st.sets(st.binary(max_size=3)))
def test_split_pieces_join_to_the_text(parts: list[bytes], texts: set[bytes]) -> None:
    raw = b"".join(parts)
    assert b"".join(pieces(raw, b"<a>", *texts)) == raw
