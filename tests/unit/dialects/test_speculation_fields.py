"""llama-server's ``speculative.*`` fields."""

import pytest

from server.dialects.generation import GenerationFields, engine_request
from tests.unit.dialects.builders import make_model


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (-1, -1, -1.0)),
        ({"speculative.n_max": 0}, (0, -1, -1.0)),
        ({"speculative.n_max": 4, "speculative.n_min": 2, "speculative.p_min": 0.5}, (4, 2, 0.5)),
        ({"speculative.p_min": 7}, (-1, -1, 1.0)),
    ],
)
def test_a_request_bounds_its_guesses(body: dict[str, float], expected: tuple[int, int, float]) -> None:
    fields = GenerationFields.model_validate(body)
    request = engine_request(fields, make_model(), request_id="a", prompt=[1])
    assert (request.spec_n_max, request.spec_n_min, request.spec_p_min) == expected
