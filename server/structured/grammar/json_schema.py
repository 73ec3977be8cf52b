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
from server.structured.grammar.schema.keywords import definitions_of, subschemas, with_subschemas
from server.structured.grammar.schema.language import readable
from server.structured.grammar.schema.rewriting import Rewriter, overlapping

_GENERATED_PLACE = re.compile(r" while processing json-schema:///#/\$defs/\d+")
_COUNTS_PROPERTIES = frozenset(["minProperties", "maxProperties"])
_IN_PLACE = ("$ref", "anyOf", "oneOf")
_OF_OBJECTS = frozenset(["properties", "patternProperties", "additionalProperties", "required"]) | _COUNTS_PROPERTIES
_SAYS_WHICH = frozenset(["additionalProperties", "patternProperties", "const", "enum"]) | _COUNTS_PROPERTIES
_NO_SCHEMAS = ("const", "enum", "required", "default", "examples")
_OPTIONS = {
    "whitespace_flexible": False,
    "whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})",
    "coerce_one_of": False,
    "lenient": False,
}
_BOUNDS = frozenset(["minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
_SHORT_ESCAPES = 'nrbtf\\"'
_CONTROL = re.compile(r"(?<!\\)(?:\\\\)*\\u00[01]")  # a character without a short escape, no pattern's escape


def written(schema: object, what: str) -> tuple[str, tuple[dict[str, Any], str] | None, str]:
    """Return a schema for llguidance; if items must be unique, also its rewritten form with the first such place; and a
    keyword whose rewritten form may reject some valid values, "" for none.

    Raises `InvalidRequest` that names the place. Time is bounded by the `limits`; nothing is fetched for a `$ref`.
    """
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{what} must be a JSON object, got {type(schema).__name__}", what)
    _check_size(schema, what)
    if isinstance(schema, bool):
        schema = {"allOf": [schema]}
    document = Document(schema, what)
    plain = document.plain()
    rewriter = Rewriter(plain, what, document.places, exclusive=False)
    rewritten = _rewritten(rewriter, what)
    text = _text(rewritten)
    if '"oneOf"' in text and (rewriter.narrowed or "oneOf constraints" in _problem(text)):
        rewriter = Rewriter(plain, what, document.places, exclusive=True)
        rewritten = _rewritten(rewriter, what)
    unique = (rewritten, rewriter.unique) if rewriter.unique else None
    # Runs after the search for overlaps: closed branches overlap less than the client's.
    return _text(_closed_document(rewritten)), unique, rewriter.narrowed


def grammar_text(schema: str) -> str:
    """Return llguidance's grammar of a schema."""
    return f'{{"grammars": [{{"json_schema": {schema}}}]}}'


def _problem(text: str) -> str:
    """Return llguidance's error for a schema, such as branches of a `oneOf` that it can't distinguish."""
    problem: str = llguidance.LLMatcher.validate_grammar(grammar_text(text))
    return problem


def _rewritten(rewriter: Rewriter, what: str) -> dict[str, Any]:
    """Return the rewritten document. Raises `InvalidRequest` for a definition that only refers to itself.

    A value that must match it has no end: llguidance compiles such a schema, and a reply could not be completed.
    """
    rewritten = rewriter.rewritten()
    try:
        TopologicalSorter({name: _joined_in_place(part) for name, part in definitions_of(rewritten).items()}).prepare()
    except CycleError:
        raise InvalidRequest(f"{what}: a '$ref' leads back to itself with nothing in between", what) from None
    return rewritten


def _text(rewritten: dict[str, Any]) -> str:
    options: dict[str, Any] = _OPTIONS
    if not _CONTROL.search(json.dumps(rewritten, ensure_ascii=False)):
        # With \u, a listed name could be spelled as an unlisted one, which a different subschema applies to.
        options = {**_OPTIONS, "json_allowed_escapes": _SHORT_ESCAPES}
    return json.dumps({**rewritten, "x-guidance": options}, ensure_ascii=False)


def _closed_document(document: dict[str, Any]) -> dict[str, Any]:
    """Close every object except those that are combined with others, because none lists the others' properties."""
    parts, joined = definitions_of(document), set[str]()
    waiting = [name for part in parts.values() for name in _joined_references(part, joined=False)]
    while waiting:
        name = waiting.pop()
        if name not in joined:
            joined.add(name)
            waiting += _joined_references(parts[name], joined=True)
    made = {name: part if name in joined else _closed(part) for name, part in parts.items()}
    defs = {name: made[f"#/$defs/{name}"] for name in document.get("$defs", {})}
    return {**made["#"], "$defs": defs} if defs else made["#"]


def _joined_references(schema: Any, *, joined: bool) -> Iterator[str]:
    """Return the definitions whose properties are combined with those of other schemas."""
    if not isinstance(schema, dict):
        return
    joined = joined or _joins(schema)
    if joined and "$ref" in schema:
        yield schema["$ref"]
    for each in subschemas(schema):
        yield from _joined_references(each, joined=joined)


def _joins(schema: dict[str, Any]) -> bool:
    """Return whether several schemas describe a value's properties here, so that none may exclude others."""
    n_in_place = len(schema.get("allOf", ())) + sum(key in schema for key in _IN_PLACE)
    names_twice = {"properties", "patternProperties"} <= schema.keys()
    return names_twice or n_in_place + bool(_OF_OBJECTS & schema.keys()) > 1


def _closed(schema: Any) -> Any:
    """Forbid additional properties unless the schema specifies them, or lists properties that are forbidden."""
    if not isinstance(schema, dict) or _joins(schema):
        return schema
    made = with_subschemas(schema, lambda each, _: _closed(each))
    listed = made.get("properties")
    if listed is not None and False not in listed.values() and not _SAYS_WHICH & schema.keys():
        needed = {name: True for name in schema.get("required", ()) if name not in listed}
        made |= {"properties": {**listed, **needed}, "additionalProperties": False}
    return made


def _check_size(schema: object, what: str) -> None:
    level: list[object] = [schema]
    n_values = depth = 0
    while level:
        depth += 1
        n_values += len(level)
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidRequest(f"{what} is nested deeper than {MAX_SCHEMA_DEPTH} levels", what)
        if n_values > MAX_SCHEMA_NODES:
            raise InvalidRequest(f"{what} has more than {MAX_SCHEMA_NODES} values", what)
        inner = [
            value.values() if isinstance(value, dict) else value for value in level if isinstance(value, dict | list)
        ]
        level = [child for values in inner for child in values]


def _joined_in_place(schema: Any) -> list[str]:
    """Return the definitions that apply to the same value as a schema, in any combination."""
    if not isinstance(schema, dict):
        return []
    found = [schema["$ref"]] if "$ref" in schema else []
    return found + [name for part in schema.get("allOf", ()) for name in _joined_in_place(part)]


def unsupported(error: str, schema: object, narrowed: str) -> InvalidRequest:
    """llguidance's refusal, with the place of the keyword it names, or of the one that leaves nothing."""
    if narrowed and error.startswith("Unsatisfiable"):
        return InvalidRequest(f"{narrowed} cannot be enforced, or nothing matches: {error}", narrowed.split(": ")[0])
    keywords = list(_keywords_in(schema))
    if "oneOf constraints" in error:
        return overlapping(next((place for place, keyword, _ in keywords if keyword == "oneOf"), "json_schema"))
    if "regex" in error:
        quoted = _as_quoted(error)
        for place, keyword, value in keywords:
            if any(pattern and _as_quoted(readable(pattern)) in quoted for pattern in _patterns_in(keyword, value)):
                return InvalidRequest(f"{place}: the keyword '{keyword}' cannot be enforced: {error}", place)
        bounds = [each for each in keywords if each[1] in _BOUNDS and isinstance(each[2], int | float)]
        if bounds:  # llguidance writes them as regexes
            place, keyword, bound = max(bounds, key=lambda each: (abs(each[2]), each))
            reason = f"{abs(bound):g} is too large"
            return InvalidRequest(f"{place}: the keyword '{keyword}' cannot be enforced: {reason}", place)
    return InvalidRequest(f"json_schema: {_GENERATED_PLACE.sub('', error)}", "json_schema")


def _patterns_in(keyword: str, value: object) -> list[str]:
    """Return the patterns of a keyword; `pattern` may also be a property's name, with a schema."""
    if keyword == "patternProperties" and isinstance(value, dict):
        return list(value)
    return [value] if keyword == "pattern" and isinstance(value, str) else []


def _as_quoted(pattern: str) -> str:
    """Return a pattern as llguidance may write it: slashes not escaped, classes spelled out."""
    return pattern.replace("\\/", "/").replace("\\w", "[0-9a-zA-Z_]").replace("\\d", "[0-9]")


def _keywords_in(schema: object) -> Iterator[tuple[str, str, Any]]:
    """Yield the place, name and value of everything in a schema that is not data, by increasing depth."""
    level = [("json_schema", schema)]
    while level:
        below: list[tuple[str, object]] = []
        for place, value in level:
            if isinstance(value, dict):
                yield from ((place, key, sub) for key, sub in value.items())
                below += [(f"{place}.{key}", sub) for key, sub in value.items() if key not in _NO_SCHEMAS]
            elif isinstance(value, list):
                below += [(f"{place}.{n}", sub) for n, sub in enumerate(value)]
        level = below
