"""Checks the files of a model before the native library opens them, and identifies their contents."""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.errors import ModelFailed
from server.llama.files.gguf_header import BrokenFileError, GgufHeader, read_header
from server.llama.files.hyperparameters import check_hyperparameters
from server.llama.files.metadata_overrides import overruled
from server.pool.spec import MetadataOverride

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
    check_hyperparameters(model, path, header, architecture)
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


SAMPLE_BYTES = 256
_DIGEST_BYTES = 16


def fingerprint(files: Iterable[tuple[Path, GgufHeader]], overrides: Sequence[object] = ()) -> str:
    """Return a hash of the headers (metadata, vocabulary, tensors), the sizes, and the end of every tensor.

    `overrides` replace values of the first header. A fine-tune with its base's header differs in the samples. File
    names and paths do not count.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path, header in files:
        with path.open("rb") as file:
            descriptor = file.fileno()
            size = os.fstat(descriptor).st_size
            digest.update(size.to_bytes(8, "little"))
            digest.update(os.pread(descriptor, header.n_bytes, 0))
            for tensor in header.tensors:
                start = max(tensor.end - SAMPLE_BYTES, header.n_bytes)
                digest.update(os.pread(descriptor, tensor.end - start, start))
    if overrides:
        digest.update(repr(overrides).encode())
    return digest.hexdigest()
