"""Fields of a body without effect, at any depth: listed in a response header and in the log.

A pydantic schema provides its fields (`fields_of`), including nested schemas. Objects that are parsed by hand are
described next to their parsers, as `Fields`; objects whose ``type`` determines their fields, as `ByType`. A
description applies to an object, or to each object of an array. An unknown field is listed by its path, because it may
be a typo. Fields of older llama-servers (2023 and 2024) are accepted with any value.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from server.dialects.fields import Body

NO_EFFECT = frozenset(
    [
        *("metadata", "client_metadata", "store", "service_tier", "speed", "billing_policy", "inference_geo"),
        *("prediction", "user", "prompt_cache_options", "prompt_cache_retention"),
        *("prompt_cache_breakpoint", "cache_control", "detail", "diagnostics", "user_profile_id", "workspace_id"),
    ]
)
"""Fields that change no reply at any depth: for routing, caching, billing and records at OpenAI and Anthropic, and the
resolution of images. They are not reported."""
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


class Fields:
    """The known fields of an object.

    ``inner`` describes the fields whose values are objects or arrays of objects. Other values are not checked.
    """

    __slots__ = ("names", "table")

    def __init__(self, names: str = "", /, **inner: "Known") -> None:
        self.table: dict[str, Known | None] = {
            **dict.fromkeys(NO_EFFECT),
            **dict.fromkeys(DEPRECATED),
            **dict.fromkeys(names.split()),
            **inner,
        }
        """The description of each field's value, None for a value that is not checked."""
        self.names = frozenset(names.split()) | inner.keys()

    def __or__(self, other: "Fields") -> "Fields":
        both = Fields(" ".join(self.names | other.names))
        both.table |= {name: known for name, known in (*self.table.items(), *other.table.items()) if known is not None}
        return both

    def without(self, *names: str) -> "Fields":
        """Return the same without these fields."""
        rest = Fields(" ".join(self.names - {*names}))
        rest.table |= {name: self.table[name] for name in rest.names}
        return rest


class ByType:
    """Objects whose ``type`` determines their fields; "" describes an object without ``type``.

    An object of an undescribed type is not checked: its parser reports or rejects it as a whole.
    """

    __slots__ = ("_types",)

    def __init__(self, types: Mapping[str, Fields]) -> None:
        self._types = types

    def of(self, value: Mapping[str, Any]) -> Fields | None:
        """Return the fields of the object's type; None for a type that is not described."""
        kind = value.get("type")
        return self._types.get("" if kind is None else kind) if isinstance(kind, str | None) else None


Known = Fields | ByType
_UNKNOWN: Any = object()


def fields_of(*schemas: type[Body], names: str = "", **inner: Known) -> Fields:
    """Return the fields of `schemas` and of the schemas in them, with `names` and `inner` as those of `Fields`."""
    plain = set(names.split())
    for schema in schemas:
        for name, field in schema.model_fields.items():
            shown = field.alias or name
            types = (field.annotation, *get_args(field.annotation))
            nested = [each for each in types if isinstance(each, type) and issubclass(each, Body)]
            if nested:
                inner.setdefault(shown, fields_of(nested[0]))
            plain.add(shown)
    return Fields(" ".join(plain), **inner)


def has_unknown(value: Mapping[str, Any], known: Known) -> bool:
    """Return whether an object has a field, at any depth, that is neither `known` nor without effect. Null is absent.

    Each request is checked, so this is one loop: 2 microseconds for a chat of two messages.
    """
    fields = known if type(known) is Fields else known.of(value)  # type: ignore[union-attr]
    if fields is None:
        return False
    table = fields.table
    for name, member in value.items():
        inner = table.get(name, _UNKNOWN)
        if inner is None:
            continue
        if inner is _UNKNOWN:
            if member is not None:
                return True
        elif type(member) is dict:
            if has_unknown(member, inner):
                return True
        elif type(member) is list:
            for each in member:
                if type(each) is dict and has_unknown(each, inner):
                    return True
    return False


def unknown_paths(value: Mapping[str, Any], known: Known, path: str = "") -> Iterator[tuple[str, str, Fields]]:
    """Yield each unknown field: its path such as ``messages[1].content[0].foo``, its name, and the known names."""
    fields = known if isinstance(known, Fields) else known.of(value)
    if fields is None:
        return
    for name, member in value.items():
        where = f"{path}.{name}" if path else name
        if name not in fields.table:
            if member is not None:
                yield where, name, fields
            continue
        inner = fields.table[name]
        if inner is None:
            continue
        if isinstance(member, dict):
            yield from unknown_paths(member, inner, where)
        for index, each in enumerate(member if isinstance(member, list) else ()):
            if isinstance(each, dict):
                yield from unknown_paths(each, inner, f"{where}[{index}]")


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
    """Return a sentence for each field of `given`, at any depth, that is unknown and might have changed the reply."""
    if not has_unknown(given, known):
        return []
    found: list[str] = []
    for path, name, fields in unknown_paths(given, known):
        like = get_close_matches(name[:_SHOWN_CHARS], fields.names, 1, _SIMILAR) if len(found) < _MAX_SHOWN else []
        hint = f" (did you mean {like[0]!r}?)" if like else ""
        found.append(f"{path[:_MAX_PATH_CHARS]!a} is ignored: unknown field{hint}")
    return found


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
