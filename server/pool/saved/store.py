"""Files by name: in a folder (`SlotFiles`), or at a URL of an object store by fsspec (`UrlFiles`). All methods block.

Any number of processes may write and read concurrently. A file in a folder is created or replaced by a rename after all
of it is on the disk. Names cannot leave the folder, and links in it are not followed. A file at a URL exists after its
upload. At worst, a reader of the replaced file finds it damaged, since every byte is hashed. A URL requires the package
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
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from server.errors import (
    ConfigError,
    InternalError,
    InvalidRequest,
    LlamapoolError,
    PermissionDenied,
    without_credentials,
)

MAX_NAME_BYTES = 255
STALE_S, UNLOCKED_S = 24 * 3600.0, 10.0
"""Seconds after which an unfinished file counts as abandoned, and the same for a file that is not locked."""
_UNFINISHED = ".saving-"  # prefix of the names of files that are being written
# llama.cpp common/common.cpp, fs_validate_filename: control and surrogate characters, those that Windows forbids, and
# characters that look like a dot or a separator
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f-\x9f\uff0e\u2215\u2216\ud800-\udfff\ufffd\ufeff:*?"<>|/\\]|\.\.')


def check_name(name: object) -> str:
    """Return `name` if llama-server accepts it, and if no unfinished file may have it. Raises `InvalidRequest`."""
    if not isinstance(name, str):
        raise InvalidRequest("filename: must be a string", "filename")
    forbidden = (
        not name or _FORBIDDEN.search(name) or name[0] == " " or name[-1] in " ." or name.startswith(_UNFINISHED)
    )
    if forbidden or len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidRequest("Invalid filename", "filename")
    return name


@dataclass(frozen=True, slots=True)
class Listed:
    """An existing file. ``age_s``: seconds since its last use; at a URL, since it was written."""

    name: str
    n_bytes: int
    age_s: float


@contextmanager
def _reported(verb: str, place: str = "") -> Iterator[None]:
    """Raise `InvalidRequest` for a missing file to read, and `InternalError` for all other errors of a store."""
    try:
        yield
    except LlamapoolError:
        raise
    except Exception as error:  # packages of object stores define other errors
        if isinstance(error, FileNotFoundError) and verb == "restore":
            raise InvalidRequest("Unable to restore slot: there is no such file", "filename") from None
        reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        raise InternalError(f"Unable to {verb} slot: {place}{reason}") from error


def _check_quota(quota: int, listed: Iterable[Listed], name: str, n_bytes: int) -> None:
    if n_bytes + sum(one.n_bytes for one in listed if one.name != name) > quota:
        raise PermissionDenied(
            f"Unable to save slot: more than the {quota} bytes that may be kept; save over an older file"
        )


class SlotFiles:
    """Saved slots by name, at most `quota` bytes of them (0 = unlimited). `secret` signs them; empty = unsigned.

    Methods raise `InternalError` with the system's reason.
    """

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
        """Write a file completely or not at all, and return its bytes. Raises `PermissionDenied` above the quota."""
        part = self._folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
        with _reported("save"):
            if self._create:
                self._folder.mkdir(mode=0o700, exist_ok=True)
            try:
                with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                    with contextlib.suppress(OSError):  # some file systems do not support locks
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    n_bytes, left = 0, self._quota or math.inf
                    for each in parts:
                        n_bytes += file.write(each)
                        if n_bytes > left:
                            break  # `_publish` refuses the file
                    file.flush()
                    os.fsync(file.fileno())
                    self._publish(part, name, n_bytes)
            finally:
                part.unlink(missing_ok=True)
        return n_bytes

    def _publish(self, part: Path, name: str, n_bytes: int) -> None:
        """Rename a written file to `name`. A lock serializes the check of the quota between processes."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if self._quota:
                fcntl.flock(folder, fcntl.LOCK_EX)  # until the descriptor is closed
                self.remove_stale()
                _check_quota(self._quota, self.listed(), name, n_bytes)
            part.replace(self._folder / name)
            os.fsync(folder)  # makes the rename durable
        except IsADirectoryError:
            raise InvalidRequest("Unable to save slot: a folder has that name", "filename") from None
        finally:
            os.close(folder)

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[BinaryIO, int]]:
        """Open a file; yield it and its size. Raises `InvalidRequest` if it does not exist or is no regular file."""
        with _reported("restore"):
            try:
                # O_NONBLOCK: a named pipe must not block the thread
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = os.open(self._folder / name, flags)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENXIO):
                    raise
                what = "a link" if error.errno == errno.ELOOP else "not a file"
                raise InvalidRequest(f"Unable to restore slot: it is {what}", "filename") from None
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise InvalidRequest("Unable to restore slot: it is not a file", "filename")
                with open(descriptor, "rb", closefd=False) as file:
                    yield file, found.st_size
            finally:
                os.close(descriptor)

    def listed(self) -> list[Listed]:
        """Return all files except those that are being written."""
        found: list[Listed] = []
        now = time.time()
        with _reported("find"), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process has removed it
                    if entry.is_file(follow_symlinks=False) and not entry.name.startswith(_UNFINISHED):
                        status = entry.stat(follow_symlinks=False)
                        found.append(Listed(entry.name, status.st_size, max(now - status.st_mtime, 0.0)))
        return found

    def folders(self) -> list[str]:
        """Return the names of subfolders; none if the folder does not exist."""
        with _reported("find"), contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return []

    def used(self, name: str) -> None:
        """Set the file's modification time, which is the time of its last use."""
        with _reported("use"), contextlib.suppress(FileNotFoundError):
            os.utime(self._folder / name)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with _reported("remove"):
            (self._folder / name).unlink(missing_ok=True)

    def remove_stale(self) -> None:
        """Remove unfinished files of ended writers, also those of owners."""
        for path in (*self._folder.glob(f"{_UNFINISHED}*"), *self._folder.glob(f"*/{_UNFINISHED}*")):
            with contextlib.suppress(OSError):  # another process has removed it, or the folder is read-only
                age_s = time.time() - path.lstat().st_mtime
                if age_s >= STALE_S or (age_s >= UNLOCKED_S and not _is_locked(path)):
                    path.unlink()


