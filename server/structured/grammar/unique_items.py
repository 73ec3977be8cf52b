"""``uniqueItems``, which no grammar can express: the finished output is checked."""

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from server.errors import InvalidRequest
from server.structured.grammar.matcher import MatcherConstraint
from server.vocab import Vocab

MARK = "x-unique"
"""The keyword for `uniqueItems` in a rewritten schema, with its place in the client's. llguidance ignores it."""
_LONGEST_INT = 300  # digits


class UniqueItems(MatcherConstraint):
    """A matcher's constraint whose `accept` raises `InvalidRequest` if the finished output repeats an item.

    ``document``: the rewritten schema.
    """

    __slots__ = ("_document", "_text", "_vocab")

    def __init__(
        self, base: MatcherConstraint, document: Mapping[str, Any], vocab: Vocab, text: bytes | bytearray = b""
    ) -> None:
        super().__init__(base.matcher, base._n_tokens, base._ends, base._param, base.recipe)
        self._since_mask_s, self._slow_s = base._since_mask_s, base._slow_s
        self._document, self._vocab, self._text = document, vocab, bytearray(text)

    def fork(self) -> "UniqueItems":
        """Return an independent copy in the same state."""
        return UniqueItems(super().fork(), self._document, self._vocab, self._text)

    def accept(self, token: int) -> None:
        """Advance by an allowed token. Raises `InvalidRequest` if it completes an output that repeats an item."""
        super().accept(token)
        if token < self._vocab.n_tokens:
            self._text += self._vocab.piece(token, special=False)
        if self.finished or token in self._ends:
            self._check()

    def _check(self) -> None:
        try:
            place = repetition(json.loads(self._text, parse_int=_integer), self._document)
        except RecursionError:
            raise InvalidRequest("the output is nested too deeply to check 'uniqueItems'", self._param) from None
        if place is not None:
            raise InvalidRequest(f"the output breaks 'uniqueItems' of {place}: an item repeats another", self._param)


def repetition(value: Any, document: Mapping[str, Any]) -> str | None:
    """Return the place in the schema of a unique array with equal items; None if there is none.

    All alternatives of a schema apply, and patterns of property names even if they don't match.
    """
    definitions = {f"#/$defs/{name}": schema for name, schema in document.get("$defs", {}).items()} | {"#": document}
    waiting: list[tuple[Any, Sequence[Any]]] = [(value, [document])]
    while waiting:
        value, schemas = waiting.pop()
        applied = list(_applied(schemas, definitions))
        if isinstance(value, dict):
            waiting += [
                (each, [sub for one in applied for sub in _of_property(one, name)]) for name, each in value.items()
            ]
        elif isinstance(value, list):
            place = next((schema[MARK] for schema in applied if MARK in schema), None)
            if place is not None and len(set(map(_hashable, value))) < len(value):
                return str(place)
            waiting += [(each, [sub for one in applied for sub in _of_item(one, n)]) for n, each in enumerate(value)]
    return None


def _applied(schemas: Sequence[Any], definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield these schemas and all that concern the same value through them."""
    seen: set[int] = set()
    waiting = list(schemas)
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema
        for key in ("allOf", "anyOf", "oneOf"):
            waiting += schema.get(key, ())
        if "$ref" in schema:
            waiting.append(definitions[schema["$ref"]])


def _of_property(schema: Mapping[str, Any], name: str) -> Iterator[Any]:
    known = schema.get("properties", {})
    if name in known:
        yield known[name]
    yield from schema.get("patternProperties", {}).values()
    if name not in known and "additionalProperties" in schema:
        yield schema["additionalProperties"]


def _of_item(schema: Mapping[str, Any], index: int) -> Iterator[Any]:
    first = schema.get("prefixItems", ())
    if index < len(first):
        yield first[index]
    elif "items" in schema:
        yield schema["items"]


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= _LONGEST_INT else Decimal(digits)


def _hashable(value: Any) -> Hashable:
    """Return equal objects for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, dict):
        return "object", frozenset((key, _hashable(each)) for key, each in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_hashable, value))
    return ("boolean" if isinstance(value, bool) else "scalar"), value
