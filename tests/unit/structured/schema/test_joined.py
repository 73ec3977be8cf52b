"""Automata of one value that would be too large are refused, before they are made."""

from typing import Any

import pytest

from server.errors import InvalidRequest
from server.structured.grammar.schema.joined import MAX_PATTERNS, MAX_REMAINDERS
from tests.unit.structured.builders import BYTES

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


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"properties": {"a": each}} for each in ENDS]},
        {"allOf": [{"properties": {"a": {"items": each}}} for each in ENDS]},
        {"allOf": [{"additionalProperties": each} for each in ENDS]},
        {"prefixItems": [ENDS[0]], "allOf": [{"prefixItems": [{"allOf": ENDS[n : n + 3]}]} for n in range(1, 16, 3)]},
        {"anyOf": [{}, {"allOf": [{"properties": {"a": {"properties": {"b": each}}}} for each in ENDS]}]},
    ],
)
def test_what_is_joined_in_objects_and_arrays_counts(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"json_schema\.items\..* cannot be enforced"):
        BYTES.json_schema({"type": "array", "items": schema})


@pytest.mark.parametrize("n_levels", [4, 20])
def test_so_does_what_is_joined_deep_inside(n_levels: int) -> None:
    schemas = ENDS
    for _ in range(n_levels):
        schemas = [{"properties": {"a": each}} for each in schemas]
    with pytest.raises(InvalidRequest, match="12 patterns"):
        BYTES.json_schema({"allOf": schemas})


def test_alternatives_of_one_value_are_all_of_another() -> None:
    definitions = {f"d{n}": {"properties": {"a": each}} for n, each in enumerate(ENDS)}
    ways = [{"$ref": f"#/$defs/{name}"} for name in definitions]
    with pytest.raises(InvalidRequest, match=r"properties\.q\..* patterns of one text cannot be enforced"):
        BYTES.json_schema({"properties": {"p": {"anyOf": ways}, "q": {"allOf": ways}}, "$defs": definitions})


def test_references_one_behind_the_other_are_refused_as_a_client_s_mistake() -> None:
    chain: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(3000)}
    with pytest.raises(InvalidRequest, match="one behind the other"):
        BYTES.json_schema({"$ref": "#/$defs/d0", "$defs": chain | {"d3000": {}}})


def test_what_would_take_long_to_look_through_is_refused() -> None:
    ways = [{"$ref": "#", "properties": {f"p{n}": ENDS[n % len(ENDS)]}} for n in range(600)]
    with pytest.raises(InvalidRequest, match="more is joined here than can be looked through"):
        BYTES.json_schema({"anyOf": ways})


def test_a_property_of_many_alternatives_is_no_joined_one() -> None:
    kinds = [{"required": ["kind"], "properties": {"kind": {"pattern": f"^k{n}$"}}} for n in range(MAX_PATTERNS * 2)]
    BYTES.json_schema({"type": "object", "anyOf": kinds, "allOf": [{"properties": {"kind": {"type": "string"}}}]})
    BYTES.json_schema({"type": "object", "properties": {f"p{n}": {"pattern": f"^k{n}$"} for n in range(40)}})


def test_alternatives_count_as_the_largest_and_powers_of_two_and_five_hardly() -> None:
    BYTES.json_schema({"type": "string", "anyOf": [{"pattern": f"^x{n}$"} for n in range(MAX_PATTERNS * 3)]})
    BYTES.json_schema({"type": "string", "allOf": [{"pattern": f"^[a-{last}]*$"} for last in "bcdefghijklm"]})
    BYTES.json_schema({"type": "integer", "multipleOf": MAX_REMAINDERS * 100})
    BYTES.json_schema({"type": "number", "allOf": [{"multipleOf": 0.01}, {"multipleOf": 86_400}]})
