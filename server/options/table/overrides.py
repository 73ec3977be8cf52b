"""Options that place tensors and override metadata, in llama-server's syntax (llama.cpp common/arg.cpp,
parse_tensor_buffer_overrides; common/common.cpp, string_parse_kv_override).
"""

import math
import re
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema

from server.options.table.option import SettingsModel, option
from server.options.table.values import Bool, Int, split_list
from server.pool.spec import MetadataOverride, TensorOverride
from server.pool.tensor_patterns import check_pattern

MAX_TEXT = 127  # bytes of a key or a text value (llama.h, llama_model_kv_override)
MAX_LAYERS = 10_000
_PLACE = "should be PATTERN=BUFFER_TYPE, as in exps=CPU"
_VALUE = "should be KEY=TYPE:VALUE with one of the types int, float, bool, str"
_FILE_KEYS = ("general.architecture", "general.alignment", "split.")
_VOCABULARY = "tokenizer.ggml.model"  # another one than the tokens are made for ends the process


def _items(value: object, form: str) -> list[str]:
    """Split strings separated by commas, or a list of such strings."""
    items = split_list(value) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise ValueError(form)
    return list(items)


def tensor_override(text: str) -> TensorOverride:
    """Parse ``PATTERN=BUFFER_TYPE``; the pattern is an ECMAScript regular expression searched in tensor names.

    Raises ValueError, see `check_pattern`.
    """
    pattern, equals, buffer_type = text.rpartition("=")
    if not (equals and pattern and buffer_type):
        raise ValueError(_PLACE)
    check_pattern(pattern)
    return TensorOverride(pattern, buffer_type)


def metadata_override(text: str) -> MetadataOverride:
    """Parse ``KEY=TYPE:VALUE``. Raises ValueError."""
    key, equals, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    if not (equals and colon and key):
        raise ValueError(_VALUE)
    if len(key.encode()) > MAX_TEXT:
        raise ValueError(f"has a key of more than {MAX_TEXT} bytes")
    if key.startswith(_FILE_KEYS):
        raise ValueError(f"has '{key}', which says how the file is to be read; it can't be overruled")
    if key == _VOCABULARY:
        raise ValueError(f"has '{key}', which says how the tokens are to be read; it can't be overruled")
    return MetadataOverride(key, _typed(key, kind, value))


def _typed(key: str, kind: str, value: str) -> int | float | str:
    if kind == "int" and re.fullmatch(r"[+-]?\d{1,18}", value):
        return int(value)
    if kind == "float":
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
    if kind == "bool" and value in ("true", "false"):
        return value == "true"
    if kind == "str":
        if len(value.encode()) > MAX_TEXT or "\0" in value:
            raise ValueError(f"has a text of more than {MAX_TEXT} bytes for '{key}'")
        return value
    if kind in ("int", "float", "bool"):
        raise ValueError(f"has '{value}' for '{key}', which is no {kind}")
    raise ValueError(f"has the type '{kind}' for '{key}'; {_VALUE}")


def read_tensor_overrides(value: object) -> tuple[str, ...]:
    """Check and split tensor overrides. Raises ValueError."""
    items = _items(value, _PLACE)
    for item in items:
        tensor_override(item)
    return tuple(items)


def read_metadata_overrides(value: object) -> tuple[str, ...]:
    """Check and split metadata overrides; keys must be unique. Raises ValueError."""
    items = _items(value, _VALUE)
    keys = [metadata_override(item).key for item in items]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ValueError(f"has '{twice}' twice")
    return tuple(items)


_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_MAX_ITEMS = 1024
TensorOverrides = Annotated[
    tuple[str, ...], BeforeValidator(read_tensor_overrides), WithJsonSchema(_TEXTS), Field(max_length=_MAX_ITEMS)
]
MetadataOverrides = Annotated[
    tuple[str, ...], BeforeValidator(read_metadata_overrides), WithJsonSchema(_TEXTS), Field(max_length=_MAX_ITEMS)
]


class OverrideSettings(SettingsModel):
    """Placement of tensors, and overrides of the file's metadata."""

    group: ClassVar[str] = "Tensors and metadata"

    override_tensor: TensorOverrides = option(
        (), "-ot --override-tensor", env=True, metavar="PATTERN=TYPE,...", text=split_list, repeat=True
    )
    """Buffer type (CPU or a device) for tensors whose name matches a regular expression, e.g. exps=CPU. The first match
    applies, before the options below. After a group only ? is allowed, and repetitions are limited.
    """
    cpu_moe: Bool = option(False, "-cmoe --cpu-moe", env=True)
    """Keep all expert (MoE) weights on the CPU."""
    n_cpu_moe: Int = option(0, "-ncmoe --n-cpu-moe", env=True, ge=0, le=MAX_LAYERS)
    """Keep the expert weights of the first N layers on the CPU."""
    n_cpu_ffn: Int = option(0, "-ncffn --n-cpu-ffn", env=True, ge=0, le=MAX_LAYERS)
    """Keep the dense feed-forward weights of the first N layers on the CPU."""
    no_host: Bool = option(False, "--no-host", env=True)
    """Do not use host buffers of devices, so that weights there can be repacked."""
    override_kv: MetadataOverrides = option(
        (), "--override-kv", metavar="KEY=TYPE:VALUE,...", text=split_list, repeat=True
    )
    """Override metadata of the file; types int, float, bool and str, e.g. tokenizer.ggml.add_bos_token=bool:false.
    Values known to abort llama.cpp are refused, but other values may still abort it.
    """
