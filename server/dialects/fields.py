"""Field types of request bodies. A validation error is an `InvalidRequest` that names the field.

Messages are llama-server's (tools/server/server-schema.cpp, handle_with_catch): ``Field 'top_k': type must be
number, but is string``. Its numeric limits are of two kinds: values beyond a soft limit are clamped (`clamped`), values
beyond a hard limit are errors (`within`).
"""

import json
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Annotated, Any, ClassVar, TypeVar

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails

from server.errors import InvalidRequest, invalid, short, short_json

INT32_MAX = 2**31 - 1
MAX_MAGNITUDE = 1e6
"""Largest absolute value of a sampling parameter: far beyond useful values, far below overflow of float32."""
MAX_MESSAGES = 16384
"""Maximum number of messages in a conversation, in every dialect."""
MAX_LEVELS = 200
"""Maximum nesting of JSON that replies repeat a few levels deeper; orjson serializes 254 levels."""
_EXPECTED = {  # by pydantic's type of the error: nlohmann::json's name of the expected type
    "int_type": "number",
    "float_type": "number",
    "bool_type": "boolean",
    "string_type": "string",
    "list_type": "array",
    "dict_type": "object",
    "model_type": "object",
    "model_attributes_type": "object",
}

N = TypeVar("N", int, float)


def _whole_number(value: object) -> object:
    """Convert 40.0 to 40, like llama-server: JSON has one type of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def clamped(low: N, high: N) -> Callable[[N], N]:
    """Return a validator for llama-server's soft limits, which clamps values."""
    return lambda value: min(max(value, low), high)


def within(low: N, high: N) -> Callable[[N], N]:
    """Return a validator for llama-server's hard limits, with its error message."""

    def check(value: N) -> N:
        if not low <= value <= high:
            raise ValueError(out_of_range(low, high, value))
        return value

    return check


def out_of_range(low: float, high: float, value: float) -> str:
    """Return llama-server's error message for a value beyond a hard limit."""
    shown = [f"{number:.6f}" if isinstance(low, float) else str(number) for number in (low, high, value)]
    return f"Value must be between {shown[0]} <= value <= {shown[1]}, but got {short(shown[2])}"


Whole = Annotated[int, BeforeValidator(_whole_number)]
Count = Annotated[Whole, AfterValidator(within(0, INT32_MAX))]
CountOrAll = Annotated[Whole, AfterValidator(within(-1, INT32_MAX))]
SoftCount = Annotated[Whole, AfterValidator(clamped(0, INT32_MAX))]
Number = Annotated[float, Field(allow_inf_nan=False), AfterValidator(clamped(-MAX_MAGNITUDE, MAX_MAGNITUDE))]
Fraction = Annotated[float, Field(allow_inf_nan=False), AfterValidator(clamped(0.0, 1.0))]


@dataclass(frozen=True, slots=True, eq=False)  # typing needs hashes
class Members:
    """The known members of an object, or of the objects in a list."""

    names: frozenset[str]
    types: Sequence[str] = ()  # the ``type`` of objects with these members; objects of other types are not checked
    inner: Mapping[str, "Members"] = field(default_factory=dict)  # members whose values are objects
    without_effect: "WithoutEffect" = field(default_factory=dict)  # see `Body`


def _members(names: str, types: str = "", /, **inner: Members) -> Members:
    return Members(frozenset((*names.split(), *inner)), types.split(), inner)


_FUNCTION = _members("name description parameters strict arguments index")
_URLS = dict.fromkeys(
    ("image_url", "input_audio", "audio_url", "input_video", "video_url"),
    _members("url data format detail file_data"),
)
_PART_NAMES = (
    "type text refusal annotations logprobs thinking reasoning data signature file_id file_data file_url filename file "
    "detail source title context citations id name input tool_use_id is_error toolset_name caller"
)
_PART_TYPES = (
    "text input_text output_text refusal thinking reasoning redacted_thinking image_url input_image input_audio "
    "audio_url video_url file input_file image document tool_use tool_result"
)
_PART = _members(_PART_NAMES, _PART_TYPES, content=_members(_PART_NAMES, _PART_TYPES, **_URLS), **_URLS)
"""The parts of all dialects, because clients mix them."""
_MESSAGE_MEMBERS = _members(
    "role name tool_call_id tool_name images refusal annotations audio thinking reasoning reasoning_content "
    "reasoning_details provider_specific_fields type id status phase function_call",
    "message",
    content=_PART,
    tool_calls=_members("type id index custom", "function custom", function=_FUNCTION),
)
_MESSAGE = replace(_MESSAGE_MEMBERS, without_effect={"output_config": ({}, "effort applies to a whole request")})
_TOOL = _members(
    "type name description parameters strict format custom input_schema defer_loading eager_input_streaming "
    "allowed_callers input_examples",
    "function custom",
    function=_FUNCTION,
)
_FORMAT = _members("type name schema strict description", json_schema=_members("name schema strict description"))

