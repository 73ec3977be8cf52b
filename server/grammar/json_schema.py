"""A client's JSON Schema: is it one, is it of a reasonable size, and how llguidance is asked for it.

Output order and whitespace follow llama-server: properties in the schema's order; between tokens nothing, one
space, or one or two line breaks with at most 20 characters of indent (llama.cpp common/json-schema-to-grammar.cpp,
SPACE_RULE).

Unlike llama-server, a keyword that cannot be enforced (`not`, `if`, `uniqueItems`, ...) is an error, not ignored.
Unknown values of `format` are ignored: the standard makes them annotations.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from server.errors import InvalidRequest
from server.grammar.limits import MAX_SCHEMA_CHAIN, MAX_SCHEMA_DEPTH, MAX_SCHEMA_NODES, Node, check_chain

ANY_OBJECT = {"type": "object"}
FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
)  # those that llguidance enforces (docs/json_schema.md)
_OPTIONS = {
    "whitespace_flexible": False,
    "whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})",
    "coerce_one_of": False,
    "lenient": False,
}
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_DATA = ("const", "enum", "default", "examples", "required", "x-guidance")


def schema_text(schema: object, *, what: str = "json_schema") -> str:
    """The schema as JSON text for llguidance, with our whitespace. Raises InvalidRequest that names the place.

    Time is bounded by MAX_SCHEMA_NODES; nothing is fetched for a `$ref`.
    """
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{what} must be a JSON object, got {type(schema).__name__}", what)
    _check_size(schema, what)
    if isinstance(schema, bool):
        schema = {"allOf": [schema]}
    _check_valid(schema, what)
    _check_references(schema, what)
    prepared = _enforceable(schema)
    prepared["x-guidance"] = _OPTIONS
    return json.dumps(prepared, ensure_ascii=False)


def _check_size(schema: object, what: str) -> None:
    level: list[object] = [schema]
    n_nodes = depth = 0
    while level:
        depth += 1
        n_nodes += len(level)
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidRequest(f"{what} is nested deeper than {MAX_SCHEMA_DEPTH} levels", what)
        if n_nodes > MAX_SCHEMA_NODES:
            raise InvalidRequest(f"{what} has more than {MAX_SCHEMA_NODES} values", what)
        level = [child for value in level for child in _children(value)]


def _children(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _check_valid(schema: dict[str, Any], what: str) -> None:
    draft = validator_for(schema, default=Draft202012Validator)
    validator = _FLAT if draft is Draft202012Validator else draft(draft.META_SCHEMA)
    # Not `check_schema`: its format checker holds patterns against Python's `re`, which knows less than ECMA 262.
    error = best_match(validator.iter_errors(schema))
    if error is not None:
        place = what + "".join(f".{part}" for part in error.absolute_path)
        message = error.message if len(error.message) <= 200 else f"{error.message[:200]}..."
        raise InvalidRequest(f"{place} is not a valid JSON Schema: {message}", place)


def _flat_meta_schema() -> Draft202012Validator:
    """Draft 2020-12's vocabularies as one schema: the same answers in a fifth of the time."""
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    base = Draft202012Validator.META_SCHEMA
    for part in base["allOf"]:
        vocabulary = REGISTRY.contents(f"https://json-schema.org/draft/2020-12/{part['$ref']}")
        properties |= _flat(vocabulary["properties"])
        definitions |= _flat(vocabulary.get("$defs", {}))
    return Draft202012Validator({"type": base["type"], "properties": properties, "$defs": definitions})


def _flat(value: Any) -> Any:
    if isinstance(value, dict):
        return {"$ref": "#"} if value.get("$dynamicRef") == "#meta" else {key: _flat(sub) for key, sub in value.items()}
    return [_flat(sub) for sub in value] if isinstance(value, list) else value


_FLAT = _flat_meta_schema()


def _check_references(schema: dict[str, Any], what: str) -> None:
    nodes: dict[str, Node] = {}
    waiting = ["#"]
    while waiting:
        pointer = waiting.pop()
        if pointer in nodes:
            continue
        weight, uses = _measure(_resolve(schema, pointer, what))
        nodes[pointer] = Node(weight, uses)
        waiting.extend(uses)
    check_chain(nodes, ["#"], MAX_SCHEMA_CHAIN, what)


def _measure(schema: object) -> tuple[int, tuple[str, ...]]:
    """Levels of a schema and what it refers to; definitions count only where they are used."""
    uses: list[str] = []
    depth = 0
    level = [schema]
    while level:
        depth += 1
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                if isinstance(value.get("$ref"), str):
                    uses.append(value["$ref"])
                below += [child for key, child in value.items() if key not in ("$defs", "definitions", *_DATA)]
            elif isinstance(value, list):
                below += value
        level = below
    return depth, tuple(uses)


def _resolve(schema: dict[str, Any], pointer: str, what: str) -> object:
    if pointer in ("#", "#/", ""):
        return schema
    if not pointer.startswith("#/"):
        raise InvalidRequest(f"{what}: $ref '{pointer[:100]}' is not supported, only '#/...' within the schema", what)
    value: Any = schema
    for part in pointer[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise InvalidRequest(f"{what}: $ref '{pointer[:100]}' leads nowhere", what)
    return value


def _enforceable(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy without the formats that are mere annotations; recursion is bounded by MAX_SCHEMA_DEPTH."""
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "format" and value not in FORMATS:
            continue
        if key in _MAPS and isinstance(value, dict):
            copy[key] = {name: _enforceable(sub) if isinstance(sub, dict) else sub for name, sub in value.items()}
        elif key not in _DATA and isinstance(value, dict):
            copy[key] = _enforceable(value)
        elif (key in _LISTS or key == "items") and isinstance(value, list):
            copy[key] = [_enforceable(sub) if isinstance(sub, dict) else sub for sub in value]
        else:
            copy[key] = value
    return copy


def unsupported(error: str, schema: object, what: str) -> InvalidRequest:
    """llguidance's refusal, with the place of the keyword it names."""
    found = re.search(r'Unimplemented keys: \["([^"]+)"', error)
    keyword = found[1] if found else "oneOf" if "oneOf constraints" in error else ""
    place = _place_of(keyword, schema, what)
    if keyword == "oneOf":
        return InvalidRequest(f"{place}: 'oneOf' whose branches may overlap cannot be enforced, use 'anyOf'", place)
    if keyword:
        return InvalidRequest(f"{place}: the keyword '{keyword}' cannot be enforced", place)
    return InvalidRequest(f"{what}: {error}", what)


def _place_of(keyword: str, schema: object, what: str) -> str:
    level = [(what, schema)]
    while level:
        below: list[tuple[str, object]] = []
        for place, value in level:
            if isinstance(value, dict):
                if keyword in value and not place.endswith(".properties"):
                    return place
                below += [(f"{place}.{key}", sub) for key, sub in value.items() if key not in _DATA]
            elif isinstance(value, list):
                below += [(f"{place}.{n}", sub) for n, sub in enumerate(value)]
        level = below
    return what
