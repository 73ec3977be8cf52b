"""Device options in llama-server's syntax (llama.cpp common/arg.cpp, parse_device_list), extended by semicolons between
the sets of several instances.
"""

from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

AUTO, NONE = "auto", "none"
_FORM = (
    "should be names with commas between them, auto or none; for several instances semicolons between the sets, "
    "or a list with one text for each"
)


def read_device_sets(value: object) -> tuple[str, ...]:
    """Parse ``CUDA0,CUDA1`` (one set), ``CUDA0;CUDA1`` or a list (one set per instance). Raises ValueError."""
    items = value.split(";") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not items:
        raise ValueError(_FORM)
    return tuple(map(_one_set, items))


def read_one_device_set(value: object) -> tuple[str, ...]:
    """Parse a single set of devices. Raises ValueError."""
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
            raise ValueError(f"combines '{word}' with other names; use it alone")
    return ",".join(names)


def device_sets(texts: tuple[str, ...]) -> tuple[tuple[str, ...] | None, ...]:
    """Return the device names of each set: empty for ``none``, None for ``auto``."""
    special: dict[str, tuple[str, ...] | None] = {AUTO: None, NONE: ()}
    return tuple(special[text] if text in special else tuple(text.split(",")) for text in texts)


_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
DeviceSets = Annotated[tuple[str, ...], BeforeValidator(read_device_sets), WithJsonSchema(_SCHEMA)]
OneDeviceSet = Annotated[tuple[str, ...], BeforeValidator(read_one_device_set), WithJsonSchema(_SCHEMA)]
