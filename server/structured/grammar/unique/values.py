"""Whether the items of a unique array have enough different values for its `minItems`."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import llguidance

from server.errors import InvalidRequest
from server.structured.grammar.schema.keywords import LISTS, MAPS, SINGLE
from server.structured.grammar.unique.places import MARK

_IN_PLACE_DEPTH = 64
_SPACE = b" \t\n\r"


def check_enough_values(document: Mapping[str, Any], matcher_of: Callable[[Any], llguidance.LLMatcher]) -> None:
    """Raise `InvalidRequest` for a unique array whose items have fewer values than `minItems`.

    ``document``: a rewritten schema. ``matcher_of``: compiles a schema over bytes.
    """
    checked: set[tuple[str, int]] = set()
    for schema in _schemas(document):
        parts = list(_conjuncts(schema, document, 0))
        place = next((part[MARK] for part in parts if part.get(MARK)), None)
        least = max(part.get("minItems", 0) for part in parts)
        if place is None or least < 2:
            continue
        if any("prefixItems" in part for part in parts):
            raise InvalidRequest(
                f"{place}: 'uniqueItems' cannot be enforced next to 'prefixItems' and 'minItems'", place
            )
        items = [part["items"] for part in parts if "items" in part]
        if not items:
            continue
        key = (json.dumps(items), least)
        if key not in checked:
            checked.add(key)
            n_values = _count(matcher_of({"allOf": items, "$defs": document.get("$defs", {})}), least)
            if n_values < least:
                wanted = f"'minItems' wants {least} different items, but 'items' allows {n_values}"
                raise InvalidRequest(f"{place}: the keyword 'uniqueItems' cannot be enforced: {wanted}", place)


def _schemas(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    waiting: list[Any] = [document, *document.get("$defs", {}).values()]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            for key, value in each.items():
                if key in MAPS:
                    waiting += value.values()
                elif key in LISTS:
                    waiting += value
                elif key in SINGLE or key == "items":
                    waiting.append(value)


def _conjuncts(schema: Any, document: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """Return the schemas that a value of `schema` must all match, itself first."""
    if not isinstance(schema, dict) or depth > _IN_PLACE_DEPTH:
        return
    yield schema
    if reference := schema.get("$ref"):
        target = document if reference == "#" else document.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
        yield from _conjuncts(target, document, depth + 1)
    for part in schema.get("allOf", ()):
        yield from _conjuncts(part, document, depth + 1)


def _count(matcher: llguidance.LLMatcher, least: int) -> int:
    """Count the different texts of a grammar, white space outside strings aside, up to `least`.

    Different prefixes of one length lead to different texts, so that few of them need to be followed.
    """
    n_complete, level = 0, [(matcher, False, False)]
    while level:
        below: list[tuple[llguidance.LLMatcher, bool, bool]] = []
        for state, in_string, escaped in level:
            n_complete += state.is_accepting()
            mask = state.compute_bitmask()
            for byte in range(256):
                if not mask[byte // 8] >> byte % 8 & 1 or (not in_string and byte in _SPACE):
                    continue
                if n_complete + len(below) >= least:
                    return least
                after = state.deep_copy()
                after.consume_token(byte)
                quote = byte == ord('"') and not escaped
                below.append((after, in_string != quote, in_string and byte == ord("\\") and not escaped))
        level = below
    return n_complete
