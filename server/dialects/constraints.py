"""The response format: ``response_format``, ``json_schema``, ``grammar`` or one of vLLM's fields, at most one of them.

llama-server's rules apply (tools/server/server-common.cpp, oaicompat_chat_params_parse): an absent or empty schema
means any object; json_schema and grammar exclude each other. vLLM's fields are ``guided_json`` and its relatives,
and ``structured_outputs``; a grammar there is GBNF if it contains ``::=``, otherwise Lark. A grammar may have triggers
(``grammar_lazy``, ``grammar_triggers``, ``preserved_tokens``), with llama-server's fields and errors
(tools/server/server-schema.cpp, server_grammar_trigger): a token (0), a word (1), a pattern anywhere in the text (2) or
a pattern of the whole text so far (3).
"""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import from_json

from server.dialects.fields import Body, Format, json_kind
from server.errors import InvalidRequest, invalid, short_json
from server.structured.lazy import TOKEN, Lazy
from server.structured.response_format import ANY_OBJECT, ResponseFormat

MAX_CHARS = 256
_JSON_SCHEMA = {"type": ["object", "boolean", "string"], "description": "A JSON Schema."}
JsonSchema = Annotated[dict[str, Any] | bool, WithJsonSchema(_JSON_SCHEMA)]
SchemaOrText = Annotated[
    JsonSchema, BeforeValidator(lambda given: from_json(given) if isinstance(given, str) else given)
]
NonEmpty = Annotated[str, Field(min_length=1)]
Choices = Annotated[list[str], Field(min_length=1)]


class Trigger(Body):
    """One of ``grammar_triggers``. Only a token trigger may have an empty ``value``."""

    type: Annotated[int, Field(ge=0, le=3)]
    value: Annotated[str, Field(max_length=MAX_CHARS)]
    token: int | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> "Trigger":
        if self.type == TOKEN and self.token is None:
            raise ValueError("a trigger of type 0 needs a 'token'")
        if self.type != TOKEN and not self.value:
            raise ValueError("'value' must not be empty")
        return self

    @property
    def shown(self) -> dict[str, Any]:
        """Return the trigger in llama-server's form."""
        return self.model_dump(exclude=None if self.type == TOKEN else {"token"})


