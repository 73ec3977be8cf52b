"""Field types of request bodies, and pydantic's findings as one `InvalidRequest` that names the field."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from server.errors import InvalidRequest

INT32_MAX = 2**31 - 1
MAX_MAGNITUDE = 1e6
"""Largest absolute value of a sampling number: far past any use, far from float32's overflow."""
_SHOWN_CHARS = 60


def _whole_number(value: object) -> object:
    """Accept 40.0 for 40: JSON knows one kind of number, and llama-server converts it too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole_number)]
Int32 = Annotated[Whole, Field(ge=-INT32_MAX - 1, le=INT32_MAX)]
Count = Annotated[Whole, Field(ge=0, le=INT32_MAX)]
CountOrAll = Annotated[Whole, Field(ge=-1, le=INT32_MAX)]
Number = Annotated[float, Field(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=MAX_MAGNITUDE, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=MAX_MAGNITUDE, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Body(BaseModel):
    """Base of request schemas: no coercion (a string is no number, a boolean no integer), null = absent."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, body: Any) -> Any:
        if isinstance(body, dict) and None in body.values():
            return {name: value for name, value in body.items() if value is not None}
        return body


B = TypeVar("B", bound=Body)


def parse(schema: type[B], body: object) -> B:
    """`body` as `schema`. Raises `InvalidRequest` for the first field that is wrong."""
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        raise _first_fault(error) from None


def _first_fault(error: ValidationError) -> InvalidRequest:
    fault = error.errors(include_url=False, include_context=False)[0]
    path = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "missing":
        return InvalidRequest(f"{path}: is required", path)
    reason = fault["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    shown = "" if isinstance(fault["input"], dict | list) else f", got {_shown(fault['input'])}"
    return InvalidRequest(f"{path or 'body'}: {reason}{shown}", path or None)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def json_kind(value: object) -> str:
    """What JSON calls the type of `value`, for messages."""
    if value is None:
        return "null"
    kinds: dict[type, str] = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return kinds.get(type(value), type(value).__name__)


def wrong_type(path: str, wanted: str, value: object) -> InvalidRequest:
    """The error for a value of the wrong type at `path`."""
    return InvalidRequest(f"{path}: must be {wanted}, not {json_kind(value)}", path)
