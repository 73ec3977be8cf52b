import pytest

from server.dialects.native.fim import Gap, fitting_extra


def test_a_batch_takes_the_end_of_a_prefix_and_the_beginning_of_a_suffix() -> None:
    gap = Gap(list(range(100)), list(range(100)), [1, 2, 3]).cut(40)
    assert (gap.prefix, gap.suffix, gap.prompt) == (list(range(70, 100)), list(range(5)), [1, 2, 3])
    assert Gap([1], [2]).cut(40) == Gap([1], [2])
    assert Gap([1], [2], [0] * 30).cut(40).suffix == []
    assert Gap([1, 2], [2]).cut(3) == Gap([], [])


@pytest.mark.parametrize(
    ("n_ctx", "n_batch", "n_predict", "n_left"), [(100, 90, -1, 12), (100, 90, 4, 2), (100, 90, 50, 0), (9, 20, -1, 0)]
)
def test_the_end_of_the_files_fills_what_is_left_of_the_context(
    n_ctx: int, n_batch: int, n_predict: int, n_left: int
) -> None:
    left = fitting_extra(list(range(50)), n_ctx=n_ctx, n_batch=n_batch, n_predict=n_predict)
    assert left == list(range(50 - n_left, 50))
    assert fitting_extra([1], n_ctx=100, n_batch=10, n_predict=-1) == [1]
