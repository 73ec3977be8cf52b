"""Automata of one value that would be too large are refused, before they are made."""

from typing import Any

import pytest

from server.constrain.grammar.schema.joined import MAX_PATTERNS, MAX_REMAINDERS
from server.errors import InvalidRequest
from tests.unit.constrain.builders import BYTES

ENDS: list[dict[str, Any]] = [{"pattern": f".*a.{{{n}}}$"} for n in range(5, 40)]


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": ENDS},
        {"anyOf": [{"type": "null"}, {"allOf": ENDS}]},
        {"$defs": {"some": {"allOf": ENDS[:9]}}, "$ref": "#/$defs/some", "allOf": [{"allOf": ENDS[9:]}]},
        {"type": "string", "allOf": [{"not": each} for each in ENDS]},
        {"type": "integer", "multipleOf": 999_983},
        {"type": "integer", "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]},
    ],
)
def test_an_automaton_that_would_be_too_large_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"json_schema\.items.* cannot be enforced"):
        BYTES.json_schema({"type": "array", "items": schema, "$defs": schema.pop("$defs", {})})


def test_alternatives_count_as_the_largest_and_powers_of_two_and_five_hardly() -> None:
    BYTES.json_schema({"type": "string", "anyOf": [{"pattern": f"^x{n}$"} for n in range(MAX_PATTERNS * 3)]})
    BYTES.json_schema({"type": "string", "allOf": [{"pattern": f"^[a-{last}]*$"} for last in "bcdefghijklm"]})
    BYTES.json_schema({"type": "integer", "multipleOf": MAX_REMAINDERS * 100})
    BYTES.json_schema({"type": "number", "allOf": [{"multipleOf": 0.01}, {"multipleOf": 86_400}]})
