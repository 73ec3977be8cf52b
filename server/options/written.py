"""A model's settings written back as flags and as a section of a preset, for ``GET /models``."""

from collections.abc import Iterator
from typing import Any

import orjson

from server.options.read.presets import LOAD_ON_STARTUP
from server.options.table.model import ModelSettings
from server.options.table.option import OptionRow, Table
from server.options.table.values import without_secrets
from server.pool.spec import ScaledFile


def flags_of(table: Table, settings: ModelSettings) -> list[str]:
    """The words of a command line that would serve this model alone."""
    return [word for entry, value in _given(table, settings) for word in _words(entry, value)]


def preset_of(table: Table, model_id: str, settings: ModelSettings) -> str:
    """Its section, as llama-server writes them (llama.cpp common/preset.cpp, to_ini)."""
    given = {_name(entry).lstrip("-"): _text(value) for entry, value in _given(table, settings)}
    if "load" in given:  # which has another name there
        given[LOAD_ON_STARTUP] = str(given.pop("load") == "startup").lower()
    lines = [f"{key} = {value}" for key, value in given.items()]
    return "\n".join([f"[{model_id}]", *lines, ""])


def _given(table: Table, settings: ModelSettings) -> Iterator[tuple[OptionRow, Any]]:
    """What differs from the defaults. Not its names: they are shown by themselves."""
    for key in table.keys("model"):
        entry, value = table.entries["model", key], getattr(settings, key)
        if key not in ("aliases", "tags") and value != entry.default:
            yield entry, value


def _name(entry: OptionRow) -> str:
    """The spelling that says most: the last long one."""
    plain = [flag for flag in entry.flags if flag not in entry.option.forms]
    return next((flag for flag in reversed(plain) if flag.startswith("--")), plain[-1])


def _words(entry: OptionRow, value: Any) -> Iterator[str]:
    if not entry.is_switch:
        yield from (_name(entry), *(_text(value).split(" ") if entry.option.n_words > 1 else (_text(value),)))
    elif value:
        yield _name(entry)
    else:
        yield from [flag for flag, constant in entry.constants.items() if constant is False][:1]


def _text(value: Any) -> str:
    """As a flag's value is written; clients may read it (GET /models)."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, ScaledFile):
        return str(value.path) if value.scale == 1 else f"{value.path}:{value.scale:g}"
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    if isinstance(value, dict):
        return orjson.dumps(value).decode()
    return without_secrets(str(value)).replace("\n", "\\n")
