"""Files by name: in a folder (`SlotFiles`), or at a URL of an object store by fsspec (`UrlFiles`). All methods block.

Any number of processes may write and read at once. A file in a folder appears or is replaced by a rename after all of
it is on the disk. Names cannot leave the folder, and links in it are not followed. A file at a URL appears with the end
of its upload; a reader of the older file at worst finds it damaged, since every byte is hashed. A URL needs the package
that fsspec names (s3fs for ``s3://``).
"""

import contextlib
import errno
import fcntl
import io
import math
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from server.errors import (
    ConfigError,
    InternalError,
    InvalidRequest,
    LlamapoolError,
    PermissionDenied,
    without_credentials,
)

MAX_NAME_BYTES = 255
STALE_S = 24 * 3600.0
_PART = ".saving-"  # begins the names of files that are being written
# llama.cpp common/common.cpp, fs_validate_filename: control and surrogate characters, those that Windows forbids, and
# what looks like a dot or a separator
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f-\x9f\uff0e\u2215\u2216\ud800-\udfff\ufffd\ufeff:*?"<>|/\\]|\.\.')


def check_name(name: object) -> str:
    """`name` as a file name. Raises `InvalidRequest` by llama-server's rules, and for names of unfinished files."""
    if not isinstance(name, str):
        raise InvalidRequest("filename: must be a string", "filename")
    forbidden = not name or _FORBIDDEN.search(name) or name[0] == " " or name[-1] in " ." or name.startswith(_PART)
    if forbidden or len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidRequest("Invalid filename", "filename")
    return name


@dataclass(frozen=True, slots=True)
class Listed:
    """A file that is there."""

    name: str
    n_bytes: int
    age_s: float  # since it was used last, or written where that is not known


