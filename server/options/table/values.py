"""How settings are written: types that read llama-server's spellings as well as YAML's own."""

import csv
import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AllowInfNan, BeforeValidator, Field, WithJsonSchema

from server.engine.request import SAMPLER_LETTERS, SAMPLERS, sampler_named
from server.errors import ConfigError, without_credentials

TRUE = ("on", "enabled", "true", "1")  # llama.cpp common/arg.cpp, is_truthy and is_falsey
FALSE = ("off", "disabled", "false", "0")


def read_bool(value: object) -> bool:
    """``true``/``1``/``on``/``enabled`` and their opposites."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    raise ValueError("should be true or false (also on/off, enabled/disabled, 1/0)")


def read_switch(value: object) -> object:
    """on, off or auto; YAML reads a bare ``on`` as true."""
    text = str(value).strip().lower()
    if text in TRUE:
        return "on"
    if text in FALSE:
        return "off"
    return "auto" if text in ("auto", "-1") else value


def read_on_off(value: object) -> str:
    """As `read_bool`, for llama-server's flags that take the word."""
    return "on" if read_bool(value) else "off"


def read_optional_bool(value: object) -> bool | None:
    """A boolean, or ``auto`` for None."""
    return None if value is None or str(value).lower() == "auto" else read_bool(value)


def read_number(value: object) -> object:
    """Refuse ``true`` where a number belongs: Python would take it for 1."""
    if isinstance(value, bool):
        raise ValueError("should be a number")
    return value


def without_zero(value: int) -> None:
    """Refuse 0 where only -1 and positive numbers mean something."""
    if value == 0:
        raise ValueError("should be -1 or at least 1")


def read_gpu_layers(value: object) -> object:
    """A number, ``auto`` (-1) or ``all`` (-2)."""
    return {"auto": -1, "all": -2}.get(str(value).strip().lower(), read_number(value))


def split_list(text: str) -> list[str]:
    """Parts between commas, stripped, empty ones dropped; quotes protect a comma, as in CSV (parse_csv_row)."""
    try:
        parts = next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:  # a new line outside of quotes
        raise ConfigError(f"a list should be on one line, not {text[:40]!r}") from None
    return [part.strip() for part in parts if part.strip()]


def read_list(value: object) -> object:
    """Text separated by commas, or a list."""
    return tuple(split_list(value)) if isinstance(value, str) else value


def read_proportions(value: object) -> object:
    """``3,1`` or ``3/1``, or a list of numbers."""
    return re.split(r"[,/]+", value) if isinstance(value, str) else value


def read_numbers(value: object) -> object:
    """``1024,512`` or ``1024/512``, one number, or a list of them."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    return read_proportions(value)


def read_samplers(value: object) -> object:
    """``top_k;temperature`` or a list of names; kebab-case and llama-server's short names are understood."""
    if not isinstance(value, (str, list, tuple)):
        raise ValueError("should be a list of sampler names")
    names = [name for name in value.split(";") if name] if isinstance(value, str) else value
    found = [sampler_named(str(name)) for name in names]
    if None in found:
        raise ValueError(f"unknown sampler '{names[found.index(None)]}'; known: {', '.join(SAMPLERS)}")
    return tuple(found)


def read_sampler_chars(value: object) -> object:
    """``edskypmxt``: one letter for each sampler."""
    unknown = [letter for letter in str(value) if letter not in SAMPLER_LETTERS]
    if unknown:
        letters = ", ".join(f"{letter} = {name}" for letter, name in SAMPLER_LETTERS.items())
        raise ValueError(f"unknown letter '{unknown[0]}'; known: {letters}")
    return str(value)


def _bias(item: object) -> tuple[int, float]:
    if isinstance(item, str):
        match = re.fullmatch(r"\s*(\d+)\s*([+-])\s*([0-9.eE+-]+|inf)\s*", item)
        if match:
            return int(match[1]), float(match[2] + match[3])
    elif isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], int) and item[0] >= 0:
        bias = float(item[1])
        if not math.isnan(bias):
            return item[0], bias
    raise ValueError("should be TOKEN_ID+BIAS or TOKEN_ID-BIAS, as in 15043+1")


