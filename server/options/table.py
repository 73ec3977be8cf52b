"""The option table: all options by field, flag and variable, and the known name that a wrong one means."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from typing import get_args

from server.options.model import ModelSettings
from server.options.option import Layer, Option, Section, SettingsModel
from server.options.server import ServerSettings
from server.options.values import FilePath, Place


def _rows(section: Section, owner: type[SettingsModel]) -> Iterator[Option]:
    lineage = (cls for cls in reversed(owner.__mro__) if issubclass(cls, SettingsModel))
    groups = {key: cls.group for cls in lineage for key in inspect.get_annotations(cls)}
    for key, info in owner.model_fields.items():
        found = next(item for item in info.metadata if isinstance(item, Option))
        is_switch = info.annotation is bool or (info.annotation == (bool | None))
        is_path = found.is_path or any(kind in (FilePath, Place) for kind in get_args(info.annotation))
        name = key.replace("_", "-")
        yield replace(
            found,
            flags=(*(found.flags or (f"--{name}",)), *found.forms),
            constants=found.constants if found.flags or not is_switch else {**found.constants, f"--no-{name}": False},
            metavar=found.metavar or "FILE" * is_path,
            is_path=is_path,
            owner=owner,
            section=section,
            key=key,
            group=groups[key],
            default=info.get_default(call_default_factory=True),
            is_switch=is_switch,
        )


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


class Table:
    """All options, indexed by field, by flag and by variable."""

    def __init__(self) -> None:
        rows = (*_rows("server", ServerSettings), *_rows("model", ModelSettings))
        self.entries = {(row.section, row.key): row for row in rows}

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
    def _by_spelling(self) -> dict[str, dict[Section, Option]]:
        found: dict[str, dict[Section, Option]] = {}
        spellings = [(flag, entry) for entry in self for flag in entry.flags]  # the strongest
        spellings += [(name, row) for row in self for name in (row.key, *row.also.split(), *row.constants)]
        for name, entry in spellings:
            found.setdefault(_plain(name), {}).setdefault(entry.section, entry)
        return found

    def meant_by(self, word: str, section: Section | None = None) -> Option | None:
        """Return the option that is called `word` as a flag, as a field or in other servers; rather of `section`."""
        found = self._by_spelling.get(_plain(word), {})
        return found[section] if section in found else next(iter(found.values()), None)

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


def hint(section: Section, key: str) -> str:
    """Return what a field that `section` does not have probably means."""
    entry = TABLE.meant_by(key, section)
    if entry is None:
        return nearest(key, TABLE.keys(section), "; see docs/configuration.md")
    if entry.section == section:
        return f"; did you mean '{entry.key}'?"
    return f"; '{entry.key}' belongs to {'server' if section == 'model' else 'models.<id> or defaults'}"


def visible(section: Section, layer: Layer, stronger: Iterable[str]) -> Layer:
    """Return the values of `layer` whose fields no `stronger` field equals or replaces."""
    hidden = {*stronger, *(name for key in stronger for name in TABLE.entries[section, key].replaces)}
    return {key: given for key, given in layer.items() if key not in hidden}
