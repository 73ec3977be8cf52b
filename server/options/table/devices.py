"""Which devices compute a model, in llama-server's spelling (llama.cpp common/arg.cpp, parse_device_list); beyond it,
semicolons stand between the sets of several instances."""

from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

AUTO, NONE = "auto", "none"
_FORM = (
    "should be names with commas between them, auto or none; for several instances semicolons between the sets, "
    "or a list with one text for each"
)


def read_device_sets(value: object) -> tuple[str, ...]:
    """``CUDA0,CUDA1``: one set; ``CUDA0;CUDA1`` or a list: one for each instance. Raises ValueError."""
    items = value.split(";") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not items:
        raise ValueError(_FORM)
    return tuple(map(_one_set, items))


def read_one_device_set(value: object) -> tuple[str, ...]:
    """As `read_device_sets`, for what is not set by instance."""
    sets = read_device_sets(value)
    if len(sets) > 1:
        raise ValueError("should be one set of devices, with commas between the names")
    return sets


def _one_set(text: object) -> str:
    if not isinstance(text, str):
        raise ValueError(_FORM)
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError("has an empty name; " + _FORM)
    for word in (AUTO, NONE):
        if word in names and len(names) > 1:
            raise ValueError(f"has '{word}' beside other names; it stands alone")
    return ",".join(names)


def device_sets(texts: tuple[str, ...]) -> tuple[tuple[str, ...] | None, ...]:
    """The names of each set: none of them for ``none``, None for ``auto``."""
    special: dict[str, tuple[str, ...] | None] = {AUTO: None, NONE: ()}
    return tuple(special[text] if text in special else tuple(text.split(",")) for text in texts)


_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
DeviceSets = Annotated[tuple[str, ...], BeforeValidator(read_device_sets), WithJsonSchema(_SCHEMA)]
OneDeviceSet = Annotated[tuple[str, ...], BeforeValidator(read_one_device_set), WithJsonSchema(_SCHEMA)]
