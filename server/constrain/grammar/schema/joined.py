"""How many patterns one value must match together, and the number that it must be a multiple of.

llguidance makes one automaton of them before any of its limits counts: its states double with each pattern (15 of them
took half a minute and 2 GB), and are as many as the least common multiple (10 s for 999,983).
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import isfinite, lcm
from typing import Any

from server.constrain.grammar.schema.keywords import Schema
from server.errors import InvalidRequest

MAX_PATTERNS = 12
MAX_REMAINDERS = 100_000


class Joined:
    """Of one plain document. ``definitions``: what references name, by the whole reference."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._found: dict[int, tuple[int, int]] = {}

    def check(self, schema: dict[str, Any], place: str) -> None:
        """Raises `InvalidRequest` where they are too many."""
        n_patterns, multiple = self._of(schema)
        if n_patterns > MAX_PATTERNS:
            raise InvalidRequest(f"{place}: more than {MAX_PATTERNS} patterns of one text cannot be enforced", place)
        if multiple > MAX_REMAINDERS:
            raise InvalidRequest(f"{place}: the keyword 'multipleOf' cannot be enforced beyond {MAX_REMAINDERS}", place)

    def _of(self, schema: Schema) -> tuple[int, int]:
        """Patterns, and the least common multiple; of alternatives the most."""
        if isinstance(schema, bool):
            return 0, 1
        if id(schema) not in self._found:
            self._found[id(schema)] = 0, 1  # what refers to itself adds nothing
            n_patterns, multiple = int("pattern" in schema), _remainders(schema.get("multipleOf", 1))
            for n, each in map(self._of, self._together(schema)):
                n_patterns, multiple = n_patterns + n, _common(multiple, each)
            for key in ("anyOf", "oneOf"):
                ways = [self._of(way) for way in schema.get(key, ())]
                n_patterns += max((n for n, _ in ways), default=0)
                multiple = max((_common(multiple, each) for _, each in ways), default=multiple)
            self._found[id(schema)] = n_patterns, multiple
        return self._found[id(schema)]

    def _together(self, schema: dict[str, Any]) -> Iterator[Schema]:
        yield from schema.get("allOf", ())
        yield from (schema[key] for key in ("not", "if", "then", "else") if key in schema)
        if "$ref" in schema:
            yield self._definitions[schema["$ref"]]


def _common(one: int, other: int) -> int:
    return min(lcm(one, other), MAX_REMAINDERS + 1)


def _remainders(number: float) -> int:
    """Of a multiple's digits, but for powers of two and five: these are the last digits'."""
    if not isfinite(number):
        return 1
    digits = Fraction(str(number)).numerator
    for factor in (2, 5):
        while digits % factor == 0:
            digits //= factor
    return min(digits, MAX_REMAINDERS + 1)
