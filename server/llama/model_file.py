"""Checks the files of a model before the native library opens them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from server.errors import ModelFailed
from server.llama.gguf_header import BrokenFileError, GgufHeader, read_header
from server.llama.metadata_overrides import overruled
from server.pool.spec import MetadataOverride

_MOST_LAYERS, _MOST_EXPERTS = 512, 1024  # src/llama-hparams.h
_SPLIT = re.compile(r"^(?P<prefix>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The first file's path and header; the library finds the other parts by their names. ``parts`` are all of them."""

    path: Path
    header: GgufHeader
    parts: tuple[tuple[Path, GgufHeader], ...]


def check_files(model: str, path: Path, overrides: Sequence[MetadataOverride] = ()) -> ModelFiles:
    """Read every part's header, with `overrides` in the first.

    Raises `ModelFailed` for a missing, unreadable, truncated or foreign file.
    """
    header = overruled(model, read_gguf(model, path), overrides)
    count = header.integer("split.count")
    others = _other_parts(model, path, header, count) if count > 1 else []
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelFailed(model, f"{path}: the file names no architecture (general.architecture)")
    _check_numbers(model, path, header, architecture)
    return ModelFiles(path, header, ((path, header), *others))


def read_gguf(model: str, path: Path) -> GgufHeader:
    """The header of one file. Raises `ModelFailed` that names it."""
    try:
        if path.is_dir():
            raise ModelFailed(model, f"{path} is a folder, not a GGUF file")
        return read_header(path)
    except FileNotFoundError:
        raise ModelFailed(model, f"{path} does not exist") from None
    except PermissionError:
        raise ModelFailed(model, f"{path} cannot be read (permissions)") from None
    except OSError as error:
        raise ModelFailed(model, f"{path} cannot be read: {error.strerror or error}") from error
    except BrokenFileError as error:
        raise ModelFailed(model, f"{path}: {error}") from error


def _other_parts(model: str, path: Path, header: GgufHeader, count: int) -> list[tuple[Path, GgufHeader]]:
    name = _SPLIT.match(path.name)
    if name is None:
        raise ModelFailed(model, f"{path}: one of {count} parts, but it is not named <name>-00001-of-{count:05d}.gguf")
    if header.integer("split.no") != 0 or int(name["no"]) != 1:
        first = f"{name['prefix']}-00001-of-{name['count']}.gguf"
        raise ModelFailed(model, f"{path} is not the first of {count} parts; the path must name {first}")
    parts = [path.with_name(f"{name['prefix']}-{no:05d}-of-{count:05d}.gguf") for no in range(2, count + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise ModelFailed(model, f"{path}: of {count} parts, {len(missing)} are missing: {', '.join(missing[:5])}")
    return [(part, read_gguf(model, part)) for part in parts]


def _check_numbers(model: str, path: Path, header: GgufHeader, architecture: str) -> None:
    """Numbers that the library divides by, allocates from or asserts without looking."""
    n_expert = header.integer(f"{architecture}.expert_count")
    for key, low, high in (
        ("block_count", 1, _MOST_LAYERS),
        ("expert_count", 0, _MOST_EXPERTS),
        ("expert_used_count", min(n_expert, 1), n_expert),
        ("attention.sliding_window", 0, 1 << 30),
        ("embedding_length", 1, 1 << 24),
        ("context_length", 1, (1 << 31) - 1),
        ("rope.dimension_count", 2, _head_size(header, architecture)),
    ):
        full = f"{architecture}.{key}"
        value = header.metadata.get(full)
        if isinstance(value, int) and not low <= value <= high:
            raise ModelFailed(model, f"{path}: {full} is {value}, outside {low} to {high}")
    if header.integer(f"{architecture}.rope.dimension_count") % 2:
        raise ModelFailed(model, f"{path}: {architecture}.rope.dimension_count is odd")
    for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        epsilon = header.metadata.get(f"{architecture}.{key}", 0.0)
        if not isinstance(epsilon, float) or not 0.0 <= epsilon < math.inf:
            raise ModelFailed(model, f"{path}: {architecture}.{key} is {epsilon}, not a small positive number")


def _head_size(header: GgufHeader, architecture: str) -> int:
    """The most elements that can be rotated; 65536 where the header does not say."""
    n_head = header.integer(f"{architecture}.attention.head_count")
    divided = header.integer(f"{architecture}.embedding_length") // n_head if n_head else 1 << 16
    return max(divided, header.integer(f"{architecture}.attention.key_length"))
