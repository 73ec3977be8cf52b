"""Saved slots and prompt states at an address: an object store such as S3, by fsspec, for several machines.

A file appears there whole, with the end of its upload; a reader of the older file finds it damaged at worst,
since every byte is hashed. An address needs the package that fsspec says (s3fs for ``s3://``). All of it blocks.
"""

import io
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, BinaryIO, cast

from server.errors import (
    ConfigError,
    InternalError,
    InvalidRequest,
    LlamapoolError,
    PermissionDenied,
    without_credentials,
)
from server.pool.saved.slot_files import Listed, too_much

_IN_MEMORY = 64 << 20  # bytes; more are kept in a file until they are sent
_BLOCK = 8 << 20  # bytes that are read at once


class UrlFiles:
    """`slot_files.SavedFiles` at an address. Its options are those of fsspec's own environment and configuration files
    (FSSPEC_S3_ENDPOINT_URL, AWS_PROFILE …). Raises ConfigError where its package is not there."""

    def __init__(self, address: str, quota: int = 0, secret: bytes = b"") -> None:
        import fsspec  # not where nobody needs it

        self.address = address.rstrip("/")
        self._quota = quota
        self.secret = secret
        try:
            self._store, self._path = fsspec.core.url_to_fs(self.address)  # type: ignore[no-untyped-call]
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{without_credentials(address)}: {error}; for s3:// pip install s3fs") from None

    def of(self, owner: str) -> "UrlFiles":
        """Those of one owner."""
        return UrlFiles(f"{self.address}/{owner}", self._quota, self.secret) if owner else self

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> int:
        """Save a file whole or not at all; its bytes. Raises `InternalError` with the store's reason, and
        `PermissionDenied` where it would be too much."""
        with _told(self.address, "save"), tempfile.SpooledTemporaryFile(_IN_MEMORY) as kept:
            for each in parts:
                kept.write(each)
            n_bytes = kept.tell()
            others = sum(one.n_bytes for one in self.listed() if one.name != name) if self._quota else 0
            if self._quota and others + n_bytes > self._quota:
                raise too_much(self._quota)
            kept.seek(0)
            self._store.makedirs(self._path, exist_ok=True)
            with self._store.open(self._at(name), "wb", block_size=_BLOCK) as file:
                while block := kept.read(_BLOCK):
                    file.write(block)
            return n_bytes

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[BinaryIO, int]]:
        """A saved file and its size. Raises `InvalidRequest` when there is none."""
        with _told(self.address, "restore"), self._store.open(self._at(name), "rb", block_size=_BLOCK) as file:
            n_bytes = file.seek(0, io.SEEK_END)
            file.seek(0)
            yield cast(BinaryIO, file), n_bytes

    def listed(self) -> list[Listed]:
        """What is there. Raises `InternalError`."""
        with _told(self.address, "find"):
            try:
                self._store.invalidate_cache(self._path)  # others write here, too
                found: list[dict[str, Any]] = self._store.ls(self._path, detail=True)
            except FileNotFoundError:
                return []
        names = [(one["name"].rsplit("/", 1)[-1], one) for one in found if one["type"] == "file"]
        return [Listed(name, one["size"], _age_s(one)) for name, one in names]

    def used(self, name: str) -> None:
        """A store knows when a file was written, not when it was read."""

    def remove(self, name: str) -> None:
        """One that is gone already is no error. Raises `InternalError`."""
        with _told(self.address, "remove"):
            try:
                self._store.rm_file(self._at(name))
            except FileNotFoundError:
                return

    def remove_stale(self) -> None:
        """Nothing: an upload that doesn't end is no file."""


def _age_s(found: dict[str, Any]) -> float:
    at = found.get("LastModified") or found.get("mtime") or found.get("created")
    at = at.timestamp() if isinstance(at, datetime) else at
    return max(time.time() - at, 0.0) if isinstance(at, int | float) else 0.0


@contextmanager
def _told(address: str, verb: str) -> Iterator[None]:
    try:
        yield
    except (LlamapoolError, PermissionDenied):
        raise
    except FileNotFoundError:
        raise InvalidRequest(f"Unable to {verb} slot: there is no such file", "filename") from None
    except Exception as error:  # each store's package has errors of its own
        raise InternalError(
            f"Unable to {verb} slot: {without_credentials(address)}: {error or type(error).__name__}"
        ) from error
