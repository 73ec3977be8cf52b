"""``response_format``, ``json_schema`` and ``grammar``: at most one of them shapes the output.

llama-server's rules (tools/server/server-common.cpp, oaicompat_chat_params_parse): an absent or empty schema
means any object; json_schema and grammar exclude each other.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from server.dialects.fields import Body, json_kind
from server.engine.request import Constraint
from server.errors import InvalidRequest

if TYPE_CHECKING:  # llguidance takes its time to import
    from server.grammar.compiler import GrammarCompiler

ANY_OBJECT: dict[str, Any] = {"type": "object"}


class ConstraintFields(Body):
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


def wanted_schema(fields: ConstraintFields) -> object | None:
    """The JSON Schema that the output must match; None where none is asked for. Raises `InvalidRequest`."""
    schema = _response_format_schema(fields.response_format)
    if fields.json_schema is not None:
        if schema is not None and schema != ANY_OBJECT:
            raise InvalidRequest("json_schema: can't be used with a response_format that has a schema", "json_schema")
        schema = fields.json_schema
    if schema is not None and fields.grammar:
        raise InvalidRequest("grammar: Cannot use both json_schema and grammar", "grammar")
    return ANY_OBJECT if schema == {} else schema


def _response_format_schema(given: dict[str, Any] | None) -> object | None:
    if not given:
        return None
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _schema(given.get("schema"), "response_format.schema")
    if kind == "json_schema":
        wrapper = given.get("json_schema")
        if wrapper is not None and not isinstance(wrapper, dict):
            raise InvalidRequest(
                f"response_format.json_schema: must be an object, not {json_kind(wrapper)}",
                "response_format.json_schema",
            )
        return _schema((wrapper or {}).get("schema"), "response_format.json_schema.schema")
    raise InvalidRequest(
        f'response_format type must be one of "text", "json_object" or "json_schema", but got: {str(kind)[:60]}',
        "response_format.type",
    )


def _schema(value: object, path: str) -> object:
    if value is None:
        return ANY_OBJECT
    if not isinstance(value, dict | bool):
        raise InvalidRequest(f"{path}: must be a JSON Schema, not {json_kind(value)}", path)
    return value


def output_constraint(fields: ConstraintFields, compiler: "Callable[[], GrammarCompiler]") -> Constraint | None:
    """The compiled constraint; `compiler` is costly to make and asked for only where there is something to do.

    Raises `InvalidRequest` that names the construct.
    """
    schema = wanted_schema(fields)
    if schema is ANY_OBJECT:
        return compiler().json_object()
    if schema is not None:
        return compiler().json_schema(schema)
    return compiler().gbnf(fields.grammar) if fields.grammar else None
