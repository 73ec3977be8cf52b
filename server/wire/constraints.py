"""``response_format``, ``json_schema``, ``grammar`` and vLLM's fields (`guided`): at most one shapes the output.

llama-server's rules (tools/server/server-common.cpp, oaicompat_chat_params_parse): an absent or empty schema
means any object; json_schema and grammar exclude each other.
"""

from typing import Any

from pydantic import field_validator

from server.constrain.shape import ANY_OBJECT, Shape
from server.errors import InvalidRequest
from server.wire.fields import json_kind
from server.wire.guided import GuidedFields, conflict, guide
from server.wire.lazy_grammar import LazyFields


class ConstraintFields(GuidedFields, LazyFields):
    """What the output must match."""

    response_format: dict[str, Any] | None = None
    json_schema: Any = None
    grammar: str | None = None

    @field_validator("json_schema")
    @classmethod
    def _is_schema(cls, value: object) -> object:
        if not isinstance(value, dict | bool):
            raise ValueError(f"must be a JSON Schema, an object or a boolean, not {json_kind(value)}")
        return value


def read_shape(
    fields: ConstraintFields, form: dict[str, Any] | None = None, *, at: str = "response_format", flat: bool = False
) -> Shape | None:
    """What the output must match; None where nothing is asked for.

    `form`, which stands at `at`, is what a wire format has in place of ``response_format``; in a `flat` one the schema
    stands beside its name. Raises `InvalidRequest`.
    """
    form = fields.response_format if form is None else form
    shape = _format_shape(form, at, flat=flat)
    guided = guide(fields)
    others = {
        at: shape is not None,
        "json_schema": fields.json_schema is not None,
        "grammar": bool(fields.grammar),
    }
    if guided is not None:
        for name in (name for name, given in others.items() if given):
            raise conflict(guided.at, name)
        return guided
    if fields.json_schema is not None:
        if shape is not None and shape.value != ANY_OBJECT:
            raise InvalidRequest(f"json_schema: can't be used with a {at} that has a schema", "json_schema")
        shape = _schema(fields.json_schema, "json_schema")
    if shape is not None and fields.grammar:
        raise InvalidRequest("grammar: Cannot use both json_schema and grammar", "grammar")
    return Shape("gbnf", fields.grammar, "grammar") if fields.grammar else shape


def _format_shape(given: dict[str, Any] | None, at: str, *, flat: bool) -> Shape | None:
    """Of ``response_format``, or what a wire format has in place of it. A schema may always stand beside its type."""
    if not given:
        return None
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _schema(given.get("schema"), f"{at}.schema")
    if kind != "json_schema":
        raise InvalidRequest(
            f'{at} type must be one of "text", "json_object" or "json_schema", but got: {str(kind)[:60]}', f"{at}.type"
        )
    wrapper = given.get("json_schema")
    if flat:
        if "schema" not in given:
            raise InvalidRequest(f"{at}.schema: is required", f"{at}.schema")
        return _schema(given["schema"], f"{at}.schema")
    if wrapper is not None and not isinstance(wrapper, dict):
        raise InvalidRequest(f"{at}.json_schema: must be an object, not {json_kind(wrapper)}", f"{at}.json_schema")
    if wrapper is None and given.get("schema") is not None:
        return _schema(given["schema"], f"{at}.schema")
    return _schema((wrapper or {}).get("schema"), f"{at}.json_schema.schema")


def _schema(value: object, path: str) -> Shape:
    if value is None or value == {}:
        return Shape("schema", ANY_OBJECT, path)
    if not isinstance(value, dict | bool):
        raise InvalidRequest(f"{path}: must be a JSON Schema, not {json_kind(value)}", path)
    return Shape("schema", value, path)
