"""The folder of a model's embeddings on disk (``cache_disk``): a file for each key, numbers and a hash of them.

Keys include the projector and its settings, so that any process may read and write here. All methods block.
"""

import hashlib
from pathlib import Path

from server.errors import InternalError, InvalidRequest
from server.pool.saved.slot_files import SlotFiles
from server.pool.saved.state_folder import folder_name

SUFFIX = ".embeddings"
_DIGEST_BYTES = 32


class EmbeddingFolder:
    """`server.engine.encode.EmbeddingFiles` for the model of this id."""

    def __init__(self, model_id: str, root: Path) -> None:
        self._path = root / folder_name(model_id) / "media"
        self._files = SlotFiles(self._path)

    def index(self) -> list[tuple[bytes, int]]:
        """Keys and bytes, what was used last at the end. Raises `InternalError`."""
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)  # embeddings reveal images
            self._files.remove_stale()
        except OSError as error:
            raise InternalError(f"{self._path}: {error.strerror or error}") from error
        found = sorted(self._files.listed(), key=lambda one: one.age_s, reverse=True)
        keys = [
            (one.name.removesuffix(SUFFIX), one.n_bytes - _DIGEST_BYTES) for one in found if one.name.endswith(SUFFIX)
        ]
        return [(bytes.fromhex(name), size) for name, size in keys if _is_hex(name) and size > 0]

    def read(self, key: bytes) -> bytes | None:
        """None for a file that is gone, or not what was written; then it is removed."""
        try:
            with self._files.opened(_name(key)) as (file, size):
                content = file.read(size)
        except InvalidRequest:
            return None
        data, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
        if _digest(key, data) != digest:
            self.remove(key)
            return None
        self._files.used(_name(key))
        return data

    def write(self, key: bytes, data: bytes) -> None:
        """Whole or not at all. Raises `InternalError`."""
        self._files.write(_name(key), (data, _digest(key, data)))

    def remove(self, key: bytes) -> None:
        """One that is gone already is no error. Raises `InternalError`."""
        self._files.remove(_name(key))


def _name(key: bytes) -> str:
    return f"{key.hex()}{SUFFIX}"


def _is_hex(name: str) -> bool:
    return bool(name) and len(name) % 2 == 0 and all(char in "0123456789abcdef" for char in name)


def _digest(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, key=key).digest()
