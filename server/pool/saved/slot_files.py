"""The folder of saved slots. Any number of processes may save to it and restore from it at once.

A file appears, or replaces an older one, by a rename once all of it is on the disk; whoever opened the older one
reads that to its end. Names cannot leave the folder, and links in it are not followed. All blocking.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from server.errors import InternalError, InvalidRequest

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


class SlotFiles:
    """Saved slots by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> int:
        """Save a file whole or not at all; its bytes. Raises `InternalError` with the system's reason."""
        with self._opened_folder("save") as folder:
            part = f"{_PART}{secrets.token_hex(8)}"
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)
            try:
                with open(descriptor, "wb") as file:
                    n_bytes = sum(map(file.write, parts))
                    file.flush()
                    os.fsync(descriptor)
                self._publish(folder, part, name)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=folder)
                raise
            os.fsync(folder)  # the rename itself
            return n_bytes

    def _publish(self, folder: int, part: str, name: str) -> None:
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

    def remove_stale(self) -> None:
        """Remove what processes left behind that ended in the middle of saving, a day ago or earlier."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process does the same
                    if (
                        entry.name.startswith(_PART)
                        and entry.stat(follow_symlinks=False).st_mtime < time.time() - STALE_S
                    ):
                        os.unlink(entry.path)

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
