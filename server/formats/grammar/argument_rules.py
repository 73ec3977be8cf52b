"""Creates grammar rules of a call's arguments from the function's schema, in each notation of `tool_call_syntax`.

Arguments may be in any order. Values are JSON, for which llguidance supports most of JSON Schema. The nested
notations of Gemma 4 (`Braces`) and MiniMax M3 (`Elements`) are converted value by value.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from server.errors import InvalidRequest
from server.formats.grammar.lark_text import MAX_UNORDERED, LarkText, escaped
from server.formats.parameter_schema import (
    KINDS,
    STRING,
    kind_of,
    names_in_markup,
    not_a_name,
    object_schema,
    others_of,
    properties_of,
    referred,
    required_in,
    text_limits,
    types_of,
    values_of,
)
from server.formats.parsing.stream_parser import Schema
from server.formats.tool_call_syntax import Arguments, Braces, Elements, JsonArguments, Keywords, Parameters
from server.formats.written import braced
from server.structured.grammar.schema.formats import FORMATS
from server.structured.grammar.schema.keywords import APART
from server.structured.text_grammar import TextGrammar

INPUT = "input"
"""The name of a parameter with a client's grammar."""
_KEY = "/[A-Za-z_][A-Za-z0-9_.\\-]*/"
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_PYTHON_STRING = r"/'([^'\\\n\r]|\\[nrt'\"\\])*'/"
_SPACE = r"/ |\n{1,2}[ \t]{0,20}/"  # the whitespace pattern of grammar.json_schema
_JSON_KEY = r'/"[^"\\\x00-\x1f]*"/'
_DEFINITIONS = ("#/$defs/", "#/definitions/")
_IDENTIFIERS = frozenset(("$id", "id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef"))
_REMARKS = frozenset(  # omitted, so that equal rules are shared
    ("title", "description", "default", "example", "examples", "deprecated", "readOnly", "$comment", "$schema")
)
_LIMITS = frozenset(("enum", "const", "maxLength", "pattern", "not", "if", "allOf", "anyOf", "oneOf", "$ref"))
_NUMBER_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_LIMITS_OF_ONE_TYPE = frozenset(
    [
        *("minLength", "maxLength", "pattern", "format", *_NUMBER_LIMITS),
        *("items", "minItems", "maxItems", "required", "additionalProperties"),
    ]
)
_PLAIN_OBJECT = _REMARKS | {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
_NULL = frozenset(("null",))
_AS_TEXT = {
    "array": r"\[(?s:.*)\]",
    "boolean": "true|false",
    "integer": "-?[0-9]+",
    "null": "null",
    "number": r"-?[0-9][0-9.eE+\-]*",
    "object": r"\{(?s:.*)\}",
}
_REFUSED = (
    *("oneOf", "allOf", "not", "if", "patternProperties", "propertyNames", "minProperties", "maxProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
)
_REFUSED_ONE_BY_ONE = ("$ref", "anyOf", *_REFUSED)
_REFUSED_NESTED = (*_REFUSED, "unevaluatedItems", "prefixItems", "contains", "uniqueItems")

MakeMember = Callable[[str, Any], str]
"""Returns the elements of a member, from the rule of its name and its schema."""


def argument_rule(notation: Arguments, function: Mapping[str, Any], text: LarkText) -> str:
    """Return the rule of all arguments of a call. Raises `InvalidRequest` if the notation can't enforce the schema."""
    schema, grammar = object_schema(function), function.get("text")
    if grammar is not None:
        return text.rule(_text_argument(notation, grammar, text))
    match notation:
        case JsonArguments():
            return _json_object(schema, text) if _has_independent_members(schema) else json_rule(schema, schema, text)
        case Parameters():
            _refuse(schema, _REFUSED_ONE_BY_ONE)
            return text.rule(_members(schema, text, _parameter(notation, schema, text), text.literal(notation.end)))
        case Keywords():
            _refuse(schema, _REFUSED_ONE_BY_ONE)
            for key in properties_of(schema):
                if not _IDENTIFIER.fullmatch(key):
                    raise not_a_name(key)
            return text.rule(_members(schema, text, _keyword(schema, text), '")"', '", "'))
        case Braces() | Elements():
            rules = _Nested(notation, schema, text)
            if "anyOf" not in schema and rules.kinds(referred(schema, schema) or {}) != ["object"]:
                raise InvalidRequest(f"tools: the parameters of {function['name']!r} must be an object", "tools")
            return text.rule(rules.value(schema, rules.end))


def _refuse(schema: Mapping[str, Any], keywords: Iterable[str]) -> None:
    keyword = next((key for key in keywords if key in schema), None)
    if keyword is not None:
        raise InvalidRequest(
            f"tools: the keyword '{keyword}' cannot be enforced in the notation of this model's calls", "tools"
        )


def _members(
    schema: Schema, text: LarkText, member: MakeMember, end: str, separator: str = "", *, never: str = ""
) -> str:
    """Return the members of an object and its `end`; any members if the schema lists none.

    ``never``: characters that names must not contain.
    """
    found, more = names_in_markup(schema, never=never), others_of(schema)
    if not found and more is not False:
        one = member(_KEY, {} if more is True else more)
        return f"({one} ({separator} {one})*)? {end}"
    listed = [(text.rule(member(text.literal(key), part)), needed) for key, (part, needed) in found.items()]
    return text.in_any_order(listed, end, separator)


def _text_argument(notation: Arguments, grammar: TextGrammar, text: LarkText) -> str:
    """Return the rule of the only argument, a text. Raises `InvalidRequest` if the grammar can't be enforced."""
    match notation:
        case JsonArguments():
            return f'/\\{{[ \\n]?"{INPUT}":[ ]?"/ {grammar.in_json()} /"[ \\n]?\\}}/'
        case Keywords():
            opening, end = text.literal(f'{INPUT}="'), text.literal('")')
            return f"{opening} {grammar.in_json()} {end}"
        case Parameters():
            opening = f"{text.literal(notation.before + INPUT)} {text.markup(notation.before_value)}"
            value = text.grammar_text_until(grammar, notation.after, never=notation.never)
            return f"{opening} {value} {text.literal(notation.separator)} {text.literal(notation.end)}"
        case Braces(quote):
            return f'{text.literal("{" + INPUT + ":" + quote)} {text.grammar_text_until(grammar, quote)} "}}"'
        case Elements(prefix, end):
            value = text.grammar_text_until(grammar, f"{prefix}</{INPUT}>")
            return f"{text.literal(f'{prefix}<{INPUT}>')} {value} {text.literal(end)}"


def _json_object(schema: Mapping[str, Any], text: LarkText) -> str:
    """Return the rule of an object with members in any order. llguidance's own objects follow the schema's order."""
    space = json_space(text)

    def member(key: str, part: Any) -> str:
        return text.rule(json_member(key, json_rule(part, schema, text), text))

    found = {json.dumps(key, ensure_ascii=False): part for key, part in properties_of(schema).items()}
    members = [(member(text.literal(key), part), needed) for key, (part, needed) in found.items()]
    more, other = others_of(schema), ""
    if more is not False:
        other = member(text.terminal(f"{_JSON_KEY} & ~/{'|'.join(map(escaped, found))}/"), more)
    listed = text.in_any_order(members, f'{space} "}}"', f'{space} "," {space}', other)
    return text.rule(f'"{{" {space} {listed}')


def json_space(text: LarkText) -> str:
    """Return the element for optional white space between JSON tokens."""
    return f"({text.terminal(_SPACE)})?"


def json_member(key: str, value: str, text: LarkText) -> str:
    """Return the elements of an object's member."""
    space = json_space(text)
    return f'{key} {space} ":" {space} {value}'


def _has_independent_members(schema: Mapping[str, Any]) -> bool:
    """Return whether the schema is of an object whose members only depend on themselves and on definitions."""
    members, needed = schema.get("properties"), schema.get("required", [])
    if schema.get("type") != "object" or not isinstance(members, Mapping) or not isinstance(needed, list):
        return False
    if not 2 <= len({*members, *map(str, needed)}) <= MAX_UNORDERED or not _PLAIN_OBJECT.issuperset(schema):
        return False
    more = schema.get("additionalProperties", True)
    plain = all(isinstance(part, Mapping | bool) for part in (*members.values(), more))
    return plain and all(isinstance(key, str) for key in needed) and _refers_to_definitions(schema)


def _refers_to_definitions(schema: Any) -> bool:
    """Return whether all references lead to the definitions of the root."""
    if isinstance(schema, list):
        return all(map(_refers_to_definitions, schema))
    if not isinstance(schema, Mapping):
        return True
    if any(isinstance(schema.get(key), str) for key in _IDENTIFIERS):
        return False
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith(_DEFINITIONS):
        return False
    return all(map(_refers_to_definitions, schema.values()))


def json_rule(schema: Any, root: Mapping[str, Any], text: LarkText) -> str:
    """Return the rule of a value as JSON; its references lead into the definitions of `root`."""
    if not isinstance(schema, Mapping):
        return text.rule(f"%json {json.dumps(schema if isinstance(schema, bool) else {})}")
    written = json.dumps({key: part for key, part in schema.items() if key not in _REMARKS})
    if '"$ref"' not in written:
        return text.rule(f"%json {written}")
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return text.rule(f"%json {json.dumps({**definitions, **schema})}")


def _parameter(notation: Parameters, root: Mapping[str, Any], text: LarkText) -> MakeMember:
    """Return the writer of a parameter. Strings have no quotes, other values are JSON."""
    known: dict[tuple[str, bool], str] = {}  # by reference, because many paths of references may lead to one schema

    def member(key: str, schema: Any) -> str:
        return text.rule(f"{text.literal(notation.before)} {key} {value(schema)} {text.literal(notation.separator)}")

    def value(schema: Any, *, nullable: bool = False) -> str:
        """Return the rule of a value and the markup around it. ``nullable``: null is another alternative, which a
        text must include, because llguidance's lexer tries the text alone while it is longer.
        """
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str):
            return written(_mapping(schema), nullable)
        place = (reference, nullable)
        if place not in known:
            known[place] = text.rule(written(_mapping(referred(schema, root)), nullable))
        return known[place]

    def written(schema: Schema, nullable: bool) -> str:
        types, end = types_of(schema, root), text.literal(notation.after)
        if "string" not in types:
            opening = notation.before_value if notation.before_json_value is None else notation.before_json_value
            return f"{text.markup(opening)} {json_rule(schema, root, text)} {end}"
        with suppress(InvalidRequest):  # alternatives that can't be enforced: any text
            if choices := _choices(schema, text):
                nullable = nullable or any(types_of(each, root) == _NULL for each in choices)
                with text.alternatives():
                    return text.rule(" | ".join(value(each, nullable=nullable) for each in choices))
        kinds, values, typed = sorted(types - STRING), _possible_values(schema, types), notation.before_json_value
        options = list[str]()
        if typed is None and nullable:
            kinds = sorted({*kinds, *_NULL})
        elif typed is not None and kinds:
            others = [each for each in values or () if not isinstance(each, str)]
            limits = {"enum": others} if others else {"type": kinds}
            if values is None and schema.keys().isdisjoint(("anyOf", "oneOf")):
                limits = {**schema, "type": kinds}
            if values is None or others:
                options.append(f"{text.markup(typed)} {json_rule(limits, root, text)} {end}")
            values, kinds = values and [each for each in values if isinstance(each, str)], []
        if values != []:
            lenient = types != STRING or values is not None
            content = _text_until(
                notation.after, schema, text, never=notation.never, values=values, kinds=kinds, lenient=lenient
            )
            options.append(f"{text.markup(notation.before_value)} {content}")
        return text.rule(" | ".join(options)) if len(options) > 1 else options[0]

    return member


def _mapping(schema: Any) -> Schema:
    """Return a schema as an object. Raises `InvalidRequest` for false."""
    if schema is False:
        raise InvalidRequest("tools: a parameter that may have no value can't be enforced", "tools")
    return schema if isinstance(schema, Mapping) else {}


def _possible_values(schema: Schema, types: frozenset[str]) -> list[Any] | None:
    """Return the listed values of these types, or all listed values if none has such a type."""
    values = values_of(schema)
    kinds = types | {"integer"} if "number" in types else types
    return values and ([each for each in values if kind_of(each) in kinds] or values)


def _text_until(
    end: str,
    schema: Schema,
    text: LarkText,
    *,
    never: Sequence[str] = (),
    values: Sequence[Any] | None = None,
    kinds: Sequence[str] = (),
    lenient: bool = False,
) -> str:
    """Return the rule of a text with the limits of `schema`, and its `end`.

    ``values``: the only ones. ``kinds``: types that the text may have instead, without limits; of lists and objects
    only the brackets are checked. ``lenient``: ignore limits that can't be enforced. Before a control token, a text
    with a limit must not be empty.
    """
    try:
        limits = text_limits(schema)
    except InvalidRequest:
        if not lenient:
            raise
        limits = []
    if values is None:
        other = [_AS_TEXT[kind] for kind in kinds]
    else:
        shown = [each if isinstance(each, str) else json.dumps(each) for each in values]
        if not limits:
            return f"({' | '.join(map(text.literal, shown))}) {text.literal(end)}"
        other = [escaped(each) for each, value in zip(shown, values, strict=True) if not isinstance(value, str)]
    patterns = ["|".join([f"(?:{limit})", *other]) for limit in limits] if other else limits
    if values is not None:
        patterns = [*patterns, f"(?:{'|'.join(map(escaped, shown))})"]
    empty = not limits or not any(schema.get(key) for key in ("minLength", "pattern", "format"))
    return text.text_until(end, *patterns, never=never, empty=empty)


def _choices(schema: Schema, text: LarkText) -> list[Any]:
    """Return the possible alternatives of a schema, each with its other keywords; [] if it has none.

    Raises `InvalidRequest` if one of them has a keyword with another value, or if none is possible.
    """
    name = "anyOf" if "anyOf" in schema else "oneOf"
    rest = {key: value for key, value in schema.items() if key not in _REMARKS | {name, "$defs", "definitions"}}
    parts = schema.get(name)
    if not isinstance(parts, list) or not parts:
        return []
    text.count_joined(len(parts) * len(json.dumps(rest)))
    found = list[Any]()
    for part in parts:
        own = part if isinstance(part, Mapping) else {}
        both = rest.keys() & own.keys() - _REMARKS
        if any(rest[key] != own[key] for key in both - {"required", "type"}):
            raise InvalidRequest(f"tools: the keyword '{name}' cannot be enforced next to others in it", "tools")
        joined = {**rest, **own}
        if "required" in both:
            joined["required"] = [*required_in(rest), *required_in(own)]
        if "type" in both:
            kinds = types_of({"type": rest["type"]}, {}) & types_of({"type": own["type"]}, {})
            joined["type"] = rest["type"] if rest["type"] == own["type"] else sorted(kinds)
        if part is not False and joined.get("type") != []:
            found.append(joined)
    if not found:
        raise InvalidRequest(f"tools: no alternative of '{name}' is possible next to the other keywords", "tools")
    return found


def _keyword(root: Mapping[str, Any], text: LarkText) -> MakeMember:
    """Return the writer of a keyword argument. Values are JSON; booleans and plain strings may also be Python's."""

    def member(key: str, schema: Any) -> str:
        types = types_of(schema, root)
        schema = referred(schema, root)
        rule = json_rule(schema, root, text)
        if isinstance(schema, Mapping) and _LIMITS.isdisjoint(schema):
            limited = schema.get("minLength") or str(schema.get("format")) in FORMATS
            if types == {"boolean"}:
                rule = f'({rule} | "True" | "False")'
            elif types == STRING and not limited:
                rule = f"({rule} | {_PYTHON_STRING})"
        return f'{key} "=" {rule}'

    return member


class _Nested:
    """Converts a schema to rules of a nested notation. ``end``: the markup after the whole value.

    In `Elements` the schema distinguishes objects, lists, text and numbers.
    """

    def __init__(self, notation: Braces | Elements, root: Schema, text: LarkText) -> None:
        self._notation, self._root, self._text = notation, root, text
        self.end = notation.end if isinstance(notation, Elements) else ""
        self._loops: dict[tuple[str, str], str] = {}

    def value(self, schema: Any, end: str) -> str:
        """Return the rule of a value and its `end`. Without a schema, any value of the notation is allowed."""
        schema = _mapping(schema)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found = referred(schema, self._root)
            if found is None or found is schema:
                raise InvalidRequest(f"tools: the reference {reference[:64]!r} leads nowhere", "tools")
            return self._looped(reference, lambda: self.value(found, end), end)
        _refuse(schema, _REFUSED_NESTED)
        values = values_of(schema)
        if values is not None:
            texts = [value for value in values if isinstance(value, str)]
            others = [value for value in values if not isinstance(value, str)]
            written = [f"{self._literal(value)} {self._text.literal(end)}" for value in others]
            with self._text.alternatives() if others else nullcontext():
                return self._one_of([self._string(schema, end, texts), *written] if texts else written)
        if choices := _choices(schema, self._text):
            with self._text.alternatives():
                return self._one_of(self.value(part, end) for part in choices)
        kinds = self.kinds(schema)
        if not kinds and not _LIMITS_OF_ONE_TYPE.isdisjoint(schema):
            kinds = [*APART] if isinstance(self._notation, Braces) else ["string"]
        if not kinds:
            return self._anything(end)
        with self._text.alternatives() if len(kinds) > 1 else nullcontext():
            return self._one_of(self._kind(kind, schema, end) for kind in kinds)

    def kinds(self, schema: Schema) -> list[str]:
        """Return the JSON types in the schema; empty if any type is allowed."""
        given = schema.get("type")
        named = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        if not named and "properties" in schema:
            return ["object"]
        found = [kind for kind in KINDS if kind in named]
        if isinstance(self._notation, Braces) or "string" not in found:
            return found
        if {"array", "object"}.intersection(found):
            raise InvalidRequest("tools: a parameter that is a text or a list or an object can't be enforced", "tools")
        return ["string"]  # a text may also contain null and numbers

    def _kind(self, kind: str, schema: Schema, end: str) -> str:
        match kind:
            case "string":
                return self._string(schema, end)
            case "object":
                return self._object(schema, end)
            case "array":
                return self._array(schema, end)
        limits = {key: schema[key] for key in _NUMBER_LIMITS if key in schema}
        return f"{json_rule({**limits, 'type': kind}, {}, self._text)} {self._text.literal(end)}"

    def _looped(self, key: str, make: Callable[[], str], end: str) -> str:
        """Return a rule that may be recursive."""
        place = (key, end)
        if place not in self._loops:
            self._loops[place] = self._text.reserved()
            self._text.define(self._loops[place], make())
        return self._loops[place]

    def _one_of(self, options: Iterable[str]) -> str:
        unique = list(dict.fromkeys(options))
        return self._text.rule(" | ".join(unique)) if len(unique) > 1 else unique[0]

    def _anything(self, end: str) -> str:
        """Return the rule of a value of any type and its `end`."""
        if isinstance(self._notation, Elements):
            return self._text.text_until(end)
        rule = self._looped("", lambda: self._one_of(self._kind(kind, {}, "") for kind in KINDS), "")
        return f"{rule} {self._text.literal(end)}"

    def _literal(self, value: Any) -> str:
        """Return the rule of exactly that value."""
        if isinstance(self._notation, Braces):
            return self._text.literal(braced(value, self._notation.quote))
        if isinstance(value, list | Mapping):
            raise InvalidRequest("tools: lists and objects in an enum can't be enforced in a tool call", "tools")
        return self._text.literal(value if isinstance(value, str) else json.dumps(value))

    def _string(self, schema: Schema, end: str, values: Sequence[str] | None = None) -> str:
        text, lenient = self._text, values is not None
        if isinstance(self._notation, Braces):
            quote = self._notation.quote
            content = _text_until(quote, schema, text, values=values, lenient=lenient)
            return f"{text.literal(quote)} {content} {text.literal(end)}"
        kinds = sorted(types_of(schema, {}) - STRING)
        return _text_until(end, schema, text, values=values, kinds=kinds, lenient=lenient or bool(kinds))

    def _array(self, schema: Schema, end: str) -> str:
        text, items = self._text, schema.get("items", {})
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if not isinstance(least, int) or not isinstance(most, int | None) or (most is not None and most < least):
            raise InvalidRequest("tools: minItems and maxItems of a parameter contradict each other", "tools")
        if isinstance(self._notation, Elements):
            item = text.rule(self._element("item", items))
            return f"{item}{{{least},{'' if most is None else most}}} {text.literal(end)}"
        closing = text.literal("]" + end)
        if most == 0:
            return f'"[" {closing}'
        item = text.rule(self.value(items, ""))
        more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        listed = f"{item} {more}" if most != 1 else item
        return f'"[" {listed} {closing}' if least else f'"[" ({listed})? {closing}'

    def _object(self, schema: Schema, end: str) -> str:
        text = self._text
        if isinstance(self._notation, Elements):
            found = names_in_markup(schema, never=":").items()
            members = [(text.rule(self._element(key, value)), needed) for key, (value, needed) in found]
            return text.in_any_order(members, text.literal(end))

        def member(key: str, value: Any) -> str:
            return f'{key} ":" {self.value(value, "")}'

        return '"{" ' + _members(schema, text, member, text.literal("}" + end), '","', never=":")

    def _element(self, name: str, schema: Any) -> str:
        assert isinstance(self._notation, Elements)
        prefix = self._notation.prefix
        return f"{self._text.literal(f'{prefix}<{name}>')} {self.value(schema, f'{prefix}</{name}>')}"
