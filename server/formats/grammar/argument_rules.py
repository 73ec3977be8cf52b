"""Creates grammar rules of a call's arguments, also for functions whose one parameter has a client's grammar."""

import json
import re
from collections.abc import Mapping
from typing import Any

from server.errors import InvalidRequest
from server.formats.grammar.lark_text import MAX_UNORDERED, LarkText, escaped
from server.formats.parameter_schema import (
    STRING,
    names_in_markup,
    not_a_name,
    object_schema,
    others_of,
    properties_of,
    referred,
    text_limits,
    types_of,
    values_of,
)
from server.formats.tool_call_syntax import Arguments, Braces, Elements, JsonArguments, Keywords, Parameters
from server.structured.text_grammar import TextGrammar

KEY = "/[A-Za-z_][A-Za-z0-9_.\\-]*/"
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_PYTHON_STRING = r"/'([^'\\\n\r]|\\[nrt'\"\\])*'/"
_NOT_ONE_BY_ONE = (
    *("$ref", "anyOf", "oneOf", "allOf", "not", "if", "patternProperties", "propertyNames", "minProperties"),
    *("maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
)
_SPACE = r"/ |\n{1,2}[ \t]{0,20}/"  # as grammar.json_schema has it
_JSON_KEY = r'/"[^"\\\x00-\x1f]*"/'
_DEFINITIONS = ("#/$defs/", "#/definitions/")
_NAMES_OF_PLACES = frozenset(("$id", "id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef"))
_REMARKS = frozenset(("title", "description", "default", "examples", "$schema"))  # so that equal rules are one
_PLAIN_OBJECT = _REMARKS | {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}


def argument_rule(arguments: JsonArguments | Parameters | Keywords, function: Mapping[str, Any], text: LarkText) -> str:
    """Return the rule of all arguments of a call. Raises `InvalidRequest` if they can't be enforced in that syntax."""
    schema = object_schema(function)
    match arguments:
        case JsonArguments():
            return _json_object(schema, text) if _has_independent_members(schema) else json_rule(schema, schema, text)
        case Parameters():
            _check_one_by_one(schema, function["name"])
            return _one_by_one(schema, text, arguments)
        case Keywords():
            _check_one_by_one(schema, function["name"])
            return _keywords(schema, text, arguments)


def _check_one_by_one(schema: Mapping[str, Any], name: str) -> None:
    keyword = next((key for key in _NOT_ONE_BY_ONE if key in schema), None)
    if keyword is not None:
        raise InvalidRequest(
            f"tools: the parameters of {name!r}: the keyword '{keyword}' cannot be enforced where arguments are "
            "written one by one, as this model writes them",
            "tools",
        )


def _json_object(schema: Mapping[str, Any], text: LarkText) -> str:
    """Return the rule of an object whose members may be in any order, while llguidance's own follow the schema."""
    space = json_space(text)
    found = properties_of(schema)
    members = [
        (_member(text.literal(json.dumps(key, ensure_ascii=False)), part, schema, text), needed)
        for key, (part, needed) in found.items()
    ]
    more, other = others_of(schema), ""
    if more is not False:
        named = "|".join(escaped(json.dumps(key, ensure_ascii=False)) for key in found)
        other = _member(text.terminal(f"{_JSON_KEY} & ~/{named}/"), more, schema, text)
    listed = text.in_any_order(members, f'{space} "}}"', f'{space} "," {space}', other)
    return text.rule(f'"{{" {space} {listed}')


def json_space(text: LarkText) -> str:
    """Return the element for optional white space between JSON tokens."""
    return f"({text.terminal(_SPACE)})?"


def _member(key: str, schema: Any, root: Mapping[str, Any], text: LarkText) -> str:
    return text.rule(json_member(key, json_rule(schema, root, text), text))


def json_member(key: str, value: str, text: LarkText) -> str:
    """Return the elements of an object's member."""
    space = json_space(text)
    return f'{key} {space} ":" {space} {value}'


def _has_independent_members(schema: Mapping[str, Any]) -> bool:
    """Return whether it is an object whose members have independent schemas, which at most refer to the definitions."""
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
    if any(isinstance(schema.get(key), str) for key in _NAMES_OF_PLACES):
        return False
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith(_DEFINITIONS):
        return False
    return all(map(_refers_to_definitions, schema.values()))


def _one_by_one(schema: Mapping[str, Any], text: LarkText, form: Parameters) -> str:
    """Return the rule of the parameters; any parameters if the schema has none."""
    found = names_in_markup(schema)
    end = text.literal(form.end)
    more = others_of(schema)
    if not found and more is not False:
        one = _parameter(KEY, {} if more is True else more, schema, text, form)
        return text.rule(f"({one})* {end}")
    elements = [
        (_parameter(text.literal(key), part, schema, text, form), needed) for key, (part, needed) in found.items()
    ]
    return text.in_any_order(elements, end)


def _parameter(key: str, schema: Any, root: Mapping[str, Any], text: LarkText, form: Parameters) -> str:
    value, is_json = _typed(schema, root, text, form)
    opening = form.before_json_value if is_json and form.before_json_value is not None else form.before_value
    return text.rule(f"{text.literal(form.before)} {key} {text.markup(opening)} {value} {text.literal(form.joint)}")


def _typed(schema: Any, root: Mapping[str, Any], text: LarkText, form: Parameters) -> tuple[str, bool]:
    """Return the rule of a value and its end, and whether it is JSON. Strings have no quotes."""
    types, end = types_of(schema, root), form.after
    schema = referred(schema, root)
    if "string" not in types:
        return f"{json_rule(schema, root, text)} {text.literal(end)}", True
    values = values_of(schema)
    if values is not None:
        shown = [value if isinstance(value, str) else json.dumps(value) for value in values]
        return f"({' | '.join(map(text.literal, shown))}) {text.literal(end)}", False
    if types != STRING or not isinstance(schema, Mapping):
        return text.text_until(end, never=form.never), False
    return text.text_until(end, *text_limits(schema), never=form.never, empty=not schema.get("minLength")), False


def json_rule(schema: Any, root: Mapping[str, Any], text: LarkText) -> str:
    """Return the rule of a value as JSON; its references lead into the definitions of `root`."""
    if not isinstance(schema, Mapping):
        return text.rule(f"%json {json.dumps(schema if isinstance(schema, bool) else {})}")
    written = json.dumps({key: part for key, part in schema.items() if key not in _REMARKS})
    if '"$ref"' not in written:
        return text.rule(f"%json {written}")
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return text.rule(f"%json {json.dumps({**definitions, **schema})}")


def _keywords(schema: Mapping[str, Any], text: LarkText, form: Keywords) -> str:
    """Return the rule of keyword arguments, separated by commas."""
    found = properties_of(schema)
    rules = []
    for key, (value, needed) in found.items():
        if not _IDENTIFIER.fullmatch(key):
            raise not_a_name(key)
        rules.append((text.rule(f"{text.literal(key + '=')} {_literal(value, schema, text)}"), needed))
    end = text.literal(form.end)
    if not rules and others_of(schema) is not False:
        one = text.rule(f'{KEY} "=" {_literal({}, schema, text)}')
        return text.rule(f'({one} (", " {one})*)? {end}')
    return text.in_any_order(rules, end, '", "')


def _literal(schema: Any, root: Mapping[str, Any], text: LarkText) -> str:
    """Return the rule of a value as JSON; booleans and plain strings may also be Python's."""
    types = types_of(schema, root)
    schema = referred(schema, root)
    rule = json_rule(schema, root, text)
    if values_of(schema) is None and isinstance(schema, Mapping):
        if types == {"boolean"}:
            return f'({rule} | "True" | "False")'
        if types == STRING and not text_limits(schema):
            return f"({rule} | {_PYTHON_STRING})"
    return rule


INPUT = "input"
"""The parameter's name."""


def text_argument_rule(arguments: Arguments, grammar: TextGrammar, text: LarkText) -> str:
    """Return the rule of the arguments. Raises `InvalidRequest` for a grammar that can't be enforced there."""
    match arguments:
        case JsonArguments():
            return text.rule(f'/\\{{[ \\n]?"{INPUT}":[ ]?"/ {grammar.in_json()} /"[ \\n]?\\}}/')
        case Keywords(end):
            opening = text.literal(f'{INPUT}="')
            return text.rule(f"{opening} {grammar.in_json()} {text.literal(chr(34) + end)}")
        case Parameters():
            opening = f"{text.literal(arguments.before + INPUT)} {text.markup(arguments.before_value)}"
            value = text.held_text_until(grammar, arguments.after, never=arguments.never)
            return text.rule(f"{opening} {value} {text.literal(arguments.joint)} {text.literal(arguments.end)}")
        case Braces(quote):
            value = text.held_text_until(grammar, quote)
            return text.rule(f'{text.literal("{" + INPUT + ":" + quote)} {value} "}}"')
        case Elements(prefix, end):
            value = text.held_text_until(grammar, f"{prefix}</{INPUT}>")
            return text.rule(f"{text.literal(f'{prefix}<{INPUT}>')} {value} {text.literal(end)}")
