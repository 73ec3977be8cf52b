"""Rewrites keywords that llguidance lacks with those that it supports.

Keywords that no grammar expresses are omitted, and `finished` checks them. So with its check, the result accepts only
valid values.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import combinations, starmap
from typing import Any

from server.errors import InvalidRequest
from server.structured.grammar.schema.disjoint import Disjointness
from server.structured.grammar.schema.document import unenforceable
from server.structured.grammar.schema.formats import FORMATS
from server.structured.grammar.schema.keywords import LISTS, MAPS, SINGLE, Schema
from server.structured.grammar.schema.language import readable

LARGEST_INTEGER = 10**16 - 1
"""Of 16 digits (llama.cpp common/json-schema-to-grammar.cpp, PRIMITIVE_RULES, integral-part)."""
_NO_MORE = {"additionalProperties": False}


_EXACT = 2**53 - 2  # up to here each integer and its successor is a double
_CLOSE = 2.0**-24
"""An exclusive bound moves inwards by this much if the other bound is a fraction within 1, because llguidance would
include it.
"""
_BOUNDS = (
    ("minimum", "minimum", math.inf),
    ("exclusiveMinimum", "minimum", math.inf),
    ("maximum", "maximum", -math.inf),
    ("exclusiveMaximum", "maximum", -math.inf),
)


class Rewriter:
    """Rewrites one normalized document. ``omitted``: the first place and keyword that the result does not enforce, ""
    for none.
    """

    def __init__(self, root: Mapping[str, Any], what: str, places: Mapping[str, str]) -> None:
        self._what = what
        self._places = places
        self._root = {key: value for key, value in root.items() if key != "$defs"}
        self._defs = root.get("$defs", {})
        self._disjoint = Disjointness(
            {"#": self._root} | {f"#/$defs/{name}": each for name, each in self._defs.items()}
        )
        self._fractions = frozenset(map(math.floor, _fractions(root)))
        self._bounds_integers = not _has_long_numbers(root)
        self.omitted = ""

    def rewritten(self) -> dict[str, Any]:
        """The document. Raises InvalidRequest that names the keyword and its place."""
        root = self._schema(self._root, self._what)
        defs = {name: self._schema(schema, self._places[name]) for name, schema in self._defs.items()}
        whole = root if isinstance(root, dict) else {"allOf": [root]}
        return {**whole, "$defs": defs} if defs else whole

    def _schema(self, schema: Schema, place: str) -> Schema:
        if isinstance(schema, bool):
            return schema
        own = dict(schema)
        more: list[Schema] = []
        for rewrite in (
            *(self._unevaluated, self._not, self._if, self._dependent, self._names, self._counted, self._one_of),
            *(self._lists, self._text, self._numbers, self._integers),
        ):
            more += rewrite(own, place)
        out: dict[str, Any] = {}
        for key, value in own.items():
            below = f"{place}.{key}"
            if key in LISTS:
                out[key] = [self._schema(each, f"{below}.{n}") for n, each in enumerate(value)]
            elif key in MAPS:
                out[key] = {name: self._schema(each, f"{below}.{name}") for name, each in value.items()}
            else:
                out[key] = self._schema(value, below) if key in SINGLE or key == "items" else value
        if "pattern" in out:
            out["pattern"] = readable(out["pattern"])
        named = {readable(name): each for name, each in out.get("patternProperties", {}).items()}
        if named and len(named) == len(out["patternProperties"]):
            out["patternProperties"] = named
        if False in more:
            return False  # and so an object may be left open around a property that may not be
        if more:
            out["allOf"] = [*out.get("allOf", []), *(self._schema(each, place) for each in more)]
        return out

    def _omit(self, keyword: str, place: str) -> None:
        self.omitted = self.omitted or f"{place}: the keyword '{keyword}'"

    def _not(self, own: dict[str, Any], place: str) -> list[Schema]:
        refused = own.pop("not", False)
        if refused in (True, {}):
            return [False]
        if refused is not False:
            self._omit("not", place)
        return []

    def _if(self, own: dict[str, Any], place: str) -> list[Schema]:
        condition, then, other = own.pop("if", None), own.pop("then", True), own.pop("else", True)
        if condition is None or (then is True and other is True):
            return []
        self._omit("if", place)
        return [{"anyOf": [{"allOf": [condition, then]}, other]}]

    def _dependent(self, own: dict[str, Any], _: str) -> list[Schema]:
        needs: list[tuple[str, Schema]] = list(own.pop("dependentSchemas", {}).items())
        needs += [(name, {"required": names}) for name, names in own.pop("dependentRequired", {}).items() if names]
        return [
            {"anyOf": [{"properties": {name: False}}, {"required": [name], "allOf": [schema]}]}
            for name, schema in needs
        ]

    def _names(self, own: dict[str, Any], place: str) -> list[Schema]:
        """`propertyNames`, as the names that may be if it lists them or has a pattern for them."""
        match own.pop("propertyNames", True):
            case False:
                return [{"maxProperties": 0}]
            case {"enum": names, **rest} if not rest:
                return [{"properties": {name: True for name in names if isinstance(name, str)}, **_NO_MORE}]
            case {"pattern": pattern, **rest} if not rest.keys() - {"type"}:
                return [{"patternProperties": {pattern: True}, **_NO_MORE}]
            case names if names not in (True, {}):
                self._omit("propertyNames", place)
        return []

    def _counted(self, own: dict[str, Any], place: str) -> list[Schema]:
        """`minProperties` and `maxProperties` where some property is optional, which llguidance does not count."""
        optional = [name for name in own.get("properties", {}) if name not in own.get("required", ())]
        n_required = len(set(own.get("required", ())))
        if own.get("minProperties", 0) <= n_required:
            own.pop("minProperties", None)
        elif own["minProperties"] > n_required + 1:
            self._omit("minProperties", place)  # a name that was written twice counts twice for llguidance
        if not optional or not {"minProperties", "maxProperties"} & own.keys():
            return []
        self._omit("minProperties", place)
        least, _ = own.pop("minProperties", 0), own.pop("maxProperties", None)
        return [{"anyOf": [{"required": [name]} for name in optional]}] if least == n_required + 1 else []

    def _unevaluated(self, own: dict[str, Any], place: str) -> list[Schema]:
        """Return the unevaluated schemas; without applicators in place they equal the additional ones."""
        in_place = {"$ref", "allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas"} & own.keys()
        for key, additional in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            value = own.pop(key, None)
            if value is None or additional in own:
                continue
            if value is not True and (in_place or "contains" in own):
                raise unenforceable(key, place)
            own[additional] = value
        return []

    def _lists(self, own: dict[str, Any], place: str) -> list[Schema]:
        """`contains` and `uniqueItems`."""
        least, most = own.pop("minContains", 1), own.pop("maxContains", None)
        if "contains" in own:
            del own["contains"]
            if least or most is not None:
                self._omit("contains", place)
        if own.pop("uniqueItems", False) and own.get("maxItems", 2) > 1:
            self._omit("uniqueItems", place)
        return []

    def _text(self, own: dict[str, Any], place: str) -> list[Schema]:
        name = own.pop("format", "")
        if name == "regex":
            self._omit("format", place)
        return [{"pattern": each} for each in FORMATS.get(name, ())]

    def _numbers(self, own: dict[str, Any], place: str) -> list[Schema]:
        """llguidance's numbers are doubles: longer ones are refused, and bounds moved inwards to the next double."""
        for key in ("const", "enum"):
            if key in own and (inexact := next(_inexact(own[key]), None)) is not None:
                raise InvalidRequest(
                    f"{place}: the keyword '{key}' cannot be enforced: {str(inexact)[:40]} is not a double",
                    place,
                )
        for key, inclusive, towards in _BOUNDS:
            way = 1 if towards > 0 else -1
            if abs(own.get(key, 0)) > _EXACT:
                bound = _next_double(own.pop(key), towards, strict=key != inclusive)
                other = own.get(inclusive, bound)
                own[inclusive] = max(bound, other) if way > 0 else min(bound, other)
            elif key != inclusive and key in own and own[key] - (way < 0) in self._fractions:
                own[key] += way * _CLOSE
        return []

    def _integers(self, own: dict[str, Any], _: str) -> list[Schema]:
        """Bound integers as llama-server does: a model that can't end a number writes digits to its limit."""
        types, keys = own.get("type", ()), own.keys()
        is_integer = "integer" in types and "number" not in types
        if not self._bounds_integers or not is_integer or {"multipleOf", "const", "enum"} & keys:
            return []
        if not {"minimum", "exclusiveMinimum"} & keys:
            own["minimum"] = -LARGEST_INTEGER
        if not {"maximum", "exclusiveMaximum"} & keys:
            own["maximum"] = LARGEST_INTEGER
        return []

    def _one_of(self, own: dict[str, Any], place: str) -> list[Schema]:
        """`oneOf` as `anyOf`."""
        branches = own.pop("oneOf", None)
        if branches is None:
            return []
        if all(starmap(self._disjoint.of, combinations(branches, 2))):
            return [{"anyOf": branches}]
        self._omit("oneOf", place)
        return [{"anyOf": branches}, True]  # two parts, so that objects stay open


