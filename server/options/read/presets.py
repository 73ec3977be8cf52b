"""Turns the keys of a preset section into options (llama.cpp common/preset.cpp, load_from_ini)."""

from collections.abc import Sequence

from server.errors import ConfigError
from server.options.read.layers import SourcedValue, from_text
from server.options.table.option import OptionRow, Table, nearest
from server.options.table.values import read_bool
from server.options.unsupported import (
    DEAD_FLAGS,
    DEAD_VARIABLES,
    FIXED_FLAGS,
    FIXED_VARIABLES,
    FLAGS,
    VARIABLES,
    Fixed,
    dead,
    refusal,
)
from server.pool.catalogue import PresetKey

LOAD_ON_STARTUP = "load-on-startup"
DEDUP_CACHE = "dedup-cache-models"


def preset_layer(table: Table, section: str, keys: Sequence[PresetKey], skipped: list[str]) -> dict[str, SourcedValue]:
    """What a section says of a model; a line in `skipped` for each key that has no effect.

    Raises ConfigError naming file, line, section and key.
    """
    layer: dict[str, SourcedValue] = {}
    for item in keys:
        if item.key in ("version", DEDUP_CACHE):
            continue
        if item.key == LOAD_ON_STARTUP:
            startup = _bool(section, item)
            layer["load"] = SourcedValue("startup" if startup else "on_demand", item.place)
        elif _fixed(section, item, skipped):
            continue
        elif {"--" + item.key, "-" + item.key} & DEAD_FLAGS or item.key in DEAD_VARIABLES:
            skipped.append(f"{item.place}: [{section}] {dead(item.key)}")
        else:
            entry, value = _option(table, section, item)
            if entry.option.forms and entry.key in layer and isinstance(value, list):  # lora and lora-scaled
                value = [*layer[entry.key].value, *value]
            layer[entry.key] = SourcedValue(value, item.place)
    return layer


def hides_cached(section: str, keys: Sequence[PresetKey]) -> bool:
    """Whether a section wants the same file of the cache not listed a second time. Raises ConfigError."""
    return any(_bool(section, item) for item in keys if item.key == DEDUP_CACHE)


def _option(table: Table, section: str, item: PresetKey) -> tuple[OptionRow, object]:
    flag = _spelling(table, item.key)
    entry = table.by_flag[flag] if flag else table.by_env.get(item.key)
    if entry is None:
        raise ConfigError(f"{item.place}: [{section}] {_unknown(table, item.key)}")
    if entry.section == "server":
        raise ConfigError(f"{item.place}: [{section}] '{item.key}' is the server's, not a model's; remove it")
    if entry.is_switch:
        given = _bool(section, item)
        return entry, not given if entry.constants.get(flag) is False else given
    if flag in entry.constants:
        return entry, entry.constants[flag]
    return entry, from_text(entry, item.value, flag)


def _spelling(table: Table, key: str) -> str:
    return next((flag for flag in ("--" + key, "-" + key) if flag in table.by_flag), "")


def _bool(section: str, item: PresetKey) -> bool:
    try:
        return read_bool(item.value)
    except ValueError as error:
        raise ConfigError(f"{item.place}: [{section}] {item.key} {error}, not '{item.value}'") from None


def _fixed(section: str, item: PresetKey, skipped: list[str]) -> bool:
    found: tuple[Fixed, bool] | None = FIXED_FLAGS.get("--" + item.key) or FIXED_FLAGS.get("-" + item.key)
    if found is None and item.key in FIXED_VARIABLES:
        found = FIXED_VARIABLES[item.key], True
    if found is None:
        return False
    fixed, means = found
    if (_bool(section, item) is means) is not fixed.value:
        skipped.append(fixed.refuse(f"{item.place}: [{section}] '{item.key}'", "remove it"))
    return True


def _unknown(table: Table, key: str) -> str:
    if {"--" + key, "-" + key} & FLAGS or key in VARIABLES:
        return refusal(f"'{key}'", "remove it")
    known = [flag.lstrip("-") for flag, entry in table.by_flag.items() if entry.section == "model"]
    return f"unknown key '{key}'" + nearest(key, [*known, LOAD_ON_STARTUP], "; see docs/configuration.md")