def _is_locked(path: Path) -> bool:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


_BLOCK = 8 << 20  # bytes of one request


class UrlFiles:
    """`SavedFiles` at a URL. Options are those of fsspec's environment variables and configuration files
    (FSSPEC_S3_ENDPOINT_URL, AWS_PROFILE …). Raises ConfigError if the URL's package is not installed. Methods without a
    docstring have one in `SlotFiles`.
    """

    def __init__(self, url: str, quota: int = 0, secret: bytes = b"") -> None:
        import fsspec  # only if it is used

        self.url = url.rstrip("/")
        self._shown = f"{without_credentials(self.url)}: "
        self._quota = quota
        self.secret = secret
        try:
            self._store, self._path = fsspec.core.url_to_fs(self.url)  # type: ignore[no-untyped-call]
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{without_credentials(url)}: {error}; for s3:// pip install s3fs") from None

    def of(self, owner: str) -> "UrlFiles":
        return UrlFiles(f"{self.url}/{owner}", self._quota, self.secret) if owner else self

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> int:
        with _reported("save", self._shown):
            views = [memoryview(each) for each in parts]  # without copies of the state
            n_bytes = sum(map(len, views))
            if self._quota:
                _check_quota(self._quota, self.listed(), name, n_bytes)
            self._store.makedirs(self._path, exist_ok=True)
            with self._store.open(f"{self._path}/{name}", "wb", block_size=_BLOCK) as file:
                for view in views:
                    for at in range(0, len(view), _BLOCK):
                        file.write(view[at : at + _BLOCK])
            return n_bytes

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[BinaryIO, int]]:
        with (
            _reported("restore", self._shown),
            self._store.open(f"{self._path}/{name}", "rb", block_size=_BLOCK) as file,
        ):
            n_bytes = file.seek(0, io.SEEK_END)
            file.seek(0)
            yield cast(BinaryIO, file), n_bytes

    def listed(self) -> list[Listed]:
        return [Listed(name, one["size"], _age_s(one)) for name, one in self._list("file")]

    def folders(self) -> list[str]:
        return [name for name, _ in self._list("directory")]

    def _list(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        with _reported("find", self._shown):
            try:
                self._store.invalidate_cache(self._path)  # other processes write there, too
                found: list[dict[str, Any]] = self._store.ls(self._path, detail=True)
            except FileNotFoundError:
                return []
        return [(one["name"].rstrip("/").rsplit("/", 1)[-1], one) for one in found if one["type"] == kind]

    def used(self, name: str) -> None:
        """Do nothing: a store has no time of last use."""

    def remove(self, name: str) -> None:
        with _reported("remove", self._shown):
            try:
                self._store.rm_file(f"{self._path}/{name}")
            except FileNotFoundError:
                return

    def remove_stale(self) -> None:
        """Do nothing: an unfinished upload is no file."""


def _age_s(found: dict[str, Any]) -> float:
    at = found.get("LastModified") or found.get("mtime") or found.get("created")
    at = at.timestamp() if isinstance(at, datetime) else at
    return max(time.time() - at, 0.0) if isinstance(at, int | float) else 0.0


SavedFiles = SlotFiles | UrlFiles
