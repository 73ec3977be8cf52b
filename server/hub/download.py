"""Downloads one file completely and verified, or not at all.

Data is written to ``<path>.incomplete``; a later download, also of another process, resumes it. A lock shared with
huggingface_hub prevents two downloads of the same file. The file gets its name only if its SHA-256 is correct. A
reply whose headers show other content (a proxy's page, another length) is not written.
"""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit, urlunsplit

import httpx2
from huggingface_hub.utils import WeakFileLock

from server.errors import DownloadFailed
from server.hub.cache import PARTIAL
from server.hub.choice import SUFFIX
from server.hub.remote import (
    Cancelled,
    Interrupted,
    RetryPolicy,
    StillWanted,
    check_wanted,
    chunks_of,
    cut_off,
    entered_while_wanted,
    host_of,
    pause,
)
from server.pool.protocols import FileProgress

REPORT_INTERVAL_S = 0.1  # as llama-server (server-models.cpp, server_download_state)
_LOOK_S = 0.2
_READ_BYTES = 1 << 20
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_MAGIC = b"GGUF"


Report = Callable[[FileProgress], None]
Open = Callable[[Mapping[str, str]], AbstractContextManager[httpx2.Response]]
"""Opens the content's address with further headers; raises `Interrupted`."""


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file to download and its destination."""

    name: str  # for people
    url: str
    place: Path
    size: int = 0  # bytes; 0 = as the reply says
    sha256: str = ""  # "" where nobody announced it
    may_change: bool = False  # the address may bring another content tomorrow, which no sum would tell

    @property
    def shown(self) -> str:
        """Its URL without credentials or signatures, for logs and replies."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    @property
    def partial(self) -> Path:
        """Where it grows."""
        return self.place.with_name(self.place.name + PARTIAL)

    @property
    def tag_place(self) -> Path:
        """Where it is kept which content has begun to grow, of those that `may_change`."""
        return self.partial.with_name(self.partial.name + ".etag")

    @property
    def missing(self) -> int:
        """Bytes that are still to be had."""
        if self.place.exists():
            return 0
        return max(self.size - _size_of(self.partial), 0)


def check_space(contents: list[WantedFile], folder: Path) -> None:
    """Raise `DownloadFailed` unless the disk has room for what is missing."""
    needed = sum(content.missing for content in contents)
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise DownloadFailed(
            f"'{contents[0].name}' needs {gib(needed)} more, and the disk of {existing} has {gib(free)} free; "
            "free some space, or set LLAMA_CACHE to another folder"
        )


def fetch(
    content: WantedFile, open_content: Open, lock: Path, patience: RetryPolicy, report: Report, wanted: StillWanted
) -> None:
    """Download `content`. Blocks. Raises `DownloadFailed`, and `Cancelled` once it is not `wanted`. Received data is
    kept for the next attempt, except if the hash is wrong or the disk is full.
    """
    content.place.parent.mkdir(parents=True, exist_ok=True)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with _alone(lock, wanted):
        if not content.place.exists():
            _Transfer(content, open_content, patience, report, wanted).run()
    size = _size_of(content.place)
    report(FileProgress(content.shown, size, size))