_STRING, _OBJECT = {"type": "string"}, {"type": "object"}
_STRINGS, _OBJECTS = {"type": "array", "items": _STRING}, {"type": "array", "items": _OBJECT}
_PROMPTS = {"type": "array", "items": {"anyOf": [_STRING, {"type": "integer"}, {"type": "array"}, _OBJECT]}}
_CONTENT = {"anyOf": [_STRING, {"type": "array", "items": {**_OBJECT, "required": ["type"]}}, {"type": "null"}]}
_MESSAGE_SCHEMA = {**_OBJECT, "properties": {"role": _STRING, "content": _CONTENT}, "required": ["role"]}
Strings = Annotated[Any, WithJsonSchema(_STRINGS)]
"""This type and the next ones are for fields that are parsed by hand. Each has a schema for `/openapi.json`."""
TextOrStrings = Annotated[Any, WithJsonSchema({"anyOf": [_STRING, _STRINGS]})]
Object = Annotated[Any, WithJsonSchema(_OBJECT)]
Objects = Annotated[Any, WithJsonSchema(_OBJECTS)]
ToolObjects = Annotated[Objects, _TOOL]
TextOrObject = Annotated[Any, WithJsonSchema({"anyOf": [_STRING, _OBJECT]})]
_TEXT_OR_OBJECTS = WithJsonSchema({"anyOf": [_STRING, _OBJECTS]})
Input = Annotated[Any, _TEXT_OR_OBJECTS, _MESSAGE]
Blocks = Annotated[Any, _TEXT_OR_OBJECTS, _PART]
Messages = Annotated[Any, WithJsonSchema({"type": "array", "items": _MESSAGE_SCHEMA}), _MESSAGE]
Format = Annotated[dict[str, Any], _FORMAT]
"""``response_format``, and its equivalents in other dialects."""
Prompt = Annotated[Any, WithJsonSchema({"anyOf": [_STRING, _PROMPTS, _OBJECT]})]
"""A string, token ids, a mix of both, a list of such prompts, or an object with ``prompt_string``."""
Unsupported = Annotated[Any, WithJsonSchema({"description": "Refused unless it is empty."})]
EndUser = Annotated[Any, WithJsonSchema({"description": "The end user; distinguishes clients."})]


WithoutEffect = Mapping[str, tuple[Any, str]]
"""Fields without effect. Values: a value that causes no warning (like null), and the reason in the warning."""


class Body(BaseModel):
    """Base of request schemas. Types are not coerced; null is the same as absent."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, defer_build=True)
    without_effect: ClassVar[WithoutEffect] = {}
    texts_of_errors: ClassVar[Mapping[str, str]] = {}
    """llama-server's error messages by path. ``name?``: the field is missing; ``*``: any index."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, body: Any) -> Any:
        if isinstance(body, dict) and None in body.values():
            return {name: value for name, value in body.items() if value is not None}
        return body


def build_validators(base: type[Body] = Body) -> None:
    """Build the validators of all bodies (55 ms), which would delay the first request of each endpoint."""
    for schema in base.__subclasses__():
        schema.model_rebuild()
        build_validators(schema)


B = TypeVar("B", bound=BaseModel)


def parse(schema: type[B], body: object, at: str = "") -> B:
    """Validate `body`, at the path `at`, with `schema`. Raises `InvalidRequest` for the first invalid field."""
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        texts = ChainMap(*(vars(base).get("texts_of_errors", {}) for base in (() if at else schema.__mro__)))
        raise _first_fault(error, body, at, texts) from None


def field_error(name: str, reason: str) -> InvalidRequest:
    """Return an error for the field `name`, which may be a path, in llama-server's format."""
    return InvalidRequest(f"Field '{name}': {reason}", name)