class StructuredOutputs(Body):
    """vLLM's ``structured_outputs``; ``guided_json`` and its relatives are the older form."""

    model_config = Body.model_config | {"extra": "forbid"}
    without_effect: ClassVar = dict.fromkeys(
        ("disable_fallback", "backend", "_backend", "_backend_was_auto"), (None, "the backend is always llguidance")
    )

    json_schema: SchemaOrText | None = Field(None, alias="json")
    regex: NonEmpty | None = None
    choice: Choices | None = None
    grammar: NonEmpty | None = None
    json_object: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _false_is_absent(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = {name: value for name, value in given.items() if name not in cls.without_effect}
        return {name: value for name, value in known.items() if value is not None and value is not False}


class ConstraintFields(Body):
    """The response format fields: OpenAI's, llama-server's with triggers, and vLLM's."""

    response_format: Format | None = None
    json_schema: JsonSchema | None = None
    grammar: str | None = None
    grammar_lazy: bool | None = None
    grammar_triggers: Annotated[list[Trigger], Field(max_length=64)] | None = None
    preserved_tokens: Annotated[list[Annotated[str, Field(max_length=MAX_CHARS)]], Field(max_length=1024)] | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: NonEmpty | None = None
    guided_choice: Choices | None = None
    guided_grammar: NonEmpty | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: str | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def is_constrained(self) -> bool:
        """Return whether a field constrains the output."""
        return not self.model_fields_set.isdisjoint(ConstraintFields.model_fields)

    @property
    def lazy(self) -> Lazy | None:
        """Return the grammar's triggers; None if the grammar applies from the first token."""
        return self.triggers if self.grammar_lazy else None

    @property
    def triggers(self) -> Lazy:
        """Return the triggers of the grammar and the control tokens that they need."""
        triggers = tuple(trigger.shown for trigger in self.grammar_triggers or ())
        return Lazy(triggers, tuple(self.preserved_tokens or ()))


_KINDS = ("json", "regex", "choice", "grammar", "json_object")


def guide(fields: ConstraintFields) -> ResponseFormat | None:
    """Return the requested response format. Raises `InvalidRequest` for several, naming two, and for an invalid one."""
    if fields.guided_whitespace_pattern is not None:
        raise invalid("guided_whitespace_pattern", "is not supported; the model chooses white space")
    given = {f"guided_{kind}": getattr(fields, f"guided_{kind}") for kind in _KINDS}
    if (outputs := fields.structured_outputs) is not None:
        values = (outputs.json_schema, outputs.regex, outputs.choice, outputs.grammar, outputs.json_object)
        given |= {f"structured_outputs.{kind}": value for kind, value in zip(_KINDS, values, strict=True)}
        if values == (None,) * len(_KINDS):
            raise invalid("structured_outputs", f"needs one of {', '.join(_KINDS)}")
    found = [(at, value) for at, value in given.items() if value is not None and value is not False]
    if not found:
        return None
    at, value = found[0]
    if len(found) > 1:
        raise conflict(found[1][0], at)
    if at.endswith(("regex", "choice")):
        return ResponseFormat("regex" if at.endswith("regex") else "choice", value, at)
    if at.endswith("grammar"):
        return ResponseFormat("gbnf" if "::=" in value else "lark", value, at)
    return _schema({} if value is True else value, at)


def conflict(field: str, other: str) -> InvalidRequest:
    """Return the error for two fields that both constrain the output."""
    return invalid(field, f"can't be used together with {other}")


def read_response_format(
    fields: ConstraintFields, form: dict[str, Any] | None = None, *, at: str = "response_format", flat: bool = False
) -> ResponseFormat | None:
    """Return the response format; None if there is none.

    `form`, at the path `at`, is the dialect's equivalent of ``response_format``. If `flat`, its schema is a sibling of
    its type. Raises `InvalidRequest`.
    """
    form = fields.response_format if form is None else form
    found = _parse_format(form, at, flat=flat)
    guided = guide(fields)
    if guided is not None:
        others = {at: found is not None, "json_schema": fields.json_schema is not None, "grammar": bool(fields.grammar)}
        if used := [name for name, is_used in others.items() if is_used]:
            raise conflict(guided.at, used[0])
        return guided
    if fields.json_schema is not None:
        if found is not None and found.value != ANY_OBJECT:
            raise invalid("json_schema", f"can't be used with a {at} that has a schema")
        found = _schema(fields.json_schema, "json_schema")
    if found is not None and fields.grammar:
        raise invalid("grammar", "Cannot use both json_schema and grammar")
    return ResponseFormat("gbnf", fields.grammar, "grammar") if fields.grammar else found


def _parse_format(given: dict[str, Any] | None, at: str, *, flat: bool) -> ResponseFormat | None:
    """Parse ``response_format`` or a dialect's equivalent. The schema may be a sibling of the type."""
    if not given:
        return None
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _schema(given.get("schema"), f"{at}.schema")
    if kind != "json_schema":
        raise InvalidRequest(
            f'{at} type must be one of "text", "json_object" or "json_schema", but got: {short_json(kind)}',
            f"{at}.type",
        )
    wrapper = given.get("json_schema")
    if flat:
        if "schema" not in given:
            raise invalid(f"{at}.schema", "is required")
        return _schema(given["schema"], f"{at}.schema")
    if wrapper is not None and not isinstance(wrapper, dict):
        raise invalid(f"{at}.json_schema", f"must be an object, not {json_kind(wrapper)}")
    if wrapper is None and given.get("schema") is not None:
        return _schema(given["schema"], f"{at}.schema")
    return _schema((wrapper or {}).get("schema"), f"{at}.json_schema.schema")


def _schema(value: object, path: str) -> ResponseFormat:
    if value is None or value == {}:
        return ResponseFormat("schema", ANY_OBJECT, path)
    if not isinstance(value, dict | bool):
        raise invalid(path, f"must be a JSON Schema, not {json_kind(value)}")
    return ResponseFormat("schema", value, path)
