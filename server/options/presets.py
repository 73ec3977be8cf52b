"""Finds the configured models: those of the YAML or of -m and -hf, of a preset, a folder, and the hub's cache.

A model's settings are also written as a preset's section, and as flags, for ``GET /models``. A folder of models, as
llama-server lays it out::

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
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from server.errors import ConfigError, LlamapoolError, utf8, without_credentials
from server.hub.cache import CachedModel
from server.hub.hub import Hub
from server.hub.names import Reference, parts_of
from server.options.flags import FOREIGN, CommandLine, LlamaOptions, LlamaVariables
from server.options.model import WHERE, ModelSettings
from server.options.option import Layer, Option, SourcedValue
from server.options.server import ServerSettings
from server.options.sources import Origin, YamlFile
from server.options.table import TABLE, nearest, visible
from server.options.values import read_bool, read_text, split_list, unescape, without_secrets
from server.pool.spec import ScaledFile

LOAD_ON_STARTUP = "load-on-startup"
DEDUP_CACHE = "dedup-cache-models"

# ---- a folder of models

_DRAFT_PREFIXES = ("mtp-", "dspark-", "dflash-")


def scan_models_dir(path: Path, skipped: list[str]) -> dict[str, tuple[Path, Path | None]]:
    """Return the model and the projector of each entry of a folder, by id. Add to `skipped` what in it cannot be read
    or named. Raises ConfigError when it is not a folder that can be read.
    """
    by_id: dict[str, tuple[Path, Path | None]] = {}
    try:
        if not path.is_dir():
            raise ConfigError(f"{path}: is not a folder; give --models-dir a folder that contains GGUF files")
        found = (entry for child in sorted(path.iterdir()) for entry in _models_of(child, skipped))
        for name, model, projector in found:
            if name != utf8(name):  # clients could not name it
                skipped.append(f"{utf8(str(path / name))}: its name is not UTF-8; rename it to serve its model")
                continue
            if name in by_id:
                raise ConfigError(f"{path}: '{name}' is both a file and a folder; rename one")
            by_id[name] = model, projector
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return by_id


def _models_of(child: Path, skipped: list[str]) -> Iterator[tuple[str, Path, Path | None]]:
    if not child.is_dir():
        split = parts_of(child.name)
        is_model = split is not None and split.index == 1 and not _is_companion(child.name)
        if is_model and child.is_file() and not child.name.startswith("."):  # macOS writes ._m.gguf
            yield child.name.replace(".gguf", ""), child, None
        return  # llama-server lists further parts of a split model as models that fail to load
    try:
        files = [file for file in child.iterdir() if file.name.endswith(".gguf") and file.is_file()]
    except PermissionError:  # such as lost+found
        skipped.append(f"{child}: may not be read; no model in it is served")
        return
    names = sorted(file.name for file in files if not file.name.startswith("."))
    projectors = [name for name in names if "mmproj" in name]
    models = [name for name in names if not _is_companion(name)]
    if models:
        # llama-server takes the last one that the file system lists; sorted, so that it is always the same
        chosen = ([name for name in models if "-00001-of-" in name] or models)[-1]
        yield child.name, child / chosen, child / projectors[-1] if projectors else None


def _is_companion(name: str) -> bool:
    return "mmproj" in name or name.startswith(_DRAFT_PREFIXES)


def problem_of(path: Path) -> str:
    """Return why the GGUF at `path` cannot be loaded, judged by its name and first bytes; empty if it can."""
    try:
        if not path.exists():
            return f"no such file: {path}; check the path"
        if not path.is_file():
            return f"is not a file: {path}; name the GGUF in it"
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


# ---- a preset

_EVERY_SECTION = "*"
_SECTION_LINE = re.compile(r"^\[[ \t]*(?P<name>[^\]]+?)[ \t]*\][ \t]*(?:[;#].*)?$")
_KEY_LINE = re.compile(r"^(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*(?P<value>.*)$")
_COMMENT = re.compile(r"[ \t]*[;#].*$")
_TAG = re.compile(r"[-.]([A-Za-z0-9_]+)$")


def read_preset(path: Path) -> dict[str, Layer]:
    """Return the keys of each section of a ``--models-preset`` file, with file and line; ``[*]`` is of every section.

    Raises ConfigError with file and line if it is not INI.
    """
    lines = read_text(path, remedy="check --models-preset").splitlines()
    sections: dict[str, Layer] = {_EVERY_SECTION: {}}
    target = before = Layer()
    for number, line in enumerate(lines, 1):
        place = f"{path}:{number}"
        if found := _SECTION_LINE.match(line):
            name = _canonical(found["name"])
            if name in sections and name != _EVERY_SECTION:
                raise ConfigError(f"{place}: section [{name}] appears twice; merge them")
            target = sections.setdefault(name, {})
        elif found := _KEY_LINE.match(line):
            if found["key"] in target:
                raise ConfigError(f"{place}: '{found['key']}' appears twice in its section; remove one")
            target[found["key"]] = SourcedValue(_COMMENT.sub("", found["value"]).rstrip(), place)
        elif _COMMENT.sub("", line).strip():
            raise ConfigError(f"{place}: should be [section], key = value or ; comment")
    for key, given in before.items():
        if key != "version":
            raise ConfigError(f"{given.source}: '{key}' stands before any section; put it under [*]")
    return sections


def _canonical(name: str) -> str:
    """Return a section's ``repo:tag`` with the tag in llama-server's form: upper case, the quantization only."""
    repo, colon, tag = name.rpartition(":")
    if not colon or name == _EVERY_SECTION:
        return name
    match = _TAG.search(tag)
    return repo + colon + (match[1] if match else tag).upper()


# ---- the configured models


class FoundModels(LlamaOptions):
    """Finds the models, in order, and has the options of presets, folders and the cache.

    Keys of a preset section are flags without dashes, or variables (llama.cpp common/preset.cpp, load_from_ini).
    ``origins`` are of all models. ``serves_cache``: cached models are served too.
    """

    def __init__(
        self, command_line: CommandLine, variables: LlamaVariables, document: YamlFile, server: ServerSettings, hub: Hub
    ) -> None:
        """Read the folder and preset of `server` and the cache; give the model of -m to the flags.

        Asks the hub whether an uncached repository of -hf contains a preset. Raises ConfigError, also for an id that
        occurs twice.
        """
        super().__init__()
        flags, llama = command_line.sections["model"], variables.sections["model"]
        where = {key: flags[key] for key in WHERE if key in flags}
        where |= visible("model", {key: llama[key] for key in WHERE if key in llama}, where)
        aliases = flags.get("aliases") or llama.get("aliases")
        if aliases is not None and not where:
            raise ConfigError(f"{aliases.source} names the model of -m or -hf; in the YAML set models.<id>.aliases")
        preset = server.models_preset
        self._is_remote = False  # whether the preset is that of a repository
        if where and (file := _preset_repository(where, hub)):
            trust = f"the preset of '{where['hf'].value}' chooses the models; use only presets that you trust"
            self.skipped.append(f"{where['hf'].source}: {trust}")
            where, preset, self._is_remote = {}, file, True
        self.serves_cache = server.models_cache if server.models_cache is not None else not (where or document.is_named)
        cached = hub.cache.models() if self.serves_cache else []
        if where:
            model_id, layer = _named_model(where, aliases)
            for each in document.places:  # in place of the YAML's models
                document.sections.pop(f"models.{each}", None)
            command_line.sections[f"models.{model_id}"] = layer
            self.origins = {model_id: Origin(next(iter(where.values())).source, at_start=True)}
        else:
            if document.is_demo and cached:  # the demo must not take the memory that the user's models need
                on_demand = SourcedValue("on_demand", str(hub.cache.folder))
                self.sections |= {f"models.{model_id}": {"load": on_demand} for model_id in document.places}
            self.origins = {model_id: Origin(place) for model_id, place in document.places.items()}
        for model_id, (origin, layer) in self._catalogued(server.models_dir, preset, cached, hub).items():
            if model_id not in self.origins:
                self.origins[model_id], self.sections[f"models.{model_id}"] = origin, layer
            elif origin.kind != "cache":
                raise ConfigError(f"{origin.place}: model '{model_id}' is configured twice; rename one")

    def _catalogued(
        self, folder: Path | None, preset_file: Path | None, cached: list[CachedModel], hub: Hub
    ) -> dict[str, tuple[Origin, Layer]]:
        """Return the models of the cache, the folder and the preset, merged by id.

        A section is stronger than the preset's ``[*]``; a folder's model replaces the cache's of the same id (llama.cpp
        server-models.cpp, load_models).
        """
        local = scan_models_dir(folder, self.skipped) if folder is not None else {}
        preset = read_preset(preset_file) if preset_file is not None else {}
        common = preset.pop(_EVERY_SECTION, {})
        every_model = self._section(_EVERY_SECTION, common)
        sections = {name: self._section(name, keys) for name, keys in preset.items()}
        hidden = set[Path | None]()  # files of sections with dedup-cache-models, so that none is listed twice
        for name, layer in sections.items():
            dedups = [keys[DEDUP_CACHE] for keys in (common, preset[name]) if DEDUP_CACHE in keys]
            if any(_bool(name, DEDUP_CACHE, each) for each in dedups):
                file = str(layer["hf_file"].value) if "hf_file" in layer else ""
                hidden |= {_cached_file(hub, layer.get("hf"), file), _cached_file(hub, layer.get("draft_hf"), "")}
        defaults = {
            repository: _cached_file(hub, SourcedValue(repository, ""), "")
            for repository in {model.reference.repository for model in cached}
        }
        found: dict[str, tuple[Origin, Layer]] = {}
        for model in cached:
            name, repository, place = str(model.reference), model.reference.repository, str(hub.cache.folder)
            if name not in local:
                default_of = repository if defaults[repository] == model.path else ""
                is_hidden = model.path in hidden
                origin = Origin(place, scanned=True, kind="cache", hidden=is_hidden, repository=default_of)
                found[name] = origin, {"hf": SourcedValue(name, place)}
        for name, (path, projector) in local.items():
            origin = Origin(str(folder), projector, scanned=True, kind="models_dir")
            found[name] = origin, {"path": SourcedValue(path, str(folder))}
        for name, keys in preset.items():
            found.setdefault(name, (Origin(next((key.source for key in keys.values()), str(preset_file))), {}))
        for name, (origin, given) in found.items():
            section = sections.get(name, {})
            layer = section | visible("model", given, section)
            layer |= visible("model", every_model, layer)
            found[name] = replace(origin, kind="preset") if section else origin, layer
        return found

    def _section(self, section: str, keys: Layer) -> Layer:
        """Return the options of a preset's section. Raises ConfigError that names file, line, section and key."""
        layer: Layer = {}
        for key, given in keys.items():
            if key in ("version", DEDUP_CACHE):
                continue
            if key == LOAD_ON_STARTUP:
                startup = _bool(section, key, given)
                layer["load"] = SourcedValue("startup" if startup else "on_demand", given.source)
            elif (found := self._option(section, key, given)) is not None:
                entry, value = found
                if entry.forms and entry.key in layer and isinstance(value, list):  # lora and lora-scaled
                    value = [*layer[entry.key].value, *value]
                layer[entry.key] = SourcedValue(value, given.source)
        return layer

    def _option(self, section: str, key: str, given: SourcedValue) -> tuple[Option, object] | None:
        """Return the option of a key and its value; None for a key that sets nothing."""
        start = f"{given.source}: [{section}]"
        spellings = ("--" + key, "-" + key)
        flag = next((spelling for spelling in spellings if spelling in TABLE.by_flag), "")
        entry = TABLE.by_flag[flag] if flag else TABLE.by_env.get(key)
        if entry is None:
            name = next((name for name in (*spellings, key) if name in FOREIGN), "")
            is_on = not (name and FOREIGN[name].met) or _bool(section, key, given)
            if self.skip(name, f"{start} '{key}'", "remove it", on=is_on):
                return None
            known = [spelling.lstrip("-") for spelling, row in TABLE.by_flag.items() if row.section == "model"]
            similar = nearest(key, [*known, LOAD_ON_STARTUP], "; see docs/configuration.md")
            raise ConfigError(f"{start} unknown key '{key}'{similar}")
        if entry.section == "server":
            raise ConfigError(f"{start} '{key}' is an option of the server, not of a model; remove it")
        if entry.is_path and self._is_remote:
            why = f"'{key}' is a path on this machine, which the preset of a repository must not name"
            raise ConfigError(f"{start} {why}; copy the preset, check it, and give --models-preset")
        if entry.is_switch:
            is_on = _bool(section, key, given)
            return entry, not is_on if entry.constants.get(flag) is False else is_on
        if flag in entry.constants:
            return entry, entry.constants[flag]
        return entry, entry.parse(given.value, flag)