def _first_fault(error: ValidationError, body: object, at: str, texts: Mapping[str, str]) -> InvalidRequest:
    """Return the error of the first invalid field, with the reasons of all its types."""
    faults = error.errors(include_url=False, include_context=False)
    path = _path(faults[0], body)
    key = re.sub(r"\.\d+", ".*", path)
    text = texts.get(f"{key}?" if faults[0]["type"] == "missing" else key)
    if text is not None:
        return InvalidRequest(text, path)
    reasons = [_reason(fault["type"], fault["msg"], fault["input"]) for fault in faults if _path(fault, body) == path]
    reason = ", or ".join(dict.fromkeys(reasons))
    path = ".".join(filter(None, (at, path)))
    return field_error(path, reason) if path else InvalidRequest(f"body: {reason}")


def _path(fault: ErrorDetails, body: object) -> str:
    """Return the path of an error, without the type that pydantic appends for a field with several types."""
    found: list[str] = []
    for part in fault["loc"]:
        missing = fault["type"] == "missing" and part == fault["loc"][-1]
        if isinstance(body, dict) and (part in body or missing):
            body = body.get(part)
        elif isinstance(body, list) and isinstance(part, int):
            body = body[part]
        else:
            break
        found.append(str(part))
    return ".".join(found)


_SUBJECT = re.compile(r"^(?:Input|String|List|Dictionary|Tuple|Set) should ")


def _reason(kind: str, message: str, value: object) -> str:
    if kind == "missing":
        return "is required"
    if kind == "int_type" and isinstance(value, float):
        return f"must be a whole number, got {short_json(value)}"
    if kind in _EXPECTED:
        return f"type must be {_EXPECTED[kind]}, but is {json_type(value)}"
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return "is not permitted"
    shown = "" if isinstance(value, dict | list) else f", got {short_json(value)}"
    return _SUBJECT.sub("must ", message).partition(" after validation")[0].partition(", unable to")[0] + shown


_JSON_TYPES: Mapping[type, str] = {
    **{type(None): "null", bool: "boolean", int: "number", float: "number"},
    **{str: "string", list: "array", dict: "object"},
}


def json_type(value: object) -> str:
    """Return nlohmann::json's name of a JSON value's type."""
    return _JSON_TYPES.get(type(value), type(value).__name__)


def json_kind(value: object) -> str:
    """Return the name of the JSON type of `value` with an article."""
    name = json_type(value)
    if name == "null":
        return name
    return f"an {name}" if name[0] in "ao" else f"a {name}"


def wrong_type(path: str, expected: str, value: object) -> InvalidRequest:
    """Return the error for a value of the wrong type at `path`."""
    return invalid(path, f"must be {expected}, not {json_kind(value)}")


def as_object(value: object, path: str) -> dict[str, Any]:
    """Return the object at `path`. Raises `InvalidRequest`."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    return value


def as_array(value: object, path: str) -> list[Any]:
    """Return the array at `path`. Raises `InvalidRequest`."""
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)
    return value


def objects_in(value: object, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each object of the array at `path`, and its path. Raises `InvalidRequest`."""
    for index, entry in enumerate(as_array(value, path)):
        where = f"{path}.{index}"
        yield as_object(entry, where), where


def string_of(given: Mapping[str, Any], key: str, path: str) -> str:
    """Return the string at `key` of the object at `path`. Raises `InvalidRequest`."""
    value = given.get(key)
    if not isinstance(value, str):
        raise wrong_type(f"{path}.{key}", "a string", value)
    return value


def text_of(given: Mapping[str, Any], key: str, path: str) -> str:
    """Return the string at `key` of the object at `path`; "" if it is null or missing. Raises `InvalidRequest`."""
    return "" if given.get(key) is None else string_of(given, key, path)


def text_in(given: Mapping[str, Any], key: str) -> str:
    """Return the string at `key` of an object, "" for any other value."""
    value = given.get(key)
    return value if isinstance(value, str) else ""


def dicts_in(value: object) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the indices and the objects of a list; nothing for any other value."""
    for index, each in enumerate(value if isinstance(value, list) else ()):
        if isinstance(each, dict):
            yield index, each


def refuse_deep(members: Mapping[str, object]) -> None:
    """Raise `InvalidRequest` for a member that is nested too deeply to be stored and repeated in replies."""
    for path, value in members.items():
        level: list[Any] = [value] if isinstance(value, dict | list) else []
        for _ in range(MAX_LEVELS):
            inner = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
            level = [each for each in inner if isinstance(each, dict | list)]
            if not level:
                break
        if level:
            raise invalid(path, "is nested too deeply")


def json_text(value: object) -> str:
    """Return `value` as JSON text. Raises `InvalidRequest` if it is nested too deeply."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # above 254 levels
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
