"""The response format: ``response_format``, ``json_schema``, ``grammar`` or one of vLLM's fields, at most one of them.

llama-server's rules apply (tools/server/server-common.cpp, oaicompat_chat_params_parse): an absent or empty schema
means any object; json_schema and grammar exclude each other. vLLM's fields are ``guided_json`` and its relatives,
and ``structured_outputs``; a grammar there is GBNF if it contains ``::=``, else Lark. A grammar may have triggers
(``grammar_lazy``, ``grammar_triggers``, ``preserved_tokens``), with llama-server's fields and errors
(tools/server/server-schema.cpp, server_grammar_trigger): tokens (0), words (1), patterns to search for (2) and
patterns of the whole text so far (3).
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, WithJsonSchema

from server.dialects.fields import Body, Object, Objects, Schema, Strings, Text, json_kind, json_type, wrong_type
from server.errors import InvalidRequest
from server.structured.lazy import PATTERN_FULL, TOKEN, WORD, Lazy
from server.structured.response_format import ANY_OBJECT, ResponseFormat

MAX_TRIGGERS = 64
MAX_PRESERVED = 1024
MAX_CHARS = 256


def read_triggers(value: object) -> tuple[Mapping[str, Any], ...]:
    """Return the checked triggers. Raises ValueError with the reason."""
    if not isinstance(value, list):
        raise ValueError(f"type must be array, but is {json_type(value)}")
    if len(value) > MAX_TRIGGERS:
        raise ValueError(f"must have at most {MAX_TRIGGERS} entries")
    return tuple(_trigger(trigger, number) for number, trigger in enumerate(value))


def read_preserved(value: object) -> tuple[str, ...]:
    """Return the checked control tokens. Raises ValueError with the reason."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError("must be a list of strings")
    if len(value) > MAX_PRESERVED or any(len(text) > MAX_CHARS for text in value):
        raise ValueError(f"must have at most {MAX_PRESERVED} entries of at most {MAX_CHARS} characters")
    return tuple(value)


def _trigger(given: object, number: int) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"entry {number} must be an object, but is {json_type(given)}")
    kind, value, token = given.get("type"), given.get("value"), given.get("token")
    if not isinstance(value, str) or len(value) > MAX_CHARS:
        raise ValueError(f"entry {number}: 'value' must be a string of at most {MAX_CHARS} characters")
    if kind == TOKEN and not isinstance(kind, bool):
        if not isinstance(token, int) or isinstance(token, bool):
            raise ValueError(f"entry {number}: 'token' must be a number")
        return {"type": TOKEN, "value": value, "token": token}
    if isinstance(kind, int) and not isinstance(kind, bool) and WORD <= kind <= PATTERN_FULL:
        if not value:
            raise ValueError(f"entry {number}: 'value' must not be empty")
        return {"type": kind, "value": value}
    raise ValueError(
        f"entry {number}: 'type' must be 0 (token), 1 (word), 2 (pattern) or 3 (pattern of the whole text)"
    )


def read_schema(value: object) -> object:
    """Return a JSON Schema. Raises ValueError for anything that cannot be one."""
    if not isinstance(value, dict | bool):
        raise ValueError(f"must be a JSON Schema, an object or a boolean, not {json_kind(value)}")
    return value


class ConstraintFields(Body):
    """The response format fields: OpenAI's, llama-server's with triggers, and vLLM's."""

    response_format: dict[str, Any] | None = None
    json_schema: Annotated[Schema, AfterValidator(read_schema)] = None
    grammar: str | None = None
    grammar_lazy: bool | None = None
    grammar_triggers: Annotated[Objects, AfterValidator(read_triggers)] = None
    preserved_tokens: Annotated[Strings, AfterValidator(read_preserved)] = None
    guided_json: Schema = None
    guided_regex: Text = None
    guided_choice: Strings = None
    guided_grammar: Text = None
    guided_json_object: Annotated[Any, WithJsonSchema({"type": "boolean"})] = None
    guided_whitespace_pattern: Text = None
    structured_outputs: Object = None

    @property
    def lazy(self) -> Lazy | None:
        """Return the grammar's triggers; None for one that applies from the first token."""
        return Lazy(self.grammar_triggers or (), self.preserved_tokens or ()) if self.grammar_lazy else None