class SavedFiles(Protocol):
    """Files by name: in a folder (`SlotFiles`), or at a URL (`UrlFiles`)."""

    secret: bytes

    def of(self, owner: str) -> "SavedFiles": ...
    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> int: ...
    def opened(self, name: str) -> AbstractContextManager[tuple[BinaryIO, int]]: ...
    def listed(self) -> list[Listed]: ...
    def used(self, name: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def remove_stale(self) -> None: ...


def too_much(quota: int) -> PermissionDenied:
    """There is no room for another file."""
    return PermissionDenied(
        f"Unable to save slot: more than the {quota} bytes that may be kept; save over an older file"
    )


class SlotFiles:
    """Saved slots by name, at most `quota` bytes of them (0 = any). `secret` signs them, "" = nobody does."""

    def __init__(self, folder: Path, quota: int = 0, secret: bytes = b"", *, create: bool = False) -> None:
        """`create`: create the folder on the first write."""
        self._folder = folder
        self._create = create
        self._quota = quota
        self.secret = secret

    def of(self, owner: str) -> "SlotFiles":
        """Return the files of one owner, in a folder that is created on the first write; "" = no owner."""
        return SlotFiles(self._folder / owner, self._quota, self.secret, create=True) if owner else self

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> int:
        """Save a file whole or not at all; its bytes. Raises `InternalError` with the system's reason, and
        `PermissionDenied` where it would be too much."""
        if self._create:
            with contextlib.suppress(OSError):  # said when it is opened
                self._folder.mkdir(mode=0o700, exist_ok=True)
        with self._opened_folder("save") as folder:
            left = self._left(folder, name)
            part = f"{_PART}{secrets.token_hex(8)}"
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
            try:
                with open(descriptor, "wb") as file:
                    n_bytes = 0
                    for each in parts:
                        n_bytes += file.write(each)
                        if n_bytes > left:
                            raise too_much(self._quota)
                    file.flush()
                    os.fsync(descriptor)
                self._publish(folder, part, name, n_bytes)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=folder)
                raise
            os.fsync(folder)  # the rename itself
            return n_bytes

    def _left(self, folder: int, name: str) -> float:
        """Return the bytes that `name` may have, given the other files."""
        if not self._quota:
            return math.inf
        kept = 0
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name != name and not entry.name.startswith(_PART):
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        kept += entry.stat().st_size if entry.is_file(follow_symlinks=False) else 0
        return self._quota - kept

    def _publish(self, folder: int, part: str, name: str, n_bytes: int) -> None:
        """Files that are written at once are counted one after the other, whichever process writes them."""
        if self._quota:
            fcntl.flock(folder, fcntl.LOCK_EX)  # until the descriptor is closed
            if n_bytes > self._left(folder, name):
                raise too_much(self._quota)
        try:
            os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:
            raise InvalidRequest("Unable to save slot: a folder has that name", "filename") from None

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[BinaryIO, int]]:
        """A saved file and its size. Raises `InvalidRequest` when there is none, or none that can be a saved slot."""
        with self._opened_folder("restore") as folder:
            descriptor = _open_to_read(name, folder)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise InvalidRequest("Unable to restore slot: it is not a file", "filename")
                with open(descriptor, "rb", closefd=False) as file:
                    yield file, found.st_size
            finally:
                os.close(descriptor)

    def listed(self) -> list[Listed]:
        """What is there, without what is being written. Raises `InternalError`."""
        found: list[Listed] = []
        now = time.time()
        with self._opened_folder("find") as folder, os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process has removed it
                    if entry.is_file(follow_symlinks=False) and not entry.name.startswith(_PART):
                        status = entry.stat(follow_symlinks=False)
                        found.append(Listed(entry.name, status.st_size, max(now - status.st_mtime, 0.0)))
        return found

    def used(self, name: str) -> None:
        """Set the file's time, which is the time of last use. Raises `InternalError`."""
        with self._opened_folder("use") as folder, contextlib.suppress(FileNotFoundError):
            os.utime(name, dir_fd=folder)

    def remove(self, name: str) -> None:
        """One that is gone already is no error. Raises `InternalError`."""
        with self._opened_folder("remove") as folder, contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)

    def remove_stale(self) -> None:
        """Remove unfinished files of processes that ended while saving, at least a day ago."""
        for path in (*self._folder.glob(f"{_PART}*"), *self._folder.glob(f"*/{_PART}*")):
            with contextlib.suppress(FileNotFoundError):  # another process does the same
                if path.lstat().st_mtime < time.time() - STALE_S:
                    path.unlink()

    def remove_unfinished(self) -> None:
        """Remove what was not written to its end, however new: for a folder that only this process writes to."""
        with self._opened_folder("clean up") as folder:
            for name in os.listdir(folder):
                if name.startswith(_PART):
                    os.unlink(name, dir_fd=folder)

    @contextmanager
    def _opened_folder(self, verb: str) -> Iterator[int]:
        """A descriptor of the folder, so that a path that is changed meanwhile leads nowhere else."""
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                yield folder
            finally:
                os.close(folder)
        except OSError as error:
            if self._create and isinstance(error, FileNotFoundError):
                raise InvalidRequest(f"Unable to {verb} slot: there is no such file", "filename") from None
            raise InternalError(f"Unable to {verb} slot: {error.strerror or error}") from error


def _open_to_read(name: str, folder: int) -> int:
    try:
        # O_NONBLOCK: a named pipe must not stop the thread
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise InvalidRequest("Unable to restore slot: there is no such file", "filename") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InvalidRequest("Unable to restore slot: it is a link", "filename") from None
        if error.errno == errno.ENXIO:  # a socket
            raise InvalidRequest("Unable to restore slot: it is not a file", "filename") from None
        raise


_IN_MEMORY = 64 << 20  # bytes; more are kept in a file until they are sent
_BLOCK = 8 << 20  # bytes that are read at once


class UrlFiles:
    """`SavedFiles` at a URL. Its options are those of fsspec's own environment and configuration files
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
        """Return the files of one owner."""
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
