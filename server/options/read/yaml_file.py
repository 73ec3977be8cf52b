"""Reads the YAML configuration: every value with the line it stands on, every unknown key refused."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path
from typing import Any

import yaml

from server.errors import ConfigError
from server.options.read.layers import SourcedValue
from server.options.table.option import Section, Table, nearest
from server.options.table.values import is_address

_SECTIONS = ("server", "defaults", "models")


@dataclass(slots=True)
class YamlFile:
    """What the file says; empty without a file. ``places`` has the line of each model."""

    name: str = "no configuration file"
    server: dict[str, SourcedValue] = field(default_factory=dict)
    defaults: dict[str, SourcedValue] = field(default_factory=dict)
    models: dict[str, dict[str, SourcedValue]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Item:
    key: str
    node: yaml.Node
    place: str


class _Reader:
    """Walks the three levels of the file that have fixed keys."""

    def __init__(self, table: Table, path: Path, model_only: frozenset[str]) -> None:
        self._table = table
        self._path = path
        self._model_only = model_only
        self._loader = yaml.SafeLoader(_text(path))
        self.document = YamlFile(str(path))

    def read(self) -> YamlFile:
        try:
            root = self._loader.get_single_node()
            if root is not None:
                self._root(root)
        except yaml.YAMLError as error:
            raise ConfigError(_yaml_mistake(self._path, error)) from None
        finally:
            self._loader.dispose()
        return self.document

    def _root(self, root: yaml.Node) -> None:
        for item in self._items(root, "the file", str(self._path)):
            if item.key == "server":
                self.document.server = self._fields("server", item.node, "server", item.place)
            elif item.key == "defaults":
                self.document.defaults = self._fields("model", item.node, "defaults", item.place)
                self._refuse_model_only()
            elif item.key == "models":
                self._models(item)
            else:
                hint = nearest(item.key, list(_SECTIONS), f"; known: {', '.join(_SECTIONS)}")
                raise ConfigError(f"{item.place}: unknown key '{item.key}'{hint}")

    def _models(self, models: _Item) -> None:
        for item in self._items(models.node, "models", models.place):
            self.document.places[item.key] = item.place
            self.document.models[item.key] = self._fields("model", item.node, f"models.{item.key}", item.place)

    def _refuse_model_only(self) -> None:
        for key, given in self.document.defaults.items():
            if key in self._model_only:
                raise ConfigError(f"{given.source}: defaults.{key} belongs to one model; move it to models.<id>")

    def _fields(self, section: Section, node: yaml.Node, where: str, place: str) -> dict[str, SourcedValue]:
        layer: dict[str, SourcedValue] = {}
        for item in self._items(node, where, place):
            entry = self._table.entries.get((section, item.key))
            if entry is None:
                raise ConfigError(f"{item.place}: unknown key '{where}.{item.key}'{self._hint(section, item.key)}")
            value = self._loader.construct_object(item.node, deep=True)
            if entry.option.is_path:
                try:
                    value = self._from_here(value)
                except (RuntimeError, ValueError):  # of nobody; of a name with a NUL
                    raise ConfigError(f"{item.place}: {where}.{item.key} begins with ~ and no user's name") from None
            layer[item.key] = SourcedValue(value, item.place)
        return layer

    def _from_here(self, value: Any) -> Any:
        """Paths relative to the file's folder: one, several, or those of mappings with a ``path``."""
        if is_address(value):
            return value
        if isinstance(value, str) and value:
            return Path(normpath(self._path.parent.resolve() / Path(value).expanduser()))
        if isinstance(value, list):
            return [self._from_here(item) for item in value]
        if isinstance(value, dict) and "path" in value:
            return {**value, "path": self._from_here(value["path"])}
        return value

    def _hint(self, section: Section, key: str) -> str:
        entry = self._table.by_flag.get("--" + key.replace("_", "-")) or self._table.by_flag.get("-" + key)
        if entry is not None and entry.section == section:
            return f"; did you mean '{entry.key}'?"
        other: Section = "model" if section == "server" else "server"
        entry = entry or self._table.entries.get((other, key))
        if entry is not None:
            home = "server" if entry.section == "server" else "models.<id> or defaults"
            return f"; '{entry.key}' belongs to {home}"
        return nearest(key, self._table.keys(section), "; see docs/configuration.md")

    def _items(self, node: yaml.Node, where: str, place: str) -> Iterator[_Item]:
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
            return
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{place}: {where} should be a mapping of keys to values")
        self._loader.flatten_mapping(node)
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key: Any = self._loader.construct_object(key_node, deep=True)
            at = f"{self._path}:{key_node.start_mark.line + 1}"
            if not isinstance(key, str) or not key:
                raise ConfigError(f'{at}: the key {key!r} in {where} is not text; write "{key}" in quotes')
            if key in seen:
                raise ConfigError(f"{at}: '{key}' appears twice in {where}; remove one")
            seen.add(key)
            yield _Item(key, value_node, at)


def read_yaml(table: Table, path: Path, model_only: frozenset[str]) -> YamlFile:
    """The configuration in `path`; paths in it become absolute, relative to its folder.

    Raises ConfigError with one line: file, line, key and remedy.
    """
    return _Reader(table, path, model_only).read()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; check --config and LLAMAPOOL_CONFIG") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _yaml_mistake(path: Path, error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        context = f" {error.context}" if error.context else ""
        problem = error.problem or ""
        remedy = ""
        if "'\\t'" in problem:
            remedy = "; indent with spaces, not tabs"
        elif "<block " in problem:
            remedy = "; check the indentation of this line and of those around it"
        return f"{path}:{mark.line + 1}: invalid YAML:{context} {problem} (column {mark.column + 1}){remedy}"
    return f"{path}: invalid YAML: {' '.join(str(error).split())}"