def _bool(section: str, key: str, given: SourcedValue) -> bool:
    try:
        return read_bool(given.value)
    except ValueError as error:
        raise ConfigError(f"{given.source}: [{section}] {key} {error}, not '{given.value}'") from None


def _preset_repository(where: Layer, hub: Hub) -> Path | None:
    """Return the preset.ini of the repository of -hf, if it has one. Raises ConfigError if the hub can't be asked."""
    if "hf" not in where or "hf_file" in where:
        return None
    try:
        return hub.preset(Reference.parse(str(where["hf"].value)))
    except ValueError:
        return None  # reported when the option is validated
    except LlamapoolError as error:
        raise ConfigError(f"{where['hf'].source}: {error.message}") from None


def _named_model(where: Layer, aliases: SourcedValue | None) -> tuple[str, Layer]:
    """Return the id and the options of the model of -m and the like.

    Its id is the first alias in alphabetical order, otherwise the path or name as given, as in llama-server. Raises
    ConfigError for --hf-file alone.
    """
    name = next(
        (utf8(str(where[key].value)) for key in ("hf", "docker_repo", "path", "model_url") if key in where), None
    )
    if name is None:
        raise ConfigError(f"{where['hf_file'].source} needs -hf, the repository; add it")
    if "path" not in where and "model_url" in where:
        name = urlsplit(name).path.rpartition("/")[2] or without_credentials(name)
    if aliases is None:
        return name, where
    first, *others = sorted(aliases.value) or [name]
    return first, {**where, "aliases": SourcedValue(others, aliases.source)}


