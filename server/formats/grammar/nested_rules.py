"""Grammar rules of arguments in nested notations other than JSON: Gemma 4's braces and MiniMax M3's elements.

A JSON Schema is converted to Lark rules, value by value. Properties may be in any order; unspecified values may be
anything that the notation can express.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from server.errors import InvalidRequest
from server.formats.grammar.argument_rules import KEY, json_rule
from server.formats.grammar.lark_text import LarkText
from server.formats.parameter_schema import (
    names_in_markup,
    object_schema,
    others_of,
    referred,
    text_limits,
    values_of,
)
from server.formats.parsing.stream_parser import Schema
from server.formats.tool_call_syntax import Braces, Elements
from server.formats.written import braced

_REFUSED = (
    *("oneOf", "allOf", "not", "if", "patternProperties", "propertyNames", "minProperties", "maxProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems"),
    *("prefixItems", "contains", "uniqueItems"),
)
_SCALARS = ("number", "integer", "boolean", "null")
_KINDS = ("object", "array", "string", *_SCALARS)


def nested_rule(form: Braces | Elements, function: Mapping[str, Any], text: LarkText) -> str:
    """Return the rule of all arguments of a call. Raises `InvalidRequest` if that is impossible."""
    schema = object_schema(function)
    rules = _InBraces(form, schema, text) if isinstance(form, Braces) else _InElements(form, schema, text)
    if "anyOf" not in schema and rules.kinds(referred(schema, schema) or {}) != ["object"]:
        raise InvalidRequest(f"tools: the parameters of {function['name']!r} must be an object", "tools")
    return text.rule(rules.value(schema, rules.end))


class _Nested(ABC):
    """Converts a schema to rules of one notation. ``end``: the markup after the whole value."""

    end = ""

    def __init__(self, root: Schema, text: LarkText) -> None:
        self._root = root
        self._text = text
        self._loops: dict[tuple[str, str], str] = {}

    def value(self, schema: Any, end: str) -> str:
        """Return the rule of a value and its `end`."""
        if schema is False:
            raise InvalidRequest("tools: a parameter that may have no value can't be enforced", "tools")
        if not isinstance(schema, Mapping):
            schema = {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found = referred(schema, self._root)
            if found is None or found is schema:
                raise InvalidRequest(f"tools: the reference {reference[:64]!r} leads nowhere", "tools")
            return self._looped(reference, lambda: self.value(found, end), end)
        keyword = next((key for key in _REFUSED if key in schema), None)
        if keyword is not None:
            raise InvalidRequest(
                f"tools: the keyword '{keyword}' cannot be enforced in the notation of this model's calls", "tools"
            )
        values = values_of(schema)
        if values is not None:
            return self._one_of([f"{self.literal(value)} {self._text.literal(end)}" for value in values])
        if isinstance(schema.get("anyOf"), list):
            rest = {key: value for key, value in schema.items() if key != "anyOf"}
            return self._one_of([self.value({**rest, **part}, end) for part in schema["anyOf"]])
        if not self.kinds(schema):
            return self.anything(end)
        return self._one_of([self._kind(kind, schema, end) for kind in self.kinds(schema)])

    def kinds(self, schema: Schema) -> list[str]:
        """Return the JSON types in the schema; empty if any type is allowed."""
        given = schema.get("type")
        named = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        if not named and "properties" in schema:
            return ["object"]
        return [kind for kind in _KINDS if kind in named]

    @abstractmethod
    def anything(self, end: str) -> str:
        """Return the rule of a value of any type and its `end`."""

    @abstractmethod
    def literal(self, value: Any) -> str:
        """Return the rule of exactly that value."""

    def _kind(self, kind: str, schema: Schema, end: str) -> str:
        if kind == "string":
            return self._string(schema, end)
        if kind == "array":
            return self._array(schema, end)
        if kind == "object":
            return self._object(schema, end)
        kept = {key: value for key, value in schema.items() if key not in ("enum", "const")}
        return f"{json_rule({**kept, 'type': kind}, {}, self._text)} {self._text.literal(end)}"

    @abstractmethod
    def _string(self, schema: Schema, end: str) -> str: ...

    @abstractmethod
    def _array(self, schema: Schema, end: str) -> str: ...

    @abstractmethod
    def _object(self, schema: Schema, end: str) -> str: ...

    def _members(self, schema: Schema) -> list[tuple[str, Any, bool]]:
        """Return each property's name and schema, and whether it is required."""
        found = names_in_markup(schema, never=":")
        return [(key, value, needed) for key, (value, needed) in found.items()]

    def _looped(self, key: str, make: Callable[[], str], end: str) -> str:
        """Return a rule that may be recursive."""
        place = (key, end)
        if place not in self._loops:
            self._loops[place] = self._text.reserved()
            self._text.define(self._loops[place], make())
        return self._loops[place]

    def _one_of(self, options: list[str]) -> str:
        unique = list(dict.fromkeys(options))
        return self._text.rule(" | ".join(unique)) if len(unique) > 1 else unique[0]

    def _bounds(self, schema: Schema) -> tuple[int, int | None]:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if not isinstance(least, int) or not isinstance(most, int | None) or (most is not None and most < least):
            raise InvalidRequest("tools: minItems and maxItems of a parameter contradict each other", "tools")
        return least, most


