"""Fields of a body without effect: listed in a response header and in the log.

An unknown field may be a typo. It is found in the body, in objects that have a schema of their own, such as
``stream_options``, and in messages, content parts and tools (`NESTED`). Fields of older llama-servers (2023 and 2024)
are accepted with any value.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple, get_args

from server.dialects.fields import Body
from server.dialects.tool_types import left_out_reason

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


class Objects(NamedTuple):
    """The known fields of objects that are parsed by hand, in all dialects. ``inner``: those whose values are objects.

    ``types``: the types of the objects that have these fields. Others are omitted or rejected as a whole.
    """

    names: frozenset[str]
    types: Sequence[str]
    inner: dict[str, "Objects"]


def _objects(names: str, types: str = "", /, **inner: Objects) -> Objects:
    return Objects(frozenset(names.split()), types.split(), inner)


_URL, _FUNCTION = (
    _objects("url data format detail file_data"),
    _objects("name description parameters strict arguments index"),
)
_URLS = dict.fromkeys(("image_url", "input_audio", "audio_url", "input_video", "video_url"), _URL)
_PART_NAMES = (
    "type text refusal annotations logprobs thinking reasoning data signature file_id file_data file_url filename file "
    "detail source title context citations id name input tool_use_id is_error toolset_name caller"
)
_PART_TYPES = (
    "text input_text output_text refusal thinking reasoning redacted_thinking image_url input_image input_audio "
    "audio_url video_url file input_file image document tool_use tool_result"
)
_PART = _objects(_PART_NAMES, _PART_TYPES, content=_objects(_PART_NAMES, _PART_TYPES, **_URLS), **_URLS)
_MESSAGE = _objects(
    "role name tool_call_id tool_name images refusal annotations audio thinking reasoning reasoning_content "
    "reasoning_details provider_specific_fields output_config type id status phase",
    "message",
    content=_PART,
    tool_calls=_objects("type id index custom", "function custom", function=_FUNCTION),
)
_TOOL = _objects(
    "type name description parameters strict format custom input_schema defer_loading eager_input_streaming "
    "allowed_callers input_examples",
    "function custom",
    function=_FUNCTION,
)
NESTED: Mapping[str, Objects] = {"messages": _MESSAGE, "input": _MESSAGE, "system": _PART, "tools": _TOOL}
"""The objects in fields of a body that has one of `CONVERSATION`."""
CONVERSATION = ("messages", "previous_response_id")


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
    """Yield the path and the name of each unknown field, and the known names."""
    fields = known_fields(known) if isinstance(known, type) else dict.fromkeys(known)
    for name, value in given.items():
        if name in fields:
            inner = fields[name]
            if inner is not None and isinstance(value, dict):
                yield from _unknown(value, inner, f"{at}{name}.")
            elif name in NESTED and not at and any(each in fields for each in CONVERSATION):
                yield from _unknown_inside(value, NESTED[name], name)
        elif _matters(name, value):
            yield f"{at}{name}", name, fields


def _unknown_inside(value: object, known: Objects, at: str) -> Iterator[tuple[str, str, Collection[str]]]:
    """Yield what `_unknown` does, of an object or of the objects in a list."""
    found: list[tuple[str, Mapping[str, Any]]] = [(at, value)] if isinstance(value, dict) else []
    if isinstance(value, list):
        found = [(f"{at}.{index}", each) for index, each in enumerate(value) if isinstance(each, dict)]
    for path, entry in found:
        if known.types and (entry.get("type") or known.types[0]) not in known.types:
            continue
        for name, member in entry.items():
            if name in known.inner:
                yield from _unknown_inside(member, known.inner[name], f"{path}.{name}")
            elif name not in known.names and _matters(name, member):
                yield f"{path}.{name}", name, (*known.names, *known.inner)


def _matters(name: str, value: object) -> bool:
    """Return whether an unknown field might have changed the reply. Null is absent."""
    return value is not None and name not in NO_EFFECT and name not in DEPRECATED


def as_header(warnings: Iterable[str]) -> dict[str, str]:
    """Return the header with these sentences, each once, and log it.

    Sentences may contain text of the client, so each is one short line of ASCII.
    """
    found = list(dict.fromkeys(warnings))
    if not found:
        return {}
    cut = (text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..." for text in found[:_MAX_SHOWN])
    shown = ["".join(char if " " <= char <= "~" else "?" for char in text) for text in cut]
    rest = [f"and {len(found) - _MAX_SHOWN} more"] * (len(found) > _MAX_SHOWN)
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


class Omitted:
    """Counts the objects of a body that are omitted, such as parts of an unknown type."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, what: str, kind: str) -> None:
        """Count an object of type `kind`. `what`: what such objects are, in the plural."""
        self._counts[what, kind] = self._counts.get((what, kind), 0) + 1

    @property
    def types(self) -> set[str]:
        """The types of the omitted objects."""
        return {kind for _, kind in self._counts}

    def warnings(self) -> list[str]:
        """Return a warning for each type."""
        return [left_out(what, kind, number) for (what, kind), number in self._counts.items()]