def _cached_file(hub: Hub, given: SourcedValue | None, file: str) -> Path | None:
    """Return the cached file that a reference means; None if it is not cached."""
    try:
        files = hub.find(Reference.parse(str(given.value)), file) if given else None
    except ValueError:
        return None  # reported when the option is validated
    return files.model if files else None


# ---- settings written back


def flags_of(settings: ModelSettings) -> list[str]:
    """Return the flags that serve this model alone."""
    return [word for entry, value in _changed(settings) for word in _words(entry, value)]


def preset_of(model_id: str, settings: ModelSettings) -> str:
    """Return the model's section of a preset, as llama-server writes it (llama.cpp common/preset.cpp, to_ini).

    A value that INI cannot express (with a comment's sign, a line break, or repeated) is a comment.
    """
    lines = []
    for entry, value in sorted(_changed(settings), key=lambda each: each[0].key == "load"):  # load is last
        name, *texts = _name(entry, value).lstrip("-"), *_texts(entry, value)
        if entry.key == "load":
            name, texts = LOAD_ON_STARTUP, [str(value == "startup").lower()]
        text = ",".join(texts).replace("\n", "\\n")
        is_ini = len(texts) == 1 and "\n" not in texts[0] and _COMMENT.sub("", text).strip() == text
        lines.append(f"{'' if is_ini else '; '}{name} = {text}")
    return "\n".join([f"[{model_id}]", *lines, ""])


