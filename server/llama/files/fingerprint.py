"""Identifies a GGUF's contents by samples: saved slots may only be used with the same weights."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from server.llama.files.gguf_header import GgufHeader

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
