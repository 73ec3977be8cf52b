"""The model hub of the suite: substitute files (`models`), served by `tests/support/fake_hub.py`, and a download
cache that contains them.
"""

import urllib.parse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fake_hub import COMMIT, RESOLVE, fake_hub

DOWNLOADED = ("ggml-org/test-model-router-download", "ggml-org/test-preset-ci")
"""Repositories that are not in the cache, because the suite tests their download."""
_NO_IMAGE = b"<!doctype html><title>not an image</title>"


class NoSubstituteError(Exception):
    """`models` generates no substitute for a model."""


class Hub:
    """Find and serve the substitute files in the folder `models` by the names of the hub's repositories."""

    def __init__(self, models: Path) -> None:
        self._repositories = models / "hub"
        self._images = models / "images"
        self._running = ExitStack()
        self.url = ""

    def start(self) -> None:
        """Serve at `url`, on loopback, until the process ends."""
        images = {path.name: path.read_bytes() for path in self._images.iterdir()}
        contents = {
            name: {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
            for name, root in self._repository_folders()
        }
        hub = self._running.enter_context(fake_hub(contents))
        hub.lfs, hub.everywhere, self.url = False, {**images, "index.html": _NO_IMAGE}, hub.url

    def on_loopback(self, url: Any) -> Any:
        """Return the URL of the local hub that replaces an ``https://`` URL of the suite; other values unchanged."""
        if not isinstance(url, str) or not url.startswith("https://"):
            return url
        path = urllib.parse.urlparse(url).path
        if RESOLVE.fullmatch(path):
            return self.url + path
        return self.url + ("/404" if path.endswith("/404") else "/any/page/resolve/main/index.html")

    def file(self, repository: str, path: str) -> Path:
        """Return the path of a repository's file, which may not exist."""
        return self._repositories / repository / path

    def model(self, repository: str, file: str | None) -> tuple[Path, Path | None]:
        """Return the model and the mmproj of ``owner/name[:TAG]``. Raises `NoSubstituteError`."""
        name, _, tag = repository.partition(":")
        if file:
            path = self.file(name, file)
            if not path.is_file():
                raise NoSubstituteError(f"{repository} has no substitute file {file}")
            return path, None
        found = sorted((self._repositories / name).rglob("*.gguf"))
        projectors = [path for path in found if "mmproj" in path.name]
        matching = [path for path in found if path not in projectors and tag.lower() in path.name.lower()]
        if not matching:
            raise NoSubstituteError(f"no substitute model for {repository}")
        return matching[0], projectors[0] if projectors else None

    def fill_cache(self, cache: Path) -> None:
        """Link the files into a folder in the layout of the hub's cache."""
        for name, root in self._repository_folders():
            if name in DOWNLOADED:
                continue
            base = cache / ("models--" + name.replace("/", "--"))
            for path in root.rglob("*"):
                if path.is_file():
                    link = base / "snapshots" / COMMIT / path.relative_to(root)
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(path.resolve())
            (base / "refs").mkdir(parents=True, exist_ok=True)
            (base / "refs" / "main").write_text(COMMIT)

    def _repository_folders(self) -> list[tuple[str, Path]]:
        return [(f"{root.parent.name}/{root.name}", root) for root in sorted(self._repositories.glob("*/*"))]