GuidedKind = Literal["json", "regex", "choice", "grammar", "json_object"]
_KINDS: tuple[GuidedKind, ...] = ("json", "regex", "choice", "grammar", "json_object")
_HOW = ("disable_fallback", "backend", "_backend", "_backend_was_auto")  # no effect on the output


def guide(fields: ConstraintFields) -> ResponseFormat | None:
    """Return the requested response format. Raises `InvalidRequest` for several, naming two, and for an invalid one."""
    if fields.guided_whitespace_pattern is not None:
        raise InvalidRequest(
            "guided_whitespace_pattern: is not supported; the model chooses white space", "guided_whitespace_pattern"
        )
    given = {f"guided_{kind}": (kind, getattr(fields, f"guided_{kind}")) for kind in _KINDS}
    given |= _members(fields.structured_outputs)
    found = [_shape(field, kind, _checked(field, kind, value)) for field, (kind, value) in given.items() if _is(value)]
    if len(found) > 1:
        raise conflict(found[1].at, found[0].at)
    return found[0] if found else None


def conflict(field: str, other: str) -> InvalidRequest:
    """The error for two fields that shape the output both."""
    return InvalidRequest(f"{field}: can't be used together with {other}", field)


def _shape(field: str, kind: GuidedKind, value: Any) -> ResponseFormat:
    match kind:
        case "regex" | "choice":
            return ResponseFormat(kind, value, field)
        case "grammar":
            return ResponseFormat("gbnf" if "::=" in value else "lark", value, field)
    return ResponseFormat("schema", value, field)


def _is(value: object) -> bool:
    """Return whether a field is set; false means that no json_object is requested."""
    return value is not None and value is not False


def _members(given: object) -> dict[str, tuple[GuidedKind, Any]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise wrong_type("structured_outputs", "an object", given)
    for key, value in given.items():
        if key not in (*_KINDS, *_HOW) and _is(value):
            path = f"structured_outputs.{str(key)[:64]}"
            raise InvalidRequest(f"{path}: is not supported", path)
    found: dict[str, tuple[GuidedKind, Any]] = {}
    for kind in _KINDS:
        found[f"structured_outputs.{kind}"] = (kind, given.get(kind))
    if not any(_is(value) for _, value in found.values()):
        raise InvalidRequest(
            "structured_outputs: needs one of json, regex, choice, grammar, json_object", "structured_outputs"
        )
    return found


def _checked(field: str, kind: GuidedKind, value: Any) -> Any:
    match kind:
        case "json":
            return _guided_schema(field, value)
        case "json_object":
            if value is not True:
                raise wrong_type(field, "a boolean", value)
            return ANY_OBJECT
        case "choice":
            if not isinstance(value, list) or not value or not all(isinstance(option, str) for option in value):
                raise InvalidRequest(f"{field}: must be a list of one string or more", field)
            return value
    if not isinstance(value, str) or not value:
        raise wrong_type(field, "a text that is not empty", value)
    return value


def _guided_schema(field: str, value: Any) -> Any:
    """Return a JSON Schema, which may be a string."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{field}: is not JSON: {error}", field) from None
    if not isinstance(value, dict | bool):
        raise wrong_type(field, "a JSON Schema, an object or a boolean", value)
    return value or ANY_OBJECT if isinstance(value, dict) else value


_SHAPING = frozenset(ConstraintFields.model_fields)


def read_shape(
    fields: ConstraintFields, form: dict[str, Any] | None = None, *, at: str = "response_format", flat: bool = False
) -> ResponseFormat | None:
    """Return the response format; None if there is none.

    `form` at `at` is the dialect's equivalent of ``response_format``; if `flat`, its schema is next to its name.
    Raises `InvalidRequest`.
    """
    if form is None and _SHAPING.isdisjoint(fields.model_fields_set):
        return None  # as of most requests
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
    return ResponseFormat("gbnf", fields.grammar, "grammar") if fields.grammar else shape


def _format_shape(given: dict[str, Any] | None, at: str, *, flat: bool) -> ResponseFormat | None:
    """Parse ``response_format`` or a dialect's equivalent. The schema may be next to the type."""
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


def _schema(value: object, path: str) -> ResponseFormat:
    if value is None or value == {}:
        return ResponseFormat("schema", ANY_OBJECT, path)
    if not isinstance(value, dict | bool):
        raise InvalidRequest(f"{path}: must be a JSON Schema, not {json_kind(value)}", path)
    return ResponseFormat("schema", value, path)
