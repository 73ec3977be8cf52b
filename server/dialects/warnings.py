"""Fields of a body without effect: listed in a response header and in the log.

An unknown field may be a typo. It is found in the body and in objects that have a schema of their own, such as
``stream_options``. Fields of older llama-servers (2023 and 2024) are accepted with any value.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args

from server.dialects.fields import Body

NO_EFFECT = frozenset(
    [
        *("metadata", "client_metadata", "store", "service_tier", "speed", "billing_policy", "inference_geo"),
        *("prediction", "user", "prompt_cache_options", "prompt_cache_retention"),
        *("cache_control", "diagnostics", "user_profile_id", "workspace_id"),
    ]
)
"""Fields that change no reply: for routing, caching, billing and records at OpenAI and Anthropic. Not reported."""
DEPRECATED: Mapping[str, tuple[Any, str]] = {
    "functions": ([], "send tools"),
    "function_call": ("auto", "send tool_choice"),
    "image_data": ([], "send a prompt with multimodal_data, or a chat with images"),
    "system_prompt": ("", "send it as part of the prompt"),
    "penalize_nl": (True, "llama.cpp penalizes new lines like any other token"),
    "penalize_newline": (True, "llama.cpp penalizes new lines like any other token"),
    "tfs_z": (1, "llama.cpp has no tail free sampling any more"),
}
"""Fields of OpenAI's API and of llama-servers of 2023 and 2024: the value that has no effect, and what to do instead.
They are accepted with any value, and reported with any but that one."""


@cache
def known_fields(schema: type[Body]) -> Mapping[str, type[Body] | None]:
    """Return the names of a schema's fields, each with the schema of its value where that is an object."""
    found: dict[str, type[Body] | None] = dict.fromkeys(schema.also_known)
    for name, field in schema.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))
        inner = [each for each in types if isinstance(each, type) and issubclass(each, Body)]
        found[field.alias or name] = next(iter(inner), None)
    return found


Known = type[Body] | Collection[str]
"""The known fields of a body: its schema, or their names."""


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


def unused_fields(body: Mapping[str, Any], known: Known, own: Iterable[str] = ()) -> list[str]:
    """Return a sentence for each of a JSON body's fields without effect.

    `known`: the dialect's fields. `own`: the dialect's own sentences.
    """
    samplers = body.get("samplers")
    gone = isinstance(samplers, str | list) and any(each in GONE_SAMPLERS for each in samplers)
    own = [*own, f"tfs_z in samplers is ignored: {DEPRECATED['tfs_z'][1]}"] if gone else own
    return [*deprecated_fields(body), *own, *unknown_fields(body, known)]


def deprecated_fields(given: Mapping[str, Any], path: str = "") -> list[str]:
    """Return a sentence for each field of `given`, whose names begin with `path`, that older servers had."""
    if DEPRECATED.keys().isdisjoint(given):
        return []
    return [
        f"{path}{name} is ignored: {instead}"
        for name, (neutral, instead) in DEPRECATED.items()
        if given.get(name) not in (None, neutral)
    ]


def unknown_fields(given: Mapping[str, Any], known: Known) -> list[str]:
    """Return a sentence for each field of `given` that is unknown and might have changed the reply."""
    found: list[str] = []
    for path, name, names in _unknown(given, known):
        like = get_close_matches(name[:_SHOWN_CHARS], names, 1, _SIMILAR) if len(found) < _MAX_SHOWN else []
        hint = f" (did you mean {like[0]!r}?)" if like else ""
        found.append(f"{path[:_MAX_PATH_CHARS]!a} is ignored: unknown field{hint}")
    return found


def _unknown(given: Mapping[str, Any], known: Known, at: str = "") -> Iterator[tuple[str, str, Collection[str]]]:
    """Yield the path and the name of each unknown field, and the known names. Null is absent."""
    fields = known_fields(known) if isinstance(known, type) else dict.fromkeys(known)
    for name, value in given.items():
        if name in fields:
            inner = fields[name]
            if inner is not None and isinstance(value, dict):
                yield from _unknown(value, inner, f"{at}{name}.")
        elif value is not None and name not in NO_EFFECT and name not in DEPRECATED:
            yield f"{at}{name}", name, fields


def as_header(warnings: Iterable[str]) -> dict[str, str]:
    """Return the header with these sentences, each once, and log it. Sentences may contain text of the client."""
    found = list(dict.fromkeys(warnings))
    if not found:
        return {}
    shown = [_printable(text) for text in found[:_MAX_SHOWN]]
    rest = [f"and {len(found) - _MAX_SHOWN} more"] * (len(found) > _MAX_SHOWN)
    header = "; ".join([*shown, *rest])
    logger.info("a request is answered without all that it holds: %s", header)
    return {WARNING_HEADER: header}


def _printable(text: str) -> str:
    """Return `text` as one line of ASCII, shortened."""
    cut = text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..."
    return "".join(char if " " <= char <= "~" else "?" for char in cut)


def shown(text: object) -> str:
    """Return a client's text in quotes, in ASCII and at most 40 characters, fit for a header."""
    return ascii(str(text)[:_SHOWN_CHARS])


def left_out(what: str, kind: str, number: int) -> str:
    """Return the warning that `number` objects of a type, such as tools, were omitted."""
    return f"{what} of type {shown(kind)} are left out{f' ({number})' if number > 1 else ''}"
