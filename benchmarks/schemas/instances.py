"""Feed JSON instances to a constraint: whether it accepts them, and the cost of each token."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.errors import InternalError, InvalidRequest, LlamapoolError
from server.structured.constraint import Constraint
from server.vocab import Vocab


@dataclass(slots=True)
class Reply:
    """``accepted``: every token was allowed, and the output may end after the last one.

    ``failure``: the constraint's error, if it failed earlier. ``mask_us``: CPU time of one mask and one step per token.
    """

    accepted: bool = False
    failure: str = ""
    mask_us: list[int] = field(default_factory=list)


def write(constraint: Constraint, tokens: Sequence[int]) -> Reply:
    """Advance a new `constraint` by `tokens` as the engine does with sampled ones, and compute all masks."""
    reply = Reply()
    try:
        for token in tokens:
            start = time.thread_time_ns()
            constraint.mask()
            masked_ns = time.thread_time_ns() - start
            if not constraint.allows(token):
                return reply
            start = time.thread_time_ns()
            constraint.accept(token)
            reply.mask_us.append((masked_ns + time.thread_time_ns() - start) // 1000)
        reply.accepted = may_end(constraint)
    except (InvalidRequest, InternalError) as error:
        reply.failure = "" if is_repetition(error) else error.message
    return reply


def is_repetition(error: LlamapoolError) -> bool:
    """Return whether a reply failed as documented: each continuation repeats an item of a `uniqueItems` array."""
    return "'uniqueItems'" in error.message


def may_end(constraint: Constraint) -> bool:
    """Return whether the output may end here."""
    inner = constraint.masked_by()
    return constraint.finished or (inner is not None and inner.complete)


def spellings(schema: Any, instance: Any) -> Iterator[str]:
    """Yield JSON texts of an instance: with members as given, and in the order of the schema's properties."""
    given = json.dumps(instance, ensure_ascii=False)
    yield given
    ordered = json.dumps(_ordered([schema], schema, instance), ensure_ascii=False)
    if ordered != given:
        yield ordered


def tokens_of(vocab: Vocab, text: str) -> list[int]:
    """Return the tokens as a model generates them."""
    return vocab.tokenize(text, add_special=False, parse_special=False)


_LISTS_IN_PLACE = ("allOf", "anyOf", "oneOf")
_MAPS_IN_PLACE = ("dependentSchemas", "dependencies")
_IN_PLACE = ("if", "then", "else", "not")


def _ordered(schemas: list[Any], root: Any, value: Any) -> Any:
    keywords = list(_keywords(schemas, root, set()))
    if isinstance(value, list):
        items = [each for keyword, given in keywords if keyword in ("items", "prefixItems") for each in _several(given)]
        return [_ordered(items, root, each) for each in value]
    if not isinstance(value, dict):
        return value
    listed: dict[str, list[Any]] = {}
    others: list[Any] = []
    required: list[str] = []
    for keyword, given in keywords:
        if keyword == "properties":
            for name, each in _mapping(given).items():
                listed.setdefault(name, []).append(each)
        elif keyword == "required":
            required += [name for name in _several(given) if isinstance(name, str)]
        elif keyword in ("additionalProperties", "patternProperties"):
            others += [given] if keyword == "additionalProperties" else _mapping(given).values()
    names = [name for name in dict.fromkeys([*listed, *required, *value]) if name in value]
    return {name: _ordered(listed.get(name, others), root, value[name]) for name in names}


def _keywords(schemas: list[Any], root: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the keywords of `schemas` and of subschemas for the same value, in the order of the text."""
    for schema in schemas:
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        for keyword, given in schema.items():
            below: list[Any] = []
            if keyword == "$ref" and isinstance(given, str):
                below = [_target(root, given)]
            elif keyword in _LISTS_IN_PLACE or keyword in _IN_PLACE:
                below = _several(given)
            elif keyword in _MAPS_IN_PLACE:
                below = list(_mapping(given).values())
            yield keyword, given
            yield from _keywords(below, root, seen)


def _target(root: Any, reference: str) -> Any:
    if not reference.startswith("#"):
        return None
    at = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        at = at.get(name) if isinstance(at, dict) else None
    return at


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
