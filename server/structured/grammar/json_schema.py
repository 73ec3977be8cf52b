"""Validates a client's JSON Schema, limits its size and configures llguidance for it.

Property order and whitespace follow llama-server: properties in the schema's order; between tokens nothing, one
space, or one or two line breaks with at most 20 characters of indentation (llama.cpp
common/json-schema-to-grammar.cpp, SPACE_RULE). An object that lists properties without additionalProperties has no
others (build_object in the same file). Unlike llama-server, a keyword that can't be enforced is an error and not
ignored. Keywords that llguidance lacks are rewritten if possible (`schema`). A `format` that the specification does
not define is an annotation.
"""

import json
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

import llguidance

from server.errors import InvalidRequest
from server.structured.grammar.limits import MAX_SCHEMA_DEPTH, MAX_SCHEMA_NODES
from server.structured.grammar.schema.document import Document
from server.structured.grammar.schema.keywords import definitions_of, subschemas, values_in, with_subschemas
from server.structured.grammar.schema.language import CONTROL, none_of, readable
from server.structured.grammar.schema.rewriting import Rewriter, overlapping

_GENERATED_PATH = re.compile(r"(?: while processing|:) json-schema:///#(?:/\$defs/\d+)?")
_COUNTS_PROPERTIES = frozenset(["minProperties", "maxProperties"])
_IN_PLACE = ("$ref", "anyOf", "oneOf")
_OF_OBJECTS = frozenset(["properties", "patternProperties", "additionalProperties", "required"]) | _COUNTS_PROPERTIES
_OWN_LIMITS = frozenset(["additionalProperties", "patternProperties", "const", "enum"]) | _COUNTS_PROPERTIES
_DATA_KEYWORDS = ("const", "enum", "required", "default", "examples")
_OPTIONS = {
    "whitespace_flexible": False,
    "whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})",
    "coerce_one_of": False,
    "lenient": False,
}
_BOUNDS = frozenset(["minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
_SHORT_ESCAPES = 'nrbtf\\"'


def normalized_schema(schema: object, field: str) -> tuple[str, tuple[dict[str, Any], str] | None, str]:
    """Return a schema for llguidance and two further values.

    If items must be unique, the second is the rewritten schema with the first path of such an array. The third is a
    keyword whose rewritten form may reject some valid values; "" for none.

    Raises `InvalidRequest` that names the path. Time is bounded by the `limits`; nothing is fetched for a `$ref`.
    """
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{field} must be a JSON object, got {type(schema).__name__}", field)
    _check_size(schema, field)
    if isinstance(schema, bool):
        schema = {"allOf": [schema]}
    document = Document(schema, field)
    plain = document.plain()
    rewriter = Rewriter(plain, field, document.paths, exclusive=False)
    rewritten = _rewritten(rewriter, field)
    text = _text(rewritten)
    if '"oneOf"' in text and (rewriter.narrowed or "oneOf constraints" in _problem(text)):
        rewriter = Rewriter(plain, field, document.paths, exclusive=True)
        rewritten = _rewritten(rewriter, field)
    unique = (rewritten, rewriter.unique) if rewriter.unique else None
    # After the search for overlaps, because closed branches overlap less than the client's.
    return _text(_closed_document(rewritten)), unique, rewriter.narrowed


def grammar_text(schema: str) -> str:
    """Return llguidance's grammar of a schema."""
    return f'{{"grammars": [{{"json_schema": {schema}}}]}}'


def _problem(text: str) -> str:
    """Return llguidance's error for a schema, such as branches of a `oneOf` that it can't distinguish."""
    problem: str = llguidance.LLMatcher.validate_grammar(grammar_text(text))
    return problem


def _rewritten(rewriter: Rewriter, field: str) -> dict[str, Any]:
    """Return the rewritten document. Raises `InvalidRequest` for a definition that only refers to itself.

    No finite value matches it, but llguidance compiles such a schema, so a reply could not be completed.
    """
    rewritten = rewriter.rewritten()
    try:
        TopologicalSorter(
            {name: _references_in_place(part) for name, part in definitions_of(rewritten).items()}
        ).prepare()
    except CycleError:
        raise InvalidRequest(f"{field}: a '$ref' leads back to itself with nothing in between", field) from None
    return rewritten


def _text(rewritten: dict[str, Any]) -> str:
    options: dict[str, Any] = _OPTIONS
    if not _has_control(rewritten):
        options = {**_OPTIONS, "json_allowed_escapes": _SHORT_ESCAPES}
    return json.dumps({**rewritten, "x-guidance": options}, ensure_ascii=False)


def _has_control(rewritten: dict[str, Any]) -> bool:
    """Return whether the schema contains a character that only a \\u escape can express.

    Otherwise these escapes are not allowed, because a listed name could be written as an unlisted one.
    """
    for value in values_in(rewritten):
        texts = value if isinstance(value, dict) else [value]  # the names in an object
        if any(isinstance(text, str) and re.search(CONTROL, text) for text in texts):
            return True
    return False


def _closed_document(document: dict[str, Any]) -> dict[str, Any]:
    """Close every object except combined ones, because none of these lists the others' properties."""
    parts, combined, escaped = definitions_of(document), set[str](), _has_control(document)
    waiting = [name for part in parts.values() for name in _combined_references(part, combined=False)]
    while waiting:
        name = waiting.pop()
        if name not in combined:
            combined.add(name)
            waiting += _combined_references(parts[name], combined=True)
    closed = {name: part if name in combined else _closed(part, escaped=escaped) for name, part in parts.items()}
    defs = {name: closed[f"#/$defs/{name}"] for name in document.get("$defs", {})}
    return {**closed["#"], "$defs": defs} if defs else closed["#"]


def _combined_references(schema: Any, *, combined: bool) -> Iterator[str]:
    """Return the definitions whose properties are combined with those of other schemas."""
    if not isinstance(schema, dict):
        return
    combined = combined or _combines(schema)
    if combined and "$ref" in schema:
        yield schema["$ref"]
    for each in subschemas(schema):
        yield from _combined_references(each, combined=combined)


def _combines(schema: dict[str, Any]) -> bool:
    """Return whether several schemas describe a value's properties here, so that none may exclude others."""
    n_in_place = len(schema.get("allOf", ())) + sum(key in schema for key in _IN_PLACE)
    names_twice = {"properties", "patternProperties"} <= schema.keys()
    return names_twice or n_in_place + bool(_OF_OBJECTS & schema.keys()) > 1


def _closed(schema: Any, *, escaped: bool) -> Any:
    """Set ``additionalProperties`` to false, unless the schema specifies them or lists forbidden properties.

    ``escaped``: replace other ``additionalProperties`` by a pattern of the names, which then have no \\u escapes.
    """
    if not isinstance(schema, dict) or _combines(schema):
        return schema
    closed = with_subschemas(schema, lambda each, _: _closed(each, escaped=escaped))
    listed, others = closed.get("properties"), closed.get("additionalProperties", True)
    if listed is not None and False not in listed.values() and not _OWN_LIMITS & schema.keys():
        needed = {name: True for name in schema.get("required", ()) if name not in listed}
        closed |= {"properties": {**listed, **needed}, "additionalProperties": False}
    elif listed and escaped and others is not False:
        closed |= {"patternProperties": {none_of(listed): others}, "additionalProperties": False}
    return closed


def _check_size(schema: object, field: str) -> None:
    level: list[object] = [schema]
    n_values = depth = 0
    while level:
        depth += 1
        n_values += len(level)
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidRequest(f"{field} is nested deeper than {MAX_SCHEMA_DEPTH} levels", field)
        if n_values > MAX_SCHEMA_NODES:
            raise InvalidRequest(f"{field} has more than {MAX_SCHEMA_NODES} values", field)
        inner = [
            value.values() if isinstance(value, dict) else value for value in level if isinstance(value, dict | list)
        ]
        level = [child for values in inner for child in values]


def _references_in_place(schema: Any) -> list[str]:
    """Return the definitions that apply to the same value as a schema, in any combination."""
    if not isinstance(schema, dict):
        return []
    found = [schema["$ref"]] if "$ref" in schema else []
    return found + [name for part in schema.get("allOf", ()) for name in _references_in_place(part)]


def unsupported(error: str, schema: object, narrowed: str) -> InvalidRequest:
    """Convert llguidance's error to one with the path of the keyword that caused it."""
    error = _GENERATED_PATH.sub("", error)
    if narrowed and error.startswith("Unsatisfiable"):
        return InvalidRequest(f"{narrowed} cannot be enforced, or nothing matches: {error}", narrowed.split(": ")[0])
    keywords = list(_keywords_in(schema))
    if "oneOf constraints" in error:
        return overlapping(next((path for path, keyword, _ in keywords if keyword == "oneOf"), "json_schema"))
    if "regex" in error:
        quoted = _as_quoted(error)
        for path, keyword, value in keywords:
            if any(pattern and _as_quoted(readable(pattern)) in quoted for pattern in _patterns_in(keyword, value)):
                return InvalidRequest(f"{path}: the keyword '{keyword}' cannot be enforced: {error}", path)
        bounds = [each for each in keywords if each[1] in _BOUNDS and isinstance(each[2], int | float)]
        if bounds:  # llguidance converts them to regexes
            path, keyword, bound = max(bounds, key=lambda each: (abs(each[2]), each))
            reason = f"{abs(bound):g} is too large"
            return InvalidRequest(f"{path}: the keyword '{keyword}' cannot be enforced: {reason}", path)
    return InvalidRequest(f"json_schema: {error}", "json_schema")


def _patterns_in(keyword: str, value: object) -> list[str]:
    """Return the patterns of a keyword; `pattern` may also be a property's name, with a schema."""
    if keyword == "patternProperties" and isinstance(value, dict):
        return list(value)
    return [value] if keyword == "pattern" and isinstance(value, str) else []


def _as_quoted(pattern: str) -> str:
    """Return a pattern as llguidance may quote it: without escaped slashes, with expanded classes."""
    return pattern.replace("\\/", "/").replace("\\w", "[0-9a-zA-Z_]").replace("\\d", "[0-9]")


def _keywords_in(schema: object) -> Iterator[tuple[str, str, Any]]:
    """Yield the path, name and value of all members of a schema except data, by increasing depth."""
    level = [("json_schema", schema)]
    while level:
        below: list[tuple[str, object]] = []
        for path, value in level:
            if isinstance(value, dict):
                yield from ((path, key, sub) for key, sub in value.items())
                below += [(f"{path}.{key}", sub) for key, sub in value.items() if key not in _DATA_KEYWORDS]
            elif isinstance(value, list):
                below += [(f"{path}.{n}", sub) for n, sub in enumerate(value)]
        level = below
