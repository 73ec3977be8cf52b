"""How a model of a hub is named: ``owner/name[:quantization]`` (llama.cpp common/download.cpp, hf-cache.cpp)."""

import re
from dataclasses import dataclass
from typing import Self

MAX_ID = 256  # characters of owner/name (hf-cache.cpp, is_valid_repo_id)
MAX_TAG = 64
FORM = "should be owner/name or owner/name:QUANTIZATION, as in ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"
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
        """Raises ValueError, which completes a sentence, for what can't name a repository, a path or an address."""
        repository, colon, tag = text.partition(":")
        if not is_repository(repository) or (colon and not is_tag(tag)):
            raise ValueError(FORM)
        return cls(repository, tag)

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}" if self.tag else self.repository


def is_repository(text: str) -> bool:
    """``owner/name`` of words; nothing that leads out of a folder can be written so."""
    return len(text) <= MAX_ID and _ID.fullmatch(text) is not None


def is_tag(text: str) -> bool:
    """Such as ``Q4_K_M``."""
    return len(text) <= MAX_TAG and _TAG.fullmatch(text) is not None
