"""The option table: all options by field, flag and variable, and merging the values of several sources."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from typing import get_args

from pydantic.fields import FieldInfo

from server.options.model import ModelSettings
from server.options.option import Layer, Option, Section, SettingsModel, SourcedValue
from server.options.server import ServerSettings
from server.options.values import FilePath, Place


def _row(section: Section, owner: type[SettingsModel], key: str, info: FieldInfo) -> Option:
    found = next(item for item in info.metadata if isinstance(item, Option))
    lineage = [cls for cls in owner.__mro__ if issubclass(cls, SettingsModel)]
    is_switch = info.annotation is bool or (info.annotation == (bool | None))
    is_path = found.is_path or any(kind in (FilePath, Place) for kind in get_args(info.annotation))
    name = key.replace("_", "-")
    return replace(
        found,
        flags=(*(found.flags or (f"--{name}",)), *found.forms),
        constants=found.constants if found.flags or not is_switch else {**found.constants, f"--no-{name}": False},
        metavar=found.metavar or "FILE" * is_path,
        is_path=is_path,
        owner=owner,
        section=section,
        key=key,
        group=next(cls.group for cls in lineage if key in inspect.get_annotations(cls)),
        default=info.get_default(call_default_factory=True),
        is_switch=is_switch,
    )


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


class Table:
    """All options, indexed by field, by flag and by variable."""

    def __init__(self) -> None:
        owners: dict[Section, type[SettingsModel]] = {"server": ServerSettings, "model": ModelSettings}
        self.entries = {
            (section, key): _row(section, owner, key, info)
            for section, owner in owners.items()
            for key, info in owner.model_fields.items()
        }

    def keys(self, section: Section) -> list[str]:
        return [key for owner, key in self.entries if owner == section]

    @cached_property
    def by_flag(self) -> dict[str, Option]:
        return {flag: entry for entry in self for flag in (*entry.flags, *entry.constants)}

    @cached_property
    def by_env(self) -> dict[str, Option]:
        """Every variable that llama-server has too."""
        return {name: entry for entry in self for name in (entry.env, *entry.env_forms) if name}

    @cached_property
    def _by_spelling(self) -> dict[str, Option]:
        names = {_plain(name): entry for entry in self for name in (*entry.constants, *entry.also.split(), entry.key)}
        return names | {_plain(flag): entry for entry in self for flag in entry.flags}

    def meant_by(self, word: str) -> Option | None:
        """Return the option that is called `word` as a field, as a flag or in other servers."""
        return self._by_spelling.get(_plain(word))

    def __iter__(self) -> Iterator[Option]:
        return iter(self.entries.values())


TABLE = Table()


def nearest(word: str, known: Sequence[str], otherwise: str) -> str:
    """Return ``; did you mean 'x'?`` with the known word for the same option, or the most similar one; `otherwise` if
    there is neither.
    """
    meant, is_flag = TABLE.meant_by(word), word.startswith("-")  # a word alone is no flag
    same = [name for name in known if meant and TABLE.meant_by(name) is meant and name.startswith("-") == is_flag]
    if meant:  # those with another kind of value, or none, only if they were meant
        others = {_plain(name) for name in (*meant.forms, *meant.constants)}
        same.sort(key=lambda name: (_plain(name) != _plain(word), _plain(name) in others, -len(name)))
    by_lower = {name.lower(): name for name in known}
    similar = get_close_matches(word.lower(), by_lower, n=3, cutoff=0.6)
    similar.sort(key=lambda name: sorted(name) != sorted(word.lower()))  # prefer swapped letters
    found = same or [by_lower[name] for name in similar]
    return f"; did you mean '{found[0]}'?" if found else otherwise


def merge_layers(section: Section, *layers: Layer) -> dict[str, SourcedValue]:
    """Merge layers, the strongest first. A value hides the weaker values of its field and of those that it replaces."""
    merged: dict[str, SourcedValue] = {}
    hidden: set[str] = set()
    for layer in layers:
        merged |= {key: value for key, value in layer.items() if key not in hidden}
        hidden.update(layer, *(TABLE.entries[section, key].replaces for key in layer))
    return merged
