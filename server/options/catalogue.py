"""Finds models on disk as llama-server lays them out (llama.cpp common/preset.cpp): folders of GGUFs, presets.

A folder given as ``--models-dir``::

    models/
    ├── demo.gguf                      one file: id "demo"
    ├── gemma/                         id "gemma"
    │   ├── gemma-Q8_0.gguf
    │   └── mmproj-F16.gguf            its multimodal projector
    └── kimi/                          id "kimi"
        ├── kimi-00001-of-00002.gguf   a split model
        └── kimi-00002-of-00002.gguf
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from server.errors import ConfigError
from server.hub.choice import parts_of

_DRAFT_PREFIXES = ("mtp-", "dspark-", "dflash-")
GLOBAL_SECTION = "*"


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model found in a folder; ``problem`` says why it cannot be loaded."""

    id: str
    path: Path
    mmproj: Path | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PresetKey:
    """One line ``key = value``; ``place`` is ``file:line``."""

    key: str
    value: str
    place: str


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset file: section name -> its keys, in order; ``[*]`` apart, it holds for every section."""

    path: Path
    sections: dict[str, list[PresetKey]] = field(default_factory=dict)
    common: list[PresetKey] = field(default_factory=list)


def scan_models_dir(path: Path) -> list[CatalogueEntry]:
    """Return the models of a folder. Raises ConfigError when it is not a folder that can be read."""
    if not path.is_dir():
        raise ConfigError(f"{path}: is not a folder; give --models-dir a folder that contains GGUF files")
    try:
        found = [entry for child in sorted(path.iterdir()) for entry in _entries(child)]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    by_id: dict[str, CatalogueEntry] = {}
    for entry in found:
        if entry.id in by_id:
            raise ConfigError(f"{path}: '{entry.id}' is both a file and a folder; rename one")
        by_id[entry.id] = entry
    return list(by_id.values())


def problem_of(path: Path) -> str:
    """Return why the GGUF at `path` cannot be loaded, judged by its name and first bytes; empty if it can."""
    if not path.exists():
        return f"no such file: {path}; check the path"
    if not path.is_file():
        return f"is not a file: {path}; name the GGUF in it"
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        return f"cannot be read: {path}: {error.strerror}"
    if magic != b"GGUF":
        return f"is not a GGUF file: {path}; download it again, or convert the model"
    split = parts_of(path.name)
    if split is None or split.count == 1:
        return ""
    if split.index != 1:
        return f"is part {split.index} of a split model, name its first part: {path}"
    names = (f"{split.prefix}-{part:05d}-of-{split.count:05d}.gguf" for part in range(1, split.count + 1))
    missing = [name for name in names if not path.with_name(name).is_file()]
    return f"of the {split.count} parts of the model {len(missing)} are missing: {missing[0]}" if missing else ""


def _entries(child: Path) -> Iterator[CatalogueEntry]:
    if child.is_dir():
        yield from _folder(child)
    elif child.name.endswith(".gguf") and child.is_file() and not _is_companion(child.name):
        split = parts_of(child.name)
        if split is not None and split.index != 1:
            return  # llama-server lists it as a model that fails to load
        yield CatalogueEntry(child.name.replace(".gguf", ""), child, problem=problem_of(child))


def _folder(folder: Path) -> Iterator[CatalogueEntry]:
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".gguf") and file.is_file())
    projectors = [name for name in names if "mmproj" in name]
    models = [name for name in names if not _is_companion(name)]
    first_parts = [name for name in models if "-00001-of-" in name]
    if not models:
        return
    # llama-server takes the last one that the file system lists; sorted, so that it is always the same
    chosen = folder / (first_parts or models)[-1]
    projector = folder / projectors[-1] if projectors else None
    yield CatalogueEntry(folder.name, chosen, projector, problem_of(chosen))


def _is_companion(name: str) -> bool:
    return "mmproj" in name or name.startswith(_DRAFT_PREFIXES)


_SECTION_LINE = re.compile(r"^\[[ \t]*(?P<name>[^\]]+?)[ \t]*\][ \t]*(?:[;#].*)?$")
_KEY_LINE = re.compile(r"^(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*(?P<value>.*)$")
_COMMENT = re.compile(r"[ \t]*[;#].*$")
_TAG = re.compile(r"[-.]([A-Za-z0-9_]+)$")


def read_preset(path: Path) -> Preset:
    """Read a ``--models-preset`` file. Raises ConfigError with file and line if it is not INI."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}; check --models-preset") from None
    preset = Preset(path)
    target = before = list[PresetKey]()
    for number, line in enumerate(lines, 1):
        place = f"{path}:{number}"
        section = _SECTION_LINE.match(line)
        pair = _KEY_LINE.match(line)
        if section:
            target = _open_section(preset, section["name"], place)
        elif pair:
            _add(target, PresetKey(pair["key"], _COMMENT.sub("", pair["value"]).rstrip(), place))
        elif _COMMENT.sub("", line).strip():
            raise ConfigError(f"{place}: should be [section], key = value or ; comment")
    stray = [key for key in before if key.key != "version"]
    if stray:
        raise ConfigError(f"{stray[0].place}: '{stray[0].key}' stands before any section; put it under [*]")
    return preset


def _open_section(preset: Preset, name: str, place: str) -> list[PresetKey]:
    name = _canonical(name)
    if name == GLOBAL_SECTION:
        return preset.common
    if name in preset.sections:
        raise ConfigError(f"{place}: section [{name}] appears twice; merge them")
    return preset.sections.setdefault(name, [])


def _add(target: list[PresetKey], key: PresetKey) -> None:
    if any(other.key == key.key for other in target):
        raise ConfigError(f"{key.place}: '{key.key}' appears twice in its section; remove one")
    target.append(key)


def _canonical(name: str) -> str:
    """Return a section's ``repo:tag`` with the tag in llama-server's form: upper case, the quantization only."""
    repo, colon, tag = name.rpartition(":")
    if not colon or name == GLOBAL_SECTION:
        return name
    match = _TAG.search(tag)
    return repo + colon + (match[1] if match else tag).upper()
