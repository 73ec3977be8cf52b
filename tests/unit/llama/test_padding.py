"""Padding of runs so that adjacent sequences are evaluated together (`server.llama.context.batch`)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.runner_api import BatchEntry
from server.llama.context.batch import n_evaluations, padded_lengths
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