class _InBraces(_Nested):
    """``{city:<|"|>Paris<|"|>,days:3,hours:[8,12]}``."""

    def __init__(self, form: Braces, root: Schema, text: LarkText) -> None:
        super().__init__(root, text)
        self._quote = form.quote

    def anything(self, end: str) -> str:
        rule = self._looped("", lambda: self._one_of([self._kind(kind, {}, "") for kind in _KINDS]), "")
        return f"{rule} {self._text.literal(end)}"

    def literal(self, value: Any) -> str:
        return self._text.literal(braced(value, self._quote))

    def _string(self, schema: Schema, end: str) -> str:
        text = self._text.text_until(self._quote, *text_limits(schema), empty=not schema.get("minLength"))
        return f"{self._text.literal(self._quote)} {text} {self._text.literal(end)}"

    def _array(self, schema: Schema, end: str) -> str:
        least, most = self._bounds(schema)
        closing = self._text.literal("]" + end)
        if most == 0:
            return f'"[" {closing}'
        item = self._text.rule(self.value(schema.get("items", {}), ""))
        more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        items = f"{item} {more}" if most != 1 else item
        return f'"[" {items} {closing}' if least else f'"[" ({items})? {closing}'

    def _object(self, schema: Schema, end: str) -> str:
        text, closing = self._text, self._text.literal("}" + end)
        members = [
            (text.rule(f"{text.literal(key + ':')} {self.value(value, '')}"), needed)
            for key, value, needed in self._members(schema)
        ]
        others = others_of(schema)
        if not members and others is not False:
            one = text.rule(f'{KEY} ":" {self.value(others, "")}')
            return f'"{{" ({one} ("," {one})*)? {closing}'
        listed = text.in_any_order(members, closing, '","')
        return f'"{{" {listed}'


class _InElements(_Nested):
    """``]<]minimax[>[<city>Paris]<]minimax[>[</city>``; the schema distinguishes objects, lists, text and numbers."""

    def __init__(self, form: Elements, root: Schema, text: LarkText) -> None:
        super().__init__(root, text)
        self._prefix = form.prefix
        self.end = form.end

    def anything(self, end: str) -> str:
        return self._text.text_until(end)

    def literal(self, value: Any) -> str:
        if isinstance(value, list | Mapping):
            raise InvalidRequest("tools: lists and objects in an enum can't be enforced in a tool call", "tools")
        return self._text.literal(value if isinstance(value, str) else json.dumps(value))

    def kinds(self, schema: Schema) -> list[str]:
        found = super().kinds(schema)
        if "string" in found and {"array", "object"}.intersection(found):
            raise InvalidRequest("tools: a parameter that is a text or a list or an object can't be enforced", "tools")
        return ["string"] if "string" in found else found  # a text may also contain null and numbers

    def _string(self, schema: Schema, end: str) -> str:
        if schema.get("type") != "string":
            return self._text.text_until(end)
        return self._text.text_until(end, *text_limits(schema), empty=not schema.get("minLength"))

    def _array(self, schema: Schema, end: str) -> str:
        least, most = self._bounds(schema)
        item = self._text.rule(self._element("item", schema.get("items", {})))
        return f"{item}{{{least},{'' if most is None else most}}} {self._text.literal(end)}"

    def _object(self, schema: Schema, end: str) -> str:
        members = [(self._text.rule(self._element(key, value)), needed) for key, value, needed in self._members(schema)]
        return self._text.in_any_order(members, self._text.literal(end))

    def _element(self, name: str, schema: Any) -> str:
        return f"{self._text.literal(f'{self._prefix}<{name}>')} {self.value(schema, f'{self._prefix}</{name}>')}"
