"""Starts download processes (`server.hub.child`), reports their progress, and kills them when they are cancelled."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from server.errors import DownloadFailed, NotFound
from server.hub.cache import PARTIAL

REPORT_INTERVAL_S = 0.1  # as llama-server (server-models.cpp, server_download_state)
_BOOT = "import sys; sys.path[:] = sys.argv[1:]; from server.hub.child import main; main()"
Report = Callable[[Any], None]
"""Gets a `server.pool.protocols.FileProgress`, whose import would be half of a download process's start time."""
StillWanted = Callable[[], bool]


class HubUnreachable(DownloadFailed):
    """The hub does not answer or is busy; the cache may be used."""


class Cancelled(DownloadFailed):
    """The result is no longer wanted."""


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file to download and its destination. ``partial``: received data, which a later download resumes."""

    name: str  # in messages
    url: str
    place: Path
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
        with contextlib.suppress(FileNotFoundError):  # also of a file that gets its name meanwhile
            return self.partial.stat().st_size
        return 0


def partial_of(place: Path) -> Path:
    """Return where the data of a file are written before it gets its name."""
    return place.with_name(place.name + PARTIAL)


def check_space(files: Sequence[WantedFile], folder: Path) -> None:
    """Raise `DownloadFailed` unless the disk has space for the missing data."""
    needed = sum(max(file.size - file.partial_bytes, 0) for file in files if not file.place.exists())
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise DownloadFailed(
            f"'{files[0].name}' needs {_gib(needed)} more, and the disk of {existing} has {_gib(free)} free; "
            "free some space, or set LLAMA_CACHE to another folder"
        )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"


@dataclass(frozen=True)
class DownloadProcess:
    """Calls to one hub, each in its own process. Delays of retries are 1, 2, 4 times ``retry_wait_s``.

    ``report`` gets the progress of downloads. Every `REPORT_INTERVAL_S`, ``wanted`` says whether the result still is.
    """

    endpoint: str = ""
    token: str = field(default="", repr=False)
    retry_wait_s: float = 1.0
    report: Report = lambda _: None
    wanted: StillWanted = lambda: True

    @property
    def base(self) -> str:
        """The hub's URL. (`huggingface_hub.constants` takes long to import.)"""
        return (self.endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")

    def call(self, action: str, what: str, poll: Callable[[], None] = lambda: None, **arguments: Any) -> Any:
        """Return the result of an action of `server.hub.child.Downloader`; `poll` is called while it runs. Raises
        `NotFound`, `DownloadFailed`, and `Cancelled` soon after the result is not `wanted`.
        """
        request = {
            "action": action,
            "what": what,
            "arguments": arguments,
            "endpoint": self.base,
            "token": self.token,
            "retry_wait_s": self.retry_wait_s,
            "parent": os.getpid(),
        }
        command = [sys.executable, "-I", "-c", _BOOT, *map(os.path.abspath, sys.path)]
        output = run(command, json.dumps(request, default=str), what, self.wanted, poll)
        try:
            answer = json.loads(output.stdout)
        except ValueError:
            last = output.stderr.strip().splitlines()[-1:]
            raise DownloadFailed(f"'{what}': the download process failed: {''.join(last)[:300]}") from None
        if "error" in answer:
            kinds = {kind.__name__: kind for kind in (NotFound, HubUnreachable)}
            raise kinds.get(answer["error"], DownloadFailed)(answer["message"])
        return answer["result"]

    def download(self, file: WantedFile, lock: Path) -> None:
        """Download a file unless it exists. Raises as `call`."""
        from server.pool.protocols import FileProgress

        last = -1

        def poll() -> None:
            nonlocal last
            if (done := file.partial_bytes) != last and not file.place.exists():
                self.report(FileProgress(file.shown, done, file.size))
                last = done

        if not file.place.exists():
            self.call("download", file.name, poll, file=asdict(file), lock=lock)
        size = file.place.stat().st_size
        self.report(FileProgress(file.shown, size, size))


def run(
    command: Sequence[str], text: str, what: str, wanted: StillWanted, poll: Callable[[], None] = lambda: None
) -> "subprocess.CompletedProcess[str]":
    """Run a command with `text` as its input and kill it when the result is not `wanted`. Raises `Cancelled`."""
    with subprocess.Popen(  # noqa: S603 (our own command)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1"},
        start_new_session=True,  # a Ctrl-C is for the server
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
