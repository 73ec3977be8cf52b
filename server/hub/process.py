"""Code that the server and its download processes (`server.hub.child`) share: descriptions of files to download, and
processes that can be cancelled.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from server.errors import DownloadFailed
from server.hub.cache import PARTIAL

REPORT_INTERVAL_S = 0.1  # as llama-server (server-models.cpp, server_download_state)
StillWanted = Callable[[], bool]


class HubUnreachable(DownloadFailed):
    """The hub does not answer or is busy; the cache may be used."""


class Cancelled(DownloadFailed):
    """The download was cancelled."""


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file to download to ``path``. ``partial``: the file with received data, which a later download resumes."""

    name: str  # in messages
    url: str
    path: Path
    partial: Path
    size: int = 0  # bytes; 0 = unknown
    sha256: str = ""  # "" = unknown
    xet: bool = False
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The URL without credentials or signatures, for logs and replies."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    @property
    def partial_bytes(self) -> int:
        """Bytes that have been received."""
        with contextlib.suppress(FileNotFoundError):  # also if it is renamed meanwhile
            return self.partial.stat().st_size
        return 0


def partial_of(path: Path) -> Path:
    """Return the path of the received data of an incomplete file."""
    return path.with_name(path.name + PARTIAL)


def check_space(files: Sequence[WantedFile], folder: Path) -> None:
    """Raise `DownloadFailed` if the disk of `folder` has not enough space for the missing data."""
    needed = sum(max(file.size - file.partial_bytes, 0) for file in files if not file.path.exists())
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise DownloadFailed(
            f"'{files[0].name}' needs {_gib(needed)} more, and the disk of {existing} has {_gib(free)} free; "
            "free some space, or set LLAMA_CACHE to another folder"
        )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"


def run(
    command: Sequence[str], text: str, what: str, wanted: StillWanted, poll: Callable[[], None] = lambda: None
) -> "subprocess.CompletedProcess[str]":
    """Run a command with `text` as its input. Kill it and raise `Cancelled` if the result is no longer `wanted`."""
    with subprocess.Popen(  # noqa: S603 (fixed commands)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1"},
        start_new_session=True,  # a Ctrl-C reaches only the server
    ) as process:
        try:
            pending: str | None = text
            while True:
                poll()
                try:
                    output, errors = process.communicate(pending, timeout=REPORT_INTERVAL_S)
                    return subprocess.CompletedProcess(command, process.returncode, output, errors)
                except subprocess.TimeoutExpired:
                    pending = None
                if not wanted():
                    raise Cancelled(f"the download of '{what}' was cancelled")
        finally:
            process.kill()