def read_logit_bias(value: object) -> object:
    """``15043+1`` (several with commas), a list of those or of pairs, or a mapping of token id to bias."""
    if isinstance(value, dict):
        value = list(value.items())
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise ValueError("should be TOKEN_ID+BIAS, or a mapping of token id to bias")
    return tuple(_bias(item) for item in items)


def read_json_object(value: object) -> object:
    """A JSON object as text, or a mapping."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"should be a JSON object: {error}") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError("should be a JSON object")
    return value


def unescape(text: str) -> list[str]:
    r"""``\n``, ``\t`` and the like in a flag become the character, as llama-server does (string_process_escapes)."""
    plain = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
    return [re.sub(r"\\([nrt'\"\\])", lambda match: plain[match[1]], text)]


def read_breakers(value: object) -> object:
    """A list of strings; the word ``none`` empties it, as in llama-server."""
    items = [value] if isinstance(value, str) else value
    if isinstance(items, (list, tuple)) and "none" in items:
        items = items[len(items) - list(reversed(items)).index("none") :]
    return items


_NUMBERS = {"type": "array", "items": {"type": "number"}}
_TEXT_LIST = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_ON_OFF = {"anyOf": [{"enum": ["on", "off", "auto"]}, {"type": "boolean"}]}

Bool = Annotated[bool, BeforeValidator(read_bool)]
AutoBool = Annotated[
    bool | None,
    BeforeValidator(read_optional_bool),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"const": "auto"}, {"type": "null"}]}),
]
Switch = Annotated[Literal["on", "off", "auto"], BeforeValidator(read_switch), WithJsonSchema(_ON_OFF)]
OnOff = Annotated[
    Literal["on", "off"],
    BeforeValidator(read_on_off),
    WithJsonSchema({"anyOf": [{"enum": ["on", "off"]}, {"type": "boolean"}]}),
]
Int = Annotated[int, BeforeValidator(read_number)]
Float = Annotated[float, BeforeValidator(read_number)]
GpuLayers = Annotated[
    int,
    BeforeValidator(read_gpu_layers),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": -2}, {"enum": ["auto", "all"]}]}),
]
TextList = Annotated[tuple[str, ...], BeforeValidator(read_list), WithJsonSchema(_TEXT_LIST)]
Proportions = Annotated[
    tuple[float, ...],
    BeforeValidator(read_proportions),
    WithJsonSchema({"anyOf": [{"type": "string"}, _NUMBERS]}),
]
Sizes = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...],
    BeforeValidator(read_numbers),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}, _NUMBERS]}),
]
Samplers = Annotated[tuple[str, ...], BeforeValidator(read_samplers), WithJsonSchema(_TEXT_LIST)]
SamplerChars = Annotated[str, BeforeValidator(read_sampler_chars)]
LogitBias = Annotated[
    tuple[tuple[int, Annotated[float, AllowInfNan()]], ...],
    BeforeValidator(read_logit_bias),
    WithJsonSchema({"type": ["string", "object", "array"]}),
]
JsonObject = Annotated[dict[str, Any], BeforeValidator(read_json_object), WithJsonSchema({"type": "object"})]
Breakers = Annotated[tuple[str, ...], BeforeValidator(read_breakers), WithJsonSchema(_TEXT_LIST)]
FilePath = Annotated[Path, WithJsonSchema({"type": "string"})]


def read_place(value: object) -> object:
    """A folder, or the address of one elsewhere, which stays a text."""
    return value if value is None or is_address(value) else Path(str(value))


def is_address(value: object) -> bool:
    """Whether it is such as s3://bucket/folder."""
    return isinstance(value, str) and "://" in value


def without_secrets(value: str) -> str:
    """A text as others may see it: without the credentials of the address that it is."""
    return without_credentials(value) if is_address(value) and not re.search(r"\s", value) else value


Place = Annotated[Path | str, BeforeValidator(read_place), WithJsonSchema({"type": "string"})]
