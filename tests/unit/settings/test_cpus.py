"""``cpu_range`` and ``cpu_mask``: which processors each instance gets."""

import pytest

from server.options.values import instance_cpus, mask_cpus, range_cpus


@pytest.mark.parametrize(("text", "cpus"), [("0-3", {0, 1, 2, 3}), ("2-2", {2}), ("-1", {0, 1}), ("510-", {510, 511})])
def test_a_range_may_leave_out_its_ends(text: str, cpus: set[int]) -> None:
    assert range_cpus(text) == cpus


@pytest.mark.parametrize("text", ["", "3", "3-1", "0-512", "a-b", "0-1-2", "0 - 1"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a .*range"):
        range_cpus(text)


@pytest.mark.parametrize(
    ("text", "cpus"), [("f", {0, 1, 2, 3}), ("0x5", {0, 2}), ("0X", None), ("0", None), ("g", None)]
)
def test_a_mask_is_hexadecimal_and_names_somebody(text: str, cpus: set[int] | None) -> None:
    if cpus is None:
        with pytest.raises(ValueError, match="is not a hexadecimal CPU mask"):
            mask_cpus(text)
    else:
        assert mask_cpus(text) == cpus


def test_ranges_and_masks_complement_each_other_instance_by_instance() -> None:
    assert instance_cpus(("0-1", "4-5"), ("4", "80")) == (frozenset({0, 1, 2}), frozenset({4, 5, 7}))
    assert instance_cpus(("0-1",), ()) == (frozenset({0, 1}),)
    assert instance_cpus(("0-0",), ("2", "4")) == (frozenset({0, 1}), frozenset({0, 2}))
    assert instance_cpus((), ()) == ()
