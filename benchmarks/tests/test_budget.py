"""The functions whose CPU time `benchmarks.budget` measures exist."""

import pytest

from benchmarks.budget.parts import REQUEST_PARTS, TOKEN_PARTS, Part


@pytest.mark.parametrize("part", dict.fromkeys([*TOKEN_PARTS, *REQUEST_PARTS]), ids=lambda part: part.name)
def test_each_part_names_an_existing_function(part: Part) -> None:
    assert callable(getattr(part.owner, part.function))
