"""Lists fields of a body without effect in a response header and in the log.

Unknown fields, which may be typos, are detected in the body and in objects whose members are known: objects with their
own schema, such as ``stream_options``, messages, content parts and tools. Fields of older versions of llama-server
(2023 and 2024) are accepted with any value.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args, get_origin

from server.dialects.fields import Body, Members, WithoutEffect
from server.dialects.tool_types import omission_reason

NO_EFFECT = frozenset(
    [
        *("metadata", "client_metadata", "store", "service_tier", "speed", "billing_policy", "inference_geo"),
        *("prediction", "user", "prompt_cache_options", "prompt_cache_retention"),
        *("cache_control", "diagnostics", "user_profile_id", "workspace_id"),
    ]
)
"""Fields of OpenAI and Anthropic for routing, caching, billing and records, which change no reply. Not reported."""
DEPRECATED: WithoutEffect = {
    "functions": ([], "send tools"),
    "function_call": ("auto", "send tool_choice"),
    "image_data": ([], "send a prompt with multimodal_data, or a chat with images"),
    "system_prompt": ("", "send it as part of the prompt"),
    "penalize_nl": (True, "llama.cpp penalizes new lines like any other token"),
    "penalize_newline": (True, "llama.cpp penalizes new lines like any other token"),
    "tfs_z": (1, "llama.cpp has no tail free sampling any more"),
}
"""Older fields of OpenAI's API and of llama-server, accepted in every body."""


@cache
def known_fields(schema: type[Body]) -> Members:
    """Return the fields of a schema, and the known members of objects in them."""
    fields = schema.model_fields.items()
    found = {field.alias or name: _members_in(field.annotation, *field.metadata) for name, field in fields}
    inner = {name: members for name, members in found.items() if members is not None}
    without_effect = {**DEPRECATED, **schema.without_effect}
    return Members(frozenset((*found, *schema.without_effect)), inner=inner, without_effect=without_effect)


def _members_in(*annotations: Any) -> Members | None:
    """Return the known members of objects in a field, also in lists; None if there are none."""
    for each in annotations:
        if isinstance(each, Members):
            return each
        if isinstance(each, type) and issubclass(each, Body):
            return known_fields(each)
        if get_origin(each) is not dict and (found := _members_in(*get_args(each))) is not None:
            return found
    return None


logger = logging.getLogger(__name__)

WARNING_HEADER = "X-Llamapool-Warning"
GONE_SAMPLERS = ("tfs_z", "tfs-z", "tfs", "f")
"""Names of tail free sampling, which llama.cpp removed; older clients send it in every list of samplers."""
NO_TOOL_LEFT = "tool_choice is ignored: no tool is left that could be called"
FOREIGN_REASONING = "{} is ignored: another server or an earlier key encrypted the reasoning in it"
_SHOWN_CHARS = 40
_MAX_SHOWN = 8
_MAX_SHOWN_CHARS = 200
_MAX_PATH_CHARS = 100
_SIMILAR = 0.75
"""Minimum similarity, from 0 to 1 (difflib's ratio), of a known name that is suggested for an unknown one."""


class _More(str):
    """The number of further warnings, in digits, because a body may cause a million warnings."""


def unused_fields(body: Mapping[str, Any], known: type[Body] | Collection[str], own: Iterable[str] = ()) -> list[str]:
    """Return a warning for each field of a JSON body without effect, up to the limit of `as_header`.

    `known`: the schema of the body, or the names of its fields. `own`: the dialect's own warnings, which are first.
    """
    found = [*dict.fromkeys(own)]
    samplers = body.get("samplers")
    if isinstance(samplers, str | list) and any(each in GONE_SAMPLERS for each in samplers):
        found.append(f"tfs_z in samplers is ignored: {DEPRECATED['tfs_z'][1]}")
    n_more = len(found[_MAX_SHOWN:])
    del found[_MAX_SHOWN:]
    fields = known_fields(known) if isinstance(known, type) else Members(frozenset(known), without_effect=DEPRECATED)
    for path, name, members in _unused(body, fields):
        if len(found) == _MAX_SHOWN:
            n_more += 1
        elif name in members.without_effect:
            found.append(f"{path} is ignored: {members.without_effect[name][1]}")
        else:
            like = get_close_matches(name[:_SHOWN_CHARS], members.names, 1, _SIMILAR)
            hint = f" (did you mean {like[0]!r}?)" if like else ""
            found.append(f"{path[:_MAX_PATH_CHARS]!a} is ignored: unknown field{hint}")
    return [*found, _More(n_more)] if n_more else found


def _unused(given: object, known: Members, at: str = "") -> Iterator[tuple[str, str, Members]]:
    """Yield the path and the name of each member without effect, and the known members of its object.

    `given`: an object, or a list of objects. `at`: its path, followed by a dot.
    """
    if isinstance(given, list):
        for index, each in enumerate(given):
            if isinstance(each, dict):
                yield from _unused(each, known, f"{at}{index}.")
    elif isinstance(given, dict) and not (known.types and (given.get("type") or known.types[0]) not in known.types):
        for name, value in given.items():
            if name in known.inner:
                yield from _unused(value, known.inner[name], f"{at}{name}.")
            elif name in known.without_effect:
                if value not in (None, known.without_effect[name][0]):
                    yield f"{at}{name}", name, known
            elif name not in known.names and name not in NO_EFFECT and value is not None:
                yield f"{at}{name}", name, known


def as_header(warnings: Iterable[str]) -> dict[str, str]:
    """Return the header with the distinct `warnings`, and log it.

    Warnings may contain text of the client, so each is shortened and restricted to printable ASCII.
    """
    given = [*dict.fromkeys(warnings)]
    found = [each for each in given if not isinstance(each, _More)]
    n_more = len(found[_MAX_SHOWN:]) + sum(int(each) for each in given if isinstance(each, _More))
    if not found:
        return {}
    short = (text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..." for text in found[:_MAX_SHOWN])
    printable = ["".join(char if " " <= char <= "~" else "?" for char in text) for text in short]
    rest = [f"and {n_more} more"] if n_more else []
    header = "; ".join([*printable, *rest])
    logger.info("a request is answered without all that it holds: %s", header)
    return {WARNING_HEADER: header}


def quoted(text: object) -> str:
    """Return a client's text for a header: in quotes, in ASCII, at most 40 characters."""
    return ascii(str(text)[:_SHOWN_CHARS])


def omission_warning(what: str, kind: str, number: int = 1) -> str:
    """Return the warning that `number` objects of type `kind` were dropped. `what`: such as ``tools``."""
    reason = f": {omission_reason(kind)}" if what.endswith("tools") else ""
    return f"{what} of type {quoted(kind)} are left out{f' ({number})' if number > 1 else ''}{reason}"


class Omitted(Counter[tuple[str, str]]):
    """Counts dropped objects of a body, such as content parts of an unknown type."""

    def add(self, what: str, kind: str) -> None:
        """Count an object of type `kind`. `what`: a plural noun for such objects."""
        self[what, kind] += 1

    @property
    def types(self) -> set[str]:
        """Return the types of the dropped objects."""
        return {kind for _, kind in self}

    def warnings(self) -> list[str]:
        """Return a warning for each type."""
        return [omission_warning(what, kind, number) for (what, kind), number in self.items()]
