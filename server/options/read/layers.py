"""Values with their origin, laid over each other, and the line that says what is wrong with one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import ErrorDetails

from server.errors import without_credentials
from server.options.table.option import Option, OptionRow, Section, SettingsModel, Table, descriptions
from server.options.table.values import without_secrets


@dataclass(frozen=True, slots=True)
class SourcedValue:
    """What one source says of one field; ``source`` is a flag, a variable, or ``file:line``."""

    value: Any
    source: str


Layer = Mapping[str, SourcedValue]
"""Field name -> what was given."""


def laid_over(table: Table, section: Section, *layers: Layer) -> dict[str, SourcedValue]:
    """One layer out of several, the weakest first."""
    merged: dict[str, SourcedValue] = {}
    for layer in layers:
        dropped = {name for key in layer for name in table.entries[section, key].option.replaces}
        merged = {key: given for key, given in merged.items() if key not in dropped}
        merged.update(layer)
    return merged


def from_text(entry: OptionRow, text: str, flag: str = "") -> Any:
    """What a variable's text stands for, or that of `flag`."""
    forms = {**{name: reader for name, (_, reader) in entry.option.forms.items()}, **entry.option.env_forms}
    reader = forms.get(flag, entry.option.text)
    return reader(text) if reader else text


def mistake(details: ErrorDetails, where: str, layer: Layer, fallback: str, model: type[SettingsModel]) -> str:
    """The line for what pydantic found in section ``where``: its source, the key and the remedy.

    ``details["loc"]`` is relative to the section; ``fallback`` names the source of what nobody gave.
    """
    message = details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not details["loc"]:  # about several fields together
        named = [given.source for key, given in layer.items() if re.search(rf"\b{key}\b", message)]
        return f"{', '.join(dict.fromkeys(named)) or fallback}: {where}: {message}"
    key = str(details["loc"][0])
    if details["type"] == "missing":
        return f"{fallback}: {where}.{key} is missing; {descriptions(model)[key]}"
    given = layer[key]
    if details["type"] == "extra_forbidden":
        return f"{given.source}: {where}.{key} belongs to one model; set models.<id>.{key}"
    of = [item for item in model.model_fields[key].metadata if isinstance(item, Option)]
    words = str(given.value) if isinstance(given.value, str | Path) else given.value
    if isinstance(words, str):  # of what should be an address, but has no beginning, a password may be left, too
        words = without_credentials(words) if any(item.metavar == "URL" for item in of) else without_secrets(words)
    shown = repr(words)
    if any(item.secret for item in of):
        shown = "a value that is not shown"
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{given.source}: {where}.{key} {message[0].lower()}{message[1:]}, not {shown}"
