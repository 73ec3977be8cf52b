"""Options of LoRA adapters and control vectors."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema

from server.options.table.option import SettingsModel, option
from server.options.table.values import Bool, split_list
from server.pool.spec import ScaledFile

MAX_FILES = 256
MAX_SCALE = 1e6  # as in requests
_FORM = "should be a list of paths, or of mappings of path and scale"


def split_scaled(text: str) -> list[dict[str, str]]:
    """Parse ``FILE:SCALE,...`` of a flag; the last colon separates the scale. Without a colon the scale is empty."""
    pairs = [part.rpartition(":") if ":" in part else (part, ":", "") for part in split_list(text)]
    return [{"path": path, "scale": scale} for path, _, scale in pairs]


def read_scaled_files(value: object) -> tuple[ScaledFile, ...]:
    """Parse a path, or a list of paths and of mappings ``{path: ..., scale: 0.5}``."""
    items = [value] if isinstance(value, (str, Path, Mapping)) else value
    if not isinstance(items, (list, tuple)):
        raise ValueError(_FORM)
    return tuple(_scaled_file(item) for item in items)


def _scaled_file(item: object) -> ScaledFile:
    if isinstance(item, ScaledFile):
        return item
    if isinstance(item, Mapping) and {"path"} <= item.keys() <= {"path", "scale"}:
        return ScaledFile(_path(item["path"]), _scale(item.get("scale", 1.0)))
    return ScaledFile(_path(item))


def _path(value: object) -> Path:
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError(_FORM)
    return Path(value)


def _scale(value: Any) -> float:
    try:
        scale = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        scale = math.nan
    if not abs(scale) <= MAX_SCALE:
        raise ValueError(f"should have a number within {-MAX_SCALE:g} and {MAX_SCALE:g} as scale, as in FILE:0.5")
    return scale


def read_layer_range(value: object) -> object:
    """Parse ``[START, END]``, or both in one string."""
    if not isinstance(value, str):
        return value
    return tuple(value.replace(",", " ").split())


_ONE_FILE = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"path": {"type": "string"}, "scale": {"type": "number"}},
            "required": ["path"],
            "additionalProperties": False,
        },
    ]
}
ScaledFiles = Annotated[
    tuple[ScaledFile, ...],
    BeforeValidator(read_scaled_files),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _ONE_FILE}]}),
    Field(max_length=MAX_FILES),
]
LayerIndex = Annotated[int, Field(ge=-1, le=1 << 20)]
LayerRange = Annotated[
    tuple[LayerIndex, LayerIndex] | None,
    BeforeValidator(read_layer_range),
    WithJsonSchema({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
]


def _files(default: tuple[ScaledFile, ...], flag: str, scaled: str) -> tuple[ScaledFile, ...]:
    """Return an option for files: one flag at scale 1, another one with scales."""
    forms = {scaled: ("FILE:SCALE,...", split_scaled)}
    return option(default, flag, metavar="FILE,...", text=split_list, forms=forms, repeat=True, is_path=True)


class AdapterSettings(SettingsModel):
    """LoRA adapters and control vectors."""

    group: ClassVar[str] = "LoRA adapters and control vectors"

    lora: ScaledFiles = _files((), "--lora", "--lora-scaled")
    """LoRA adapters (GGUF) with scale 1, or with FILE:SCALE (YAML: {path: ..., scale: 0.5}). Their order defines their
    ids in /lora-adapters.
    """
    lora_init_without_apply: Bool = option(False, "--lora-init-without-apply")
    """Load adapters with scale 0; POST /lora-adapters or a request's lora enables them."""
    control_vectors: ScaledFiles = _files((), "--control-vector", "--control-vector-scaled")
    """Control vectors (GGUF), summed; same syntax as lora."""
    control_vector_layer_range: LayerRange = option(
        None, "--control-vector-layer-range", metavar="START END", n_words=2
    )
    """First and last layer of control vectors; empty or 0 = layer 1 to the last."""