def _changed(settings: ModelSettings) -> Iterator[tuple[Option, Any]]:
    """Yield the options that differ from their defaults, except the model's names."""
    for key in TABLE.keys("model"):
        entry, value = TABLE.entries["model", key], getattr(settings, key)
        if key not in ("aliases", "tags") and value != entry.default:
            yield entry, value


def _name(entry: Option, value: Any) -> str:
    """Return the last long flag, or that of files with scales."""
    if entry.forms and any(file.scale != 1 for file in value):
        return next(iter(entry.forms))
    plain = entry.plain_flags
    return next((flag for flag in reversed(plain) if flag.startswith("--")), plain[-1])


def _words(entry: Option, value: Any) -> Iterator[str]:
    if entry.is_switch:
        yield from (
            [_name(entry, value)] if value else [f for f, constant in entry.constants.items() if constant is False][:1]
        )
        return
    for text in _texts(entry, value):
        yield from (_name(entry, value), *(text.split(" ") if entry.n_words > 1 else (text,)))


_SEPARATORS = {"samplers": ";", "device": ";", "control_vector_layer_range": " "}  # otherwise a comma


def _texts(entry: Option, value: Any) -> list[str]:
    """Return the values of the flags that set `value`: several if a text may contain any separator."""
    if entry.text is unescape:
        return [_text(each).replace("\\", "\\\\").replace("\n", "\\n") for each in value] or ["none"]
    if entry.key == "logit_bias":
        return [",".join(f"{token}{bias:+}" for token, bias in value)]
    if entry.forms and any(file.scale != 1 for file in value):
        value = tuple(f"{file.path}:{file.scale!r}" for file in value)
    if not isinstance(value, tuple):
        return [_text(value)]
    items = [_text(each.path if isinstance(each, ScaledFile) else each) for each in value]
    if entry.text is split_list:
        items = ['"' + each.replace('"', '""') + '"' if re.search('[,"]', each) else each for each in items]
    return [_SEPARATORS.get(entry.key, ",").join(items)]


def _text(value: Any) -> str:
    """Return a value as a flag's text, without secrets: clients may read it (GET /models)."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return orjson.dumps(value).decode()
    return without_secrets(utf8(str(value)))