def _fractions(value: Any) -> Iterator[float]:
    """The bounds in a schema that are no integers."""
    if isinstance(value, list):
        for each in value:
            yield from _fractions(each)
    elif isinstance(value, dict):
        bounds = (value.get(key) for key, _, _ in _BOUNDS)
        yield from (each for each in bounds if isinstance(each, float) and math.isfinite(each) and each % 1)
        yield from _fractions(list(value.values()))


def _has_long_numbers(value: Any) -> bool:
    """Return whether a number exceeds the default integer bounds."""
    if isinstance(value, int | float):
        return abs(value) >= LARGEST_INTEGER
    return any(
        map(_has_long_numbers, value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
    )


def _inexact(value: Any) -> Iterator[int]:
    """The integers in a value that are no doubles."""
    if isinstance(value, list):
        for each in value:
            yield from _inexact(each)
    elif isinstance(value, dict):
        yield from _inexact(list(value.values()))
    elif isinstance(value, int) and abs(value) > _EXACT and not _is_double(value):
        yield value


def _is_double(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _next_double(value: float, towards: float, *, strict: bool) -> float:
    """Return the nearest double that does not cross a number, or that differs from it if `strict`."""
    try:
        found = float(value)
    except OverflowError:
        return value
    while (found - value if isinstance(value, float) else int(found) - value) * (1 if towards > 0 else -1) < strict:
        found = math.nextafter(found, towards)
    return int(found) if isinstance(value, int) and math.isfinite(found) else found