class _Transfer:
    """Attempts until the content is complete; those that bring something new don't count."""

    def __init__(
        self, content: WantedFile, open_content: Open, patience: RetryPolicy, report: Report, wanted: StillWanted
    ) -> None:
        self._content = content
        self._open = open_content
        self._patience = patience
        self._report = report
        self._wanted = wanted
        self._total = content.size
        self._reported_at = 0.0
        self._sum = hashlib.sha256()  # of the first `_n_summed` bytes
        self._n_summed = 0
        self._n_replies = 0  # that have brought something

    def run(self) -> None:
        try:
            if self._content.may_change and not _tag_in(self._content.tag_place):
                self._content.partial.unlink(missing_ok=True)  # nobody could say whether the rest is of the same
            begun = _size_of(self._content.partial) > 0
            self._complete()
            if not self._is_right() and (begun or self._n_replies > 1):  # a part of it may be of something else
                self._content.partial.unlink()
                self._complete()
            if not self._is_right():
                self._content.partial.unlink()
                wrong = "its SHA-256 is another" if self._content.sha256 else "it is no GGUF"
                raise DownloadFailed(
                    f"'{self._content.name}': the received file differs from the announced one ({wrong}); "
                    "it was deleted; try again; if the error repeats, the hub's file is damaged"
                )
            with self._content.partial.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(self._content.partial, self._content.place)
            self._content.tag_place.unlink(missing_ok=True)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._content.partial.unlink(missing_ok=True)
            raise DownloadFailed(f"'{self._content.name}': {self._content.place.parent}: {error.strerror}") from None

    def _complete(self) -> None:
        """Until every byte is there."""
        failures, most = 0, 0
        while True:
            try:
                self._receive(_size_of(self._content.partial))
                return
            except Interrupted as error:
                size = _size_of(self._content.partial)
                failures, most = (0, size) if size > most else (failures + 1, most)
                if failures > self._patience.retries:
                    raise DownloadFailed(
                        f"'{self._content.name}': {error}; the received part is kept and used by the next download"
                    ) from None
                pause(self._patience.wait_s * 2 ** max(failures - 1, 0), self._wanted, self._content.name)

    def _receive(self, begun: int) -> None:
        """One connection. Raises `Interrupted` unless it brings all that is missing."""
        if self._total and begun >= self._total:
            if begun > self._total:
                self._content.partial.unlink()
                raise Interrupted("more was there than belongs to it")
            return
        tag = _tag_in(self._content.tag_place) if begun and self._content.may_change else ""
        opening = self._open(({"Range": f"bytes={begun}-"} if begun else {}) | ({"If-Range": tag} if tag else {}))
        with entered_while_wanted(opening, self._wanted, self._content.name) as response:
            if response.status_code == 416 or not self._begins_at(response, begun, tag):
                self._content.partial.unlink(missing_ok=True)
                raise Interrupted("the hub cannot continue the previous download")
            self._total = _total_of(response, self._content.size if response.status_code == 200 else self._total)
            if response.status_code != 206:
                self._content.partial.unlink(missing_ok=True)
                if self._content.may_change:
                    self._content.tag_place.write_text(_tag_of(response))
            self._n_replies += 1
            with self._content.partial.open("ab") as file, _ended_when_unwanted(response, self._wanted):
                self._write(response, file)
        if self._total and _size_of(self._content.partial) != self._total:
            if "Transfer-Encoding" in response.headers:  # whose last byte was marked: it is whole, and something else
                self._content.partial.unlink()
            raise Interrupted("the connection ended early")

    def _begins_at(self, response: httpx2.Response, begun: int, tag: str) -> bool:
        """Return where the reply's data starts: it continues the file if the `tag` matches, otherwise it is the whole
        file.
        """
        said = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        same = not tag or _tag_of(response) in (tag, "")
        return response.status_code != 206 or (said is not None and int(said[1]) == begun and same)

    def _write(self, response: httpx2.Response, file: BinaryIO) -> None:
        done = file.tell()
        if not done:
            self._sum, self._n_summed = hashlib.sha256(), 0
        self._say(done, at_once=True)
        for chunk in chunks_of(response):
            self._check_wanted()
            file.write(chunk)
            if done == self._n_summed:  # on the way, so that nobody waits for it at the end
                self._sum.update(chunk)
                self._n_summed += len(chunk)
            done += len(chunk)
            if self._total and done > self._total:
                raise Interrupted("more came than belongs to it")
            self._say(done)
        self._say(done, at_once=True)

    def _is_right(self) -> bool:
        """Whether the received data has the announced hash, or without one starts as its name promises."""
        if not self._content.sha256:
            with self._content.partial.open("rb") as file:
                return not self._content.name.endswith(SUFFIX) or file.read(len(_MAGIC)) == _MAGIC
        found = self._sum.copy()
        with self._content.partial.open("rb") as file:
            file.seek(self._n_summed)
            while chunk := file.read(_READ_BYTES):
                self._check_wanted()
                found.update(chunk)
        return found.hexdigest() == self._content.sha256.lower()

    def _say(self, done: int, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self._reported_at >= REPORT_INTERVAL_S:
            self._reported_at = now
            self._report(FileProgress(self._content.shown, done, self._total))

    def _check_wanted(self) -> None:
        check_wanted(self._wanted, self._content.name)


def _tag_of(response: httpx2.Response) -> str:
    """Return the strong ETag; a weak one does not identify bytes (RFC 9110, 8.8.1)."""
    tag = response.headers.get("ETag", "")
    return tag if re.fullmatch(r'"[\x21\x23-\x7e]+"', tag) else ""


def _tag_in(place: Path) -> str:
    try:
        return place.read_text()
    except FileNotFoundError:
        return ""


def _total_of(response: httpx2.Response, announced: int) -> int:
    """Return the total bytes: as `announced`, otherwise by the reply (0 = unknown). Raises `Interrupted` if headers
    show other content.
    """
    if response.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "text/html":
        raise Interrupted(
            f"{host_of(str(response.url))} sent a page (text/html) in place of the file: a proxy or a login in between?"
        )
    ranged = _RANGE.fullmatch(response.headers.get("Content-Range", "")) if response.status_code == 206 else None
    encoded = "Content-Encoding" in response.headers  # its length is not the content's
    said = ranged[2] if ranged else "" if encoded else response.headers.get("Content-Length", "")
    total = int(said) if said.isdecimal() else 0
    if announced and total and total != announced:
        raise Interrupted(f"{host_of(str(response.url))} sent {total} bytes where {announced} were announced")
    return announced or total


@contextlib.contextmanager
def _ended_when_unwanted(response: httpx2.Response, wanted: StillWanted) -> Iterator[None]:
    """Close the connection when the download is cancelled or the server stops, even if the hub is silent."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            if not wanted():
                cut_off(response)
                return

    watcher = threading.Thread(target=watch, name="download-watch")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextlib.contextmanager
def _alone(lock: Path, wanted: StillWanted) -> Iterator[None]:
    """Hold the lock of this download; wait for another process's download."""
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(WeakFileLock(lock, timeout=_LOOK_S))
                break
            except TimeoutError:
                if not wanted():
                    raise Cancelled("the download was cancelled") from None
        yield


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def gib(size: int) -> str:
    """Bytes for people."""
    return f"{size / (1 << 30):.2f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"
