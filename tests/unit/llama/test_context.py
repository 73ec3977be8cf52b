"""Contexts: padded runs, their cost, candidates of a token, texts of special tokens."""

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
def test_runs_of_similar_length_are_padded(
    lengths: list[int], evaluation_tokens: float, n_ubatch: int, expected: list[int]
) -> None:
    assert padded(lengths, evaluation_tokens, n_ubatch) == expected


def test_a_gap_between_sequences_separates_groups() -> None:
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
def test_evaluations_are_counted_as_the_library_splits_a_batch(lengths: list[int]) -> None:
    assert n_evaluations(lengths) == evaluations(enumerate(lengths), 10**6)


@pytest.mark.parametrize(
    ("seconds", "quickest_s", "n_runs"),
    [
        pytest.param([0.010, 0.0109, 0.001], 0.010, 2, id="two that agree are enough"),
        pytest.param([0.9, 0.010, 0.0101, 0.001], 0.010, 3, id="the first one builds the graph"),
        pytest.param([0.02, 0.015, 0.010, 0.0101, 0.001], 0.010, 4, id="a disturbed one is repeated"),
        pytest.param([0.06, 0.05, 0.04, 0.03, 0.02, 0.01, 0.001], 0.01, 6, id="at most six"),
        pytest.param([1.1, 0.6, 0.001], 0.6, 2, id="two slow ones are enough"),
        pytest.param([0.6, 0.3, 0.2, 0.001], 0.2, 3, id="no more than a second or two"),
    ],
)
def test_a_measurement_ends_as_soon_as_runs_agree(seconds: list[float], quickest_s: float, n_runs: int) -> None:
    numbers: list[int] = []

    def run(number: int) -> float:
        numbers.append(number)
        return seconds[number]

    assert quickest(run) == quickest_s
    assert numbers == list(range(n_runs))


@given(st.sets(st.integers(0, 2047), min_size=1), st.integers(0, 40))
def test_the_ids_are_those_of_the_set_bits_few_or_many(tokens: set[int], n_past_the_end: int) -> None:
    n_vocab = 2048 - n_past_the_end
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
def test_a_mask_is_as_long_as_the_vocabulary_and_of_whole_words(n_bytes: int) -> None:
    with pytest.raises(InternalError, match=f"a token mask of {n_bytes} bytes"):
        allowed_tokens(b"\xff" * n_bytes, 2048)


FILL = b"x" * MIN_PIECE_BYTES


def pieces(raw: bytes, *texts: bytes) -> list[bytes]:
    return list(SpecialTexts(texts).pieces(raw))


def test_a_special_text_that_another_overlaps_is_no_place_to_cut() -> None:
    for raw, rival in ((b"<end><", b"><"), (b"<<end>", b"<<"), (b"<end>", b"end"), (b"a<end>b", b"a<end>b")):
        assert pieces(FILL + raw + FILL, b"<end>", rival) in ([FILL + raw + FILL], [FILL + b"a<end>b", FILL])


def test_runs_of_a_text_that_overlaps_itself_are_not_cut() -> None:
    assert pieces(FILL + b"aaa" + FILL, b"aa") == [FILL + b"aaa" + FILL]
    assert pieces(FILL + b"aa" + FILL, b"aa") == [FILL + b"aa", FILL]


@given(st.lists(st.sampled_from([b"<a>", b"<", b">", b"a", FILL]), max_size=40), st.sets(st.binary(max_size=3)))
def test_no_byte_is_lost(parts: list[bytes], texts: set[bytes]) -> None:
    raw = b"".join(parts)
    assert b"".join(pieces(raw, b"<a>", *texts)) == raw
