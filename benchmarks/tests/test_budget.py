"""The parts whose time `benchmarks.budget` counts are functions of the server."""

import pytest

from benchmarks.budget.parts import REQUEST_PARTS, TOKEN_PARTS, Part


@pytest.mark.parametrize("part", dict.fromkeys([*TOKEN_PARTS, *REQUEST_PARTS]), ids=lambda part: part.name)
def test_a_part_is_a_function_of_its_owner(part: Part) -> None:
    assert callable(getattr(part.owner, part.function))
