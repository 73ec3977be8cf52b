"""What `shape_differences` finds."""

import pytest

from tests.model.oracle.comparison import shape_differences


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ({"a": 1}, {"a": 2.5}, set()),
        ({"a": {"b": 1, "c": 1}}, {"a": {"b": "1"}}, {"a.b: number/string", "+a.c"}),
        ([{"a": 1}, {"b": 1}], [{"a": 1}, {"c": 1}], {"+1.b", "-1.c"}),
        ({"a": [1, None]}, {"a": [1, "x"]}, {"a.1: null/string"}),
        ({"a": []}, {"a": [1]}, {"a: 0/1 elements"}),
        ([1, [1, 2]], [1, [1]], {"1: 2/1 elements"}),
        ([], {}, {": array/object"}),
        (
            {"a": [{"b": 1}, {"b": 1, "c": {"d": 1}}]},
            {"a": [{}, {"c": {"d": "x"}}]},
            {"+a.0.b", "a.1.c.d: number/string"},
        ),
    ],
)
def test_every_element_of_an_array_counts_and_so_does_their_number(
    ours: object, theirs: object, found: set[str]
) -> None:
    assert shape_differences(ours, theirs) == found
