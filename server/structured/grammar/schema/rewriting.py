"""Rewrites keywords that llguidance lacks with those that it supports.

The result accepts only valid values. It may reject valid ones if a negation can only be expressed in part
(`negation`). If nothing would remain, the error names the keyword and its path.
"""

import math
from collections.abc import Mapping, Set
from itertools import combinations
from typing import Any

from server.errors import InvalidRequest
from server.structured.grammar.schema.disjoint import Disjointness
from server.structured.grammar.schema.document import unenforceable
from server.structured.grammar.schema.formats import FORMATS
from server.structured.grammar.schema.keywords import Schema, definitions_of, values_in, with_subschemas
from server.structured.grammar.schema.language import readable, without_look_aheads
from server.structured.grammar.schema.negation import Negations, any_of
from server.structured.grammar.unique_items import MARK

MAX_SCHEMAS = 40_000  # of the rewritten document
MAX_ALTERNATIVES = 64  # that one keyword is rewritten to
LARGEST_INTEGER = 10**16 - 1
"""Of 16 digits (llama.cpp common/json-schema-to-grammar.cpp, PRIMITIVE_RULES, integral-part)."""
_NO_MORE = {"additionalProperties": False}


_EXACT = 2**53 - 2  # up to here, each integer and its successor is a double
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
    """Rewrites one normalized document.

    ``exclusive``: combine each branch of a `oneOf` with the negations of the others. This is needed if llguidance can't
    distinguish them, or if a branch is ``narrowed``, because another branch might accept the values that it lost.
    ``narrowed``: the first path and keyword whose rewritten form may reject valid values. ``unique``: the first path
    of an array whose items must differ.
    """

    def __init__(self, root: Mapping[str, Any], field: str, paths: Mapping[str, str], *, exclusive: bool) -> None:
        self._field = field
        self._paths = paths
        self._exclusive = exclusive
        self._definitions: dict[str, Schema] = definitions_of(root)
        self._defs = root.get("$defs", {})
        self._negations = Negations(self._definitions)
        self._disjoint = Disjointness(self._definitions)
        bounds = (each.get(key) for each in values_in(root) if isinstance(each, dict) for key, _, _ in _BOUNDS)
        fractions = (each for each in bounds if isinstance(each, float) and math.isfinite(each) and each % 1)
        self._fractions = frozenset(map(math.floor, fractions))
        numbers = (each for each in values_in(root) if isinstance(each, int | float))
        self._bounds_integers = not any(abs(each) >= LARGEST_INTEGER for each in numbers)
        self._left = MAX_SCHEMAS
        self.narrowed = ""
        self.unique = ""

    def rewritten(self) -> dict[str, Any]:
        """Return the document. Raises InvalidRequest that names the keyword and its path."""
        root = self._schema(self._definitions["#"], self._field)
        defs = {name: self._schema(schema, self._paths[name]) for name, schema in self._defs.items()}
        if never := {f"#/$defs/{name}" for name, schema in defs.items() if schema is False}:
            root, defs = _inlined(root, never), {name: _inlined(schema, never) for name, schema in defs.items()}
        whole = root if isinstance(root, dict) else {"allOf": [root]}
        return {**whole, "$defs": defs} if defs else whole

    def _schema(self, schema: Schema, path: str) -> Schema:
        if isinstance(schema, bool):
            return schema
        self._left -= 1
        if self._left < 0:
            raise InvalidRequest(f"{self._field} is too large once its conditions are written out", self._field)
        own = dict(schema)
        more: list[Schema] = []
        for rewrite in (
            *(self._unevaluated, self._not, self._if, self._dependent, self._names, self._counted, self._one_of),
            *(self._contains, self._unique, self._text, self._numbers, self._integers),
        ):
            more += rewrite(own, path)
        out = with_subschemas(own, lambda each, below: self._schema(each, path + below))
        if "pattern" in out:
            out["pattern"] = readable(out["pattern"])
        named = {readable(name): each for name, each in out.get("patternProperties", {}).items()}
        if named and len(named) == len(out["patternProperties"]):
            out["patternProperties"] = named
        if False in more:
            return False  # `_closed` of `json_schema` leaves an object with a forbidden property open
        if more:
            out["allOf"] = [*out.get("allOf", []), *(self._schema(each, path) for each in more)]
        return out

    def _negated(self, schema: Schema, keyword: str, path: str) -> Schema:
        found = self._negations.of(schema)
        self.narrowed = self.narrowed or f"{path}: the keyword '{keyword}'"
        if found is False and schema not in (True, {}):
            raise unenforceable(keyword, path)
        return found

    def _not(self, own: dict[str, Any], path: str) -> list[Schema]:
        return [self._negated(own.pop("not"), "not", path)] if "not" in own else []

    def _if(self, own: dict[str, Any], path: str) -> list[Schema]:
        condition, then, other = own.pop("if", None), own.pop("then", True), own.pop("else", True)
        if condition is None or (then is True and other is True):
            return []
        negated = self._negated(condition, "if", path)
        return [any_of([{"allOf": [condition, then]}, {"allOf": [negated, other]}])]

    def _dependent(self, own: dict[str, Any], _: str) -> list[Schema]:
        needs: list[tuple[str, Schema]] = list(own.pop("dependentSchemas", {}).items())
        needs += [(name, {"required": names}) for name, names in own.pop("dependentRequired", {}).items() if names]
        return [
            {"anyOf": [{"properties": {name: False}}, {"required": [name], "allOf": [schema]}]}
            for name, schema in needs
        ]

    def _names(self, own: dict[str, Any], path: str) -> list[Schema]:
        """Rewrite `propertyNames` to patterns of allowed names."""
        names = own.pop("propertyNames", True)
        followed: set[str] = set()
        while isinstance(names, dict) and set(names) == {"$ref"}:
            if names["$ref"] in followed:
                raise unenforceable("propertyNames", path)
            followed.add(names["$ref"])
            names = self._definitions[names["$ref"]]
        if isinstance(names, dict):
            names = {key: value for key, value in names.items() if (key, value) != ("type", "string")}
            if names.get("format") not in FORMATS:
                names.pop("format", None)
        if names is True or names == {}:
            return []
        if names is False:
            return [{"maxProperties": 0}]
        if set(names) == {"pattern"}:
            return [{"patternProperties": {names["pattern"]: True}, **_NO_MORE}]
        if set(names) == {"enum"} or set(names) == {"const"}:
            allowed = names.get("enum", [names.get("const")])
            return [{"properties": {name: True for name in allowed if isinstance(name, str)}, **_NO_MORE}]
        if set(names) <= {"minLength", "maxLength"}:
            lengths = f"^(?s:.{{{names.get('minLength', 0)},{names.get('maxLength', '')}}})$"
            return [{"patternProperties": {lengths: True}, **_NO_MORE}]
        raise unenforceable("propertyNames", path)

    def _counted(self, own: dict[str, Any], path: str) -> list[Schema]:
        """Rewrite `minProperties` and `maxProperties` if some property is optional, because llguidance can't count."""
        known = own.get("properties", {})
        optional = [name for name in known if name not in own.get("required", ())]
        n_required = len(set(own.get("required", ())))
        if own.get("minProperties", 0) > n_required + 1:
            raise unenforceable("minProperties", path)  # a repeated name would count twice
        if not optional or not {"minProperties", "maxProperties"} & own.keys():
            return []
        self.narrowed = self.narrowed or f"{path}: the keyword 'minProperties'"
        least, most = own.pop("minProperties", 0) - n_required, own.pop("maxProperties", None)
        if most is not None and not own.get("patternProperties"):
            own.setdefault("additionalProperties", False)  # also for combined schemas, unlike elsewhere
        closed = own.get("additionalProperties") is False and not own.get("patternProperties")
        more: list[Schema] = []
        if least == 1:
            more.append({"anyOf": [{"required": [name]} for name in optional]})
        elif least > 1:
            raise unenforceable("minProperties", path)
        if most is not None and not (closed and len(known) <= most):
            if not closed or most - n_required != 1 or len(optional) > MAX_ALTERNATIVES:
                raise unenforceable("maxProperties", path)
            more.append(
                {"anyOf": [{"properties": {other: False for other in optional if other != name}} for name in optional]}
            )
        return more

    def _unevaluated(self, own: dict[str, Any], path: str) -> list[Schema]:
        """Rewrite the unevaluated keywords to the additional ones, which are equal without applicators in place."""
        in_place = {"$ref", "allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas"} & own.keys()
        for key, additional in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            value = own.pop(key, None)
            if value is None or additional in own:
                continue
            if value is not True and (in_place or "contains" in own):
                raise unenforceable(key, path)
            own[additional] = value
        return []

    def _contains(self, own: dict[str, Any], path: str) -> list[Schema]:
        least, most = own.pop("minContains", 1), own.pop("maxContains", None)
        if "contains" in own:
            if least or most is not None:
                raise unenforceable("contains", path)
            del own["contains"]
        return []

    def _unique(self, own: dict[str, Any], path: str) -> list[Schema]:
        if own.pop("uniqueItems", False) and own.get("maxItems", 2) > 1:
            if "prefixItems" in own and own.get("minItems", 0) > 1:  # the last item may have no other value left
                raise unenforceable("uniqueItems", path)
            own[MARK] = path
            self.unique = self.unique or path
        return []

    def _text(self, own: dict[str, Any], _: str) -> list[Schema]:
        patterns = [*FORMATS.get(own.pop("format", ""), ())]
        if "pattern" in own:
            own["pattern"], *more = without_look_aheads(own["pattern"])
            patterns += more
        return [{"pattern": each} for each in patterns]

    def _numbers(self, own: dict[str, Any], path: str) -> list[Schema]:
        """Adapt numbers to llguidance's doubles: reject longer values, move bounds inwards to the next double."""
        for key in ("const", "enum"):
            for inexact in values_in(own[key]) if key in own else ():
                if isinstance(inexact, int) and abs(inexact) > _EXACT and not _is_double(inexact):
                    reason = f"{str(inexact)[:40]} is not a double"
                    raise InvalidRequest(f"{path}: the keyword '{key}' cannot be enforced: {reason}", path)
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
        """Bound integers like llama-server: otherwise some models generate digits up to their token limit."""
        types, keys = own.get("type", ()), own.keys()
        is_integer = "integer" in types and "number" not in types
        if not self._bounds_integers or not is_integer or {"multipleOf", "const", "enum"} & keys:
            return []
        if not {"minimum", "exclusiveMinimum"} & keys:
            own["minimum"] = -LARGEST_INTEGER
        if not {"maximum", "exclusiveMaximum"} & keys:
            own["maximum"] = LARGEST_INTEGER
        return []

    def _one_of(self, own: dict[str, Any], path: str) -> list[Schema]:
        """Rewrite `oneOf` to branches that exclude each other."""
        branches = own.get("oneOf")
        if not self._exclusive or branches is None:
            return []
        if len(branches) > MAX_ALTERNATIVES:
            raise overlapping(path)
        del own["oneOf"]
        if len(branches) == 1:
            return [branches[0]]
        self.narrowed = self.narrowed or f"{path}: the keyword 'oneOf'"
        overlaps: dict[int, list[int]] = {n: [] for n in range(len(branches))}
        for n, m in combinations(overlaps, 2):
            if not self._disjoint.of(branches[n], branches[m]):
                overlaps[n].append(m)
                overlaps[m].append(n)
        negated = {n: self._negations.of(branches[n]) for n, others in overlaps.items() if others}
        exclusive = []
        for n, branch in enumerate(branches):
            others = [negated[m] for m in overlaps[n]]
            if False in others:
                raise overlapping(path)
            exclusive.append({"allOf": [branch, *others]} if others else branch)
        return [any_of(exclusive)]


def _inlined(schema: Schema, never: Set[str]) -> Schema:
    """Replace references to the definitions `never`, which are false, because llguidance then refuses the document."""
    if isinstance(schema, bool) or schema.get("$ref") in never:
        return schema is True
    return with_subschemas(schema, lambda each, _: _inlined(each, never))


def overlapping(path: str) -> InvalidRequest:
    """Return the error for a `oneOf` whose branches can't be distinguished."""
    return InvalidRequest(f"{path}: 'oneOf' whose branches may overlap cannot be enforced, use 'anyOf'", path)


def _is_double(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _next_double(value: float, towards: float, *, strict: bool) -> float:
    """Return the nearest double from `value` towards `towards`; not equal to `value` if `strict`."""
    try:
        found = float(value)
    except OverflowError:
        return value
    while (found - value if isinstance(value, float) else int(found) - value) * (1 if towards > 0 else -1) < strict:
        found = math.nextafter(found, towards)
    return int(found) if isinstance(value, int) and math.isfinite(found) else found
