import pytest

from server.dialects.native.fim import fitting_extra, fitting_gap


def test_a_batch_takes_the_end_of_a_prefix_and_the_beginning_of_a_suffix() -> None:
    before, after = fitting_gap(list(range(100)), list(range(100)), [1, 2, 3], 40)
    assert (before, after) == ([*range(70, 100), 1, 2, 3], list(range(5)))
    assert fitting_gap([1], [2], [], 40) == ([1], [2])
    assert fitting_gap([1], [2], [0] * 30, 40) == ([1, *[0] * 30], [])
    assert fitting_gap([1, 2], [2], [], 3) == ([], [])


@pytest.mark.parametrize(
    ("n_ctx", "n_batch", "n_predict", "n_left"), [(100, 90, -1, 12), (100, 90, 4, 2), (100, 90, 50, 0), (9, 20, -1, 0)]
)
def test_the_end_of_the_files_fills_what_is_left_of_the_context(
    n_ctx: int, n_batch: int, n_predict: int, n_left: int
) -> None:
    left = fitting_extra(list(range(50)), n_ctx=n_ctx, n_batch=n_batch, n_predict=n_predict)
    assert left == list(range(50 - n_left, 50))
    assert fitting_extra([1], n_ctx=100, n_batch=10, n_predict=-1) == [1]
