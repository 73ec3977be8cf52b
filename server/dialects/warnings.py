"""Fields of a body without effect: listed in a response header and in the log.

An unknown field may be a typo. It is found in the body and in the objects whose members are known: those with a schema
of their own, such as ``stream_options``, messages, content parts and tools. Fields of older llama-servers (2023 and
2024) are accepted with any value.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args, get_origin

from server.dialects.fields import Body, Members, WithoutEffect
from server.dialects.tool_types import left_out_reason

NO_EFFECT = frozenset(
    [
        *("metadata", "client_metadata", "store", "service_tier", "speed", "billing_policy", "inference_geo"),
        *("prediction", "user", "prompt_cache_options", "prompt_cache_retention"),
        *("cache_control", "diagnostics", "user_profile_id", "workspace_id"),
    ]
)
"""Fields that change no reply: for routing, caching, billing and records at OpenAI and Anthropic. Not reported."""
DEPRECATED: WithoutEffect = {
    "functions": ([], "send tools"),
    "function_call": ("auto", "send tool_choice"),
    "image_data": ([], "send a prompt with multimodal_data, or a chat with images"),
    "system_prompt": ("", "send it as part of the prompt"),
    "penalize_nl": (True, "llama.cpp penalizes new lines like any other token"),
    "penalize_newline": (True, "llama.cpp penalizes new lines like any other token"),
    "tfs_z": (1, "llama.cpp has no tail free sampling any more"),
}
"""Fields of OpenAI's API and of llama-servers of 2023 and 2024, in every body: accepted with any value."""


@cache
def known_fields(schema: type[Body]) -> Members:
    """Return the names of a schema's fields, with those of the objects in them."""
    fields = schema.model_fields.items()
    found = {field.alias or name: _members_in(field.annotation, *field.metadata) for name, field in fields}
    inner = {name: members for name, members in found.items() if members is not None}
    without_effect = {**DEPRECATED, **schema.without_effect}
    return Members(frozenset((*found, *schema.without_effect)), inner=inner, without_effect=without_effect)


def _members_in(*annotations: Any) -> Members | None:
    """Return the known members of the objects that a field has, or a list in it; None for none."""
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
"""Tail free sampling, which llama.cpp no longer has; older clients name it in every list of samplers."""
NO_TOOL_LEFT = "tool_choice is ignored: no tool is left that could be called"
FOREIGN_REASONING = "{} is ignored: another server or an earlier key encrypted the reasoning in it"
_SHOWN_CHARS = 40
_MAX_SHOWN = 8
_MAX_SHOWN_CHARS = 200
_MAX_PATH_CHARS = 100
_SIMILAR = 0.75
"""How similar a known name must be to an unknown one to be suggested, from 0 to 1 (difflib's ratio)."""


class _More(str):
    """The number of further sentences, in digits. Nobody reads those, and a body may need a million."""


def unused_fields(body: Mapping[str, Any], known: type[Body] | Collection[str], own: Iterable[str] = ()) -> list[str]:
    """Return a sentence for each of a JSON body's fields without effect, as far as `as_header` shows them.

    `known`: the schema of the body, or the names of its fields. `own`: the dialect's own sentences, which are first.
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
    """Yield path and name of each member without effect of an object, or of the objects in a list, and its object's
    known members.

    `at`: the path of `given` and a point.
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
    """Return the header with these sentences, each once, and log it.

    Sentences may contain text of the client, so each is one short line of ASCII.
    """
    given = [*dict.fromkeys(warnings)]
    found = [each for each in given if not isinstance(each, _More)]
    n_more = len(found[_MAX_SHOWN:]) + sum(int(each) for each in given if isinstance(each, _More))
    if not found:
        return {}
    cut = (text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..." for text in found[:_MAX_SHOWN])
    shown = ["".join(char if " " <= char <= "~" else "?" for char in text) for text in cut]
    rest = [f"and {n_more} more"] if n_more else []
    header = "; ".join([*shown, *rest])
    logger.info("a request is answered without all that it holds: %s", header)
    return {WARNING_HEADER: header}


def shown(text: object) -> str:
    """Return a client's text in quotes, in ASCII and at most 40 characters, fit for a header."""
    return ascii(str(text)[:_SHOWN_CHARS])


def left_out(what: str, kind: str, number: int = 1) -> str:
    """Return the warning that `number` objects of a type, such as tools, were omitted."""
    reason = f": {left_out_reason(kind)}" if what.endswith("tools") else ""
    return f"{what} of type {shown(kind)} are left out{f' ({number})' if number > 1 else ''}{reason}"


class Omitted(Counter[tuple[str, str]]):
    """Counts the objects of a body that are omitted, such as parts of an unknown type."""

    def add(self, what: str, kind: str) -> None:
        """Count an object of type `kind`. `what`: what such objects are, in the plural."""
        self[what, kind] += 1

    @property
    def types(self) -> set[str]:
        """The types of the omitted objects."""
        return {kind for _, kind in self}

    def warnings(self) -> list[str]:
        """Return a warning for each type."""
        return [left_out(what, kind, number) for (what, kind), number in self.items()]
