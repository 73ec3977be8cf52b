"""Which files of a repository a reference means, by the rules of llama.cpp's common/download.cpp. Pure.

A model is the file with the requested quantization, otherwise ``Q4_K_M``, ``Q8_0``, or the first; with all parts if
it is split. Siblings are files that belong to a model but are not models themselves.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import PurePosixPath

from server.errors import NotFound

PRESET = "preset.ini"
SUFFIX = ".gguf"
USUAL = ("Q4_K_M", "Q8_0")
MMPROJ = "mmproj"
SIBLINGS = {MMPROJ: "mmproj", "mtp": "mtp-", "eagle3": "eagle3-", "dflash": "dflash-", "dspark": "dspark-"}
"""Kind of sibling -> what its file name contains."""
_NO_MODEL = (*SIBLINGS.values(), "imatrix")
_SPLIT = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})")
_TAG = re.compile(r"[-.]([A-Za-z0-9_]+)$")
_DIGITS = re.compile(r"[0-9]+")
_SHOWN = 20  # files that an error lists


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. ``oid`` identifies its content: SHA-256 (64 digits) of a large file, otherwise git's
    hash.
    """

    path: str
    size: int = 0  # bytes
    oid: str = ""
    xet: bool = False  # stored in Xet, from which files above 50 GB must be downloaded


@dataclass(frozen=True, slots=True)
class SplitName:
    """The parts of a GGUF's name: ``prefix-00001-of-00003.gguf``. ``tag`` is the end of the prefix in upper case."""

    prefix: str
    tag: str
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """The files of a reference: the parts of a model in order, or a single preset."""

    model: tuple[HubFile, ...] = ()
    siblings: Mapping[str, HubFile] = field(default_factory=dict)
    preset: HubFile | None = None


def parts_of(path: str) -> SplitName | None:
    """Return the parsed name; None if it is not a GGUF."""
    if not path.endswith(SUFFIX):
        return None
    prefix = path.removesuffix(SUFFIX)
    split = _SPLIT.fullmatch(prefix)
    index, count = (int(split[2]), int(split[3])) if split else (1, 1)
    prefix = split[1] if split else prefix
    tag = _TAG.search(prefix)
    return SplitName(prefix, tag[1].upper() if tag else "", index, count)


def is_model(path: str) -> bool:
    """Return whether it is a GGUF that is a model, or a part of one."""
    name = PurePosixPath(path).name
    return path.endswith(SUFFIX) and not any(word in name for word in _NO_MODEL)


def choose(files: Sequence[HubFile], repository: str, tag: str = "", file: str = "") -> ChosenFiles:
    """Return the files for `tag`, or for `file`. Raises `NotFound`, which lists the available ones."""
    by_path = {found.path: found for found in files}
    if PRESET in by_path and not file:
        return ChosenFiles(preset=by_path[PRESET])
    named = by_path.get(file if file.endswith(SUFFIX) else "")
    model = named if file else _model(files, tag)
    if model is None:
        wanted = f"GGUF file '{file}'" if file else f"model of the quantization '{tag}'" if tag else "GGUF model"
        raise NotFound(f"'{repository}' has no {wanted}; {_listed(files)}")
    siblings = {kind: _sibling(files, model.path, word, tag) for kind, word in SIBLINGS.items()}
    found = {kind: sibling for kind, sibling in siblings.items() if sibling is not None}
    return ChosenFiles(_all_parts(by_path, model, repository), found)


def _model(files: Iterable[HubFile], tag: str) -> HubFile | None:
    """Return the first file of the first quantization that is wanted; without a tag any will do."""
    models = [file for file in files if is_model(file.path) and _is_first(file.path)]
    for wanted in (tag,) if tag else USUAL:
        pattern = re.compile(re.escape(wanted) + "[.-]", re.IGNORECASE)
        for file in models:
            if pattern.search(file.path):
                return file
    return models[0] if models and not tag else None


def _is_first(path: str) -> bool:
    parts = parts_of(path)
    return parts is not None and parts.index == 1


def _all_parts(by_path: Mapping[str, HubFile], model: HubFile, repository: str) -> tuple[HubFile, ...]:
    split = parts_of(model.path)
    if split is None or split.count == 1:
        return (model,)
    names = [f"{split.prefix}-{index:05d}-of-{split.count:05d}{SUFFIX}" for index in range(1, split.count + 1)]
    missing = [name for name in names if name not in by_path]
    if missing:
        raise NotFound(
            f"'{repository}' lacks {len(missing)} of the {split.count} parts of '{model.path}': {missing[0]}"
        )
    return tuple(by_path[name] for name in names)


def _sibling(files: Iterable[HubFile], model: str, word: str, tag: str) -> HubFile | None:
    """Return the best one in the model's folder or above it: the deepest, the same quantization, the nearest one."""
    folder = PurePosixPath(model).parent.parts
    wanted = tag.upper()
    bits = _bits(wanted) if wanted else _bits(_tag_of(model))
    best: tuple[int, bool, int] | None = None
    found = None
    for file in files:
        if not file.path.endswith(SUFFIX) or word not in file.path:
            continue
        place = PurePosixPath(file.path).parent.parts
        if place != folder[: len(place)]:
            continue
        exact = bool(wanted) and f"-{wanted}." in file.path.upper()
        rank = (len(place), exact, -abs(_bits(_tag_of(file.path)) - bits))
        if best is None or rank > best:
            best, found = rank, file
    return found


def _tag_of(path: str) -> str:
    parts = parts_of(path)
    return parts.tag if parts else ""


def _bits(tag: str) -> int:
    """``Q4_0`` and ``NVFP4`` have 4."""
    digits = _DIGITS.search(tag)
    return int(digits[0]) if digits else 0


def _listed(files: Iterable[HubFile]) -> str:
    names = [file.path for file in files if file.path.endswith(SUFFIX)]
    shown = ", ".join(name for _, name in takewhile(lambda item: item[0] < _SHOWN, enumerate(names)))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"its GGUF files: {shown}{more}" if names else "it has no GGUF files"
