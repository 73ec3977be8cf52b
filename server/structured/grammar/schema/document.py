"""Normalizes a schema document: draft 2020-12, only known keywords, only local references.

References are resolved inside the document: JSON pointers, anchors, and ids of subschemas. Nothing is fetched.
"""

from collections.abc import Mapping
from itertools import count
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from server.errors import InvalidRequest, short_json
from server.structured.grammar.limits import MAX_PROPERTIES
from server.structured.grammar.schema.keywords import (
    COUNTS,
    DEFINITIONS,
    LISTS,
    MAPS,
    REFUSED,
    SINCE,
    SINGLE,
    VALUES,
    Schema,
)

OLD = {  # drafts by the names in their `$schema`
    "http://json-schema.org/draft-03/schema": 3,
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
}
NEWEST = 2020


class Document:
    """Normalizes one document. ``field``: the request's field, for errors. ``paths``: the path of each definition."""

    def __init__(self, schema: dict[str, Any], field: str) -> None:
        self._root = schema
        self._field = field
        named = schema.get("$schema")
        self._named = isinstance(named, str)  # otherwise keywords that only older drafts have keep their meaning
        self.draft = OLD.get(named.rstrip("#"), NEWEST) if isinstance(named, str) else NEWEST
        self._is_unknown = self.draft < 4  # the current keyword is not in the draft, so any value is valid
        self.paths: dict[str, str] = {}
        self._bases: dict[int, str] = {}  # by the identity of a schema
        self._targets: dict[str, Any] = {"": schema}
        self._names: dict[int, str] = {id(schema): "#"}
        self._numbers = count()
        self._waiting: list[tuple[str, Any]] = []

    def plain(self) -> dict[str, Any]:
        """Return the normalized schema, with referenced schemas in ``$defs``. Raises InvalidRequest."""
        try:
            return self._plain()
        except ValueError as error:  # urllib's
            raise self._error(f"an id or a $ref is no URI: {error}", self._field) from error

    def _plain(self) -> dict[str, Any]:
        self._index(self._root, "")
        root = self._schema(self._root, self._field)
        defs: dict[str, Schema] = {}
        while self._waiting:
            name, target = self._waiting.pop()
            defs[name] = self._schema(target, self.paths[name])
        plain = root if isinstance(root, dict) else {"allOf": [root]}
        return {**plain, "$defs": defs} if defs else plain

    def _index(self, value: Any, base: str) -> None:
        """Record the base URI of every schema and the targets of ids and anchors."""
        if not isinstance(value, dict):
            return
        base = self._identified(value, base)
        self._bases[id(value)] = base
        for child in _children(value):
            self._index(child, base)

    def _identified(self, schema: dict[str, Any], base: str) -> str:
        own = schema.get("id" if self.draft <= 4 else "$id")
        if isinstance(own, str) and not (self.draft <= 7 and "$ref" in schema):
            if own.startswith("#"):  # an anchor, in old drafts
                self._targets.setdefault(base + own, schema)
            else:
                base = urldefrag(urljoin(base, own)).url
                self._targets.setdefault(base, schema)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                self._targets.setdefault(f"{base}#{schema[key]}", schema)
        return base

    def _schema(self, value: Any, path: str) -> Schema:
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            self._check(False, value, path, "an object or a boolean")
            return True
        if self.draft <= 7 and isinstance(value.get("$ref"), str):
            return {"$ref": self._reference(value, path)}  # these drafts ignore its siblings
        plain: dict[str, Any] = {}
        for key, given in value.items():
            was_unknown = self._is_unknown
            self._is_unknown |= SINCE.get(key, 4) > self.draft
            self._keyword(plain, key, given, value, path)
            self._is_unknown = was_unknown
        return plain

    def _keyword(self, plain: dict[str, Any], key: str, given: Any, schema: dict[str, Any], path: str) -> None:
        below = f"{path}.{key}"
        if key == "$ref" and isinstance(given, str):
            plain[key] = self._reference(schema, path)
        elif key in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(given, bool) and self.draft <= 4:
            bound = "minimum" if key == "exclusiveMinimum" else "maximum"
            if given and bound in schema:
                plain[key] = schema[bound]
        elif key == "items" and isinstance(given, list) and (self.draft < NEWEST or not self._named):
            plain["prefixItems"] = [self._schema(each, f"{below}.{n}") for n, each in enumerate(given)]
            if "additionalItems" in schema:
                plain["items"] = self._schema(schema["additionalItems"], f"{path}.additionalItems")
        elif key in SINGLE:
            if key != "additionalItems":
                plain[key] = self._schema(given, below)
        elif key in LISTS or key in MAPS:
            self._several(plain, key, given, below)
        elif key == "dependencies":
            self._dependencies(plain, given, below)
        elif key in REFUSED:
            raise unenforceable(key, path)
        elif key in VALUES and self._check(VALUES[key][0](given), given, below, VALUES[key][1]):
            plain[key] = int(given) if key in COUNTS and isinstance(given, float) and given.is_integer() else given

    def _several(self, plain: dict[str, Any], key: str, given: Any, path: str) -> None:
        if key in LISTS and isinstance(given, list) and given:
            plain[key] = [self._schema(each, f"{path}.{n}") for n, each in enumerate(given)]
        elif key in MAPS and isinstance(given, dict):
            if len(given) > MAX_PROPERTIES:
                raise self._error(f"more than {MAX_PROPERTIES} {key} in one object", path)
            plain[key] = {name: self._schema(each, f"{path}.{name}") for name, each in given.items()}
        else:
            form = "a list of schemas that is not empty" if key in LISTS else "an object of schemas"
            self._check(False, given, path, form)

    def _dependencies(self, plain: dict[str, Any], given: Any, path: str) -> None:
        if not self._check(isinstance(given, dict), given, path, "an object"):
            return
        is_required, form = VALUES["required"]
        for name, needs in given.items():
            if isinstance(needs, list):
                if self._check(is_required(needs), needs, f"{path}.{name}", form):
                    plain.setdefault("dependentRequired", {})[name] = needs
            else:
                plain.setdefault("dependentSchemas", {})[name] = self._schema(needs, f"{path}.{name}")

    def _reference(self, schema: dict[str, Any], path: str) -> str:
        """Return the local name of a reference's target."""
        given, base = schema["$ref"], self._bases.get(id(schema), "")
        joined = base + given if given.startswith("#") else urljoin(base, given)
        if given.startswith("/") and joined not in self._targets:  # LiteLLM omits the "#" for Anthropic
            given = f"#{given}"
            joined = base + given
        target = self._resolved(joined, given, path)
        if isinstance(target, bool):
            return self._queued(target, given)
        if not isinstance(target, dict):
            raise self._error(f"$ref '{given[:100]}' leads to no schema", path)
        if id(target) not in self._bases:  # the target is not at a schema position
            self._index(target, urldefrag(joined).url)
        if id(target) not in self._names:
            self._names[id(target)] = self._queued(target, given)
        return self._names[id(target)]

    def _queued(self, target: Schema, given: str) -> str:
        name = f"{next(self._numbers)}"
        self.paths[name] = self._field + unquote(given[1:]).replace("/", ".") if given.startswith("#") else given
        self._waiting.append((name, target))
        return f"#/$defs/{name}"

    def _check(self, is_valid: bool, given: Any, path: str, form: str) -> bool:
        """Return whether a value is valid. Raises `InvalidRequest` if it is not and the draft knows the keyword."""
        if not is_valid and not self._is_unknown:
            raise InvalidRequest(f"{path} is not a valid JSON Schema: {short_json(given)} should be {form}", path)
        return is_valid

    def _error(self, message: str, path: str) -> InvalidRequest:
        return InvalidRequest(f"{self._field}: {message}", path)

    def _resolved(self, uri: str, given: str, path: str) -> Any:
        """Return the target of `uri`, which `given` was resolved to."""
        resource, fragment = urldefrag(uri)
        if fragment and uri in self._targets:
            return self._targets[uri]
        found = self._targets.get(resource)
        if found is None:
            raise self._error(f"$ref '{given[:100]}' is not supported, only what is within the schema", path)
        if fragment and not fragment.startswith("/"):
            raise self._error(f"$ref '{given[:100]}' leads nowhere", path)
        for part in fragment.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                raise self._error(f"$ref '{given[:100]}' leads nowhere", path)
        return found


def _children(schema: Mapping[str, Any]) -> list[Any]:
    """Return the direct subschemas and definitions of a schema."""
    found: list[Any] = []
    for key, value in schema.items():
        if key in SINGLE and isinstance(value, dict):
            found.append(value)
        elif (key in LISTS or key == "items") and isinstance(value, list):
            found += value
        elif (key in MAPS or key in DEFINITIONS or key == "dependencies") and isinstance(value, dict):
            found += value.values()
    return found


def unenforceable(keyword: str, path: str) -> InvalidRequest:
    """Return the error for a keyword that applies but can't be expressed by a grammar."""
    return InvalidRequest(f"{path}: the keyword '{keyword}' cannot be enforced", path)
