"""The known fields of a body, at any depth.

A pydantic schema provides its fields (`fields_of`), including nested schemas. Objects that are parsed by hand are
described next to their parsers, as `Fields`; objects whose ``type`` determines their fields, as `ByType`. A
description applies to an object, or to each object of an array. `has_unknown` runs for each request and builds no
paths. `unknown_paths` runs only for a body with an unknown field.
"""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from server.dialects.fields import Body

NO_EFFECT = frozenset(
    [
        *("metadata", "client_metadata", "store", "service_tier", "speed", "billing_policy", "inference_geo"),
        *("prediction", "user", "prompt_cache_options", "prompt_cache_retention"),
        *("prompt_cache_breakpoint", "cache_control", "detail", "diagnostics", "user_profile_id", "workspace_id"),
        *("tfs_z", "penalize_nl", "system_prompt", "image_data"),  # `warnings` reports values that would have one
    ]
)
"""Fields that change no reply at any depth: for routing, caching, billing and records at OpenAI and Anthropic, the
resolution of images, and fields of llama-servers of 2023 and 2024. They are not reported."""


class Fields:
    """The known fields of an object.

    ``inner`` describes the fields whose values are objects or arrays of objects. Other values are not checked.
    """

    __slots__ = ("names", "table")

    def __init__(self, names: str = "", /, **inner: "Known") -> None:
        self.table: dict[str, Known | None] = {**dict.fromkeys(NO_EFFECT), **dict.fromkeys(names.split()), **inner}
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
    """Return whether an object has a field, at any depth, that is neither `known` nor in `NO_EFFECT`. Null is absent.

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
