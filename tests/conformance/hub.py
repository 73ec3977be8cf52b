"""What stands in for the model hub: substitute files (`models`), `tests/support/stand_in_hub.py` that serves them, and
a cache of the hub's form.
"""

import urllib.parse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stand_in_hub import COMMIT, RESOLVE, stand_in_hub

DOWNLOADED = ("ggml-org/test-model-router-download", "ggml-org/test-preset-ci")
"""Repositories that the suite downloads by itself, so that they are in no cache."""
_NO_IMAGE = b"<!doctype html><title>not an image</title>"


class NoSubstituteError(Exception):
    """A model that `models` does not make."""


class Hub:
    """The substitute files in `models`, by the names of the hub's repositories."""

    def __init__(self, models: Path) -> None:
        self._repositories = models / "hub"
        self._images = models / "images"
        self._running = ExitStack()
        self.url = ""

    def start(self) -> None:
        """Answer on the loopback until the process ends; `url` says where."""
        images = {path.name: path.read_bytes() for path in self._images.iterdir()}
        contents = {
            name: {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
            for name, root in self._all()
        }
        hub = self._running.enter_context(stand_in_hub(contents))
        hub.lfs, hub.everywhere, self.url = False, {**images, "index.html": _NO_IMAGE}, hub.url

    def here(self, url: Any) -> Any:
        """A web address that the suite names, on the loopback."""
        if not isinstance(url, str) or not url.startswith("https://"):
            return url
        path = urllib.parse.urlparse(url).path
        if RESOLVE.fullmatch(path):
            return self.url + path
        return self.url + ("/404" if path.endswith("/404") else "/any/page/resolve/main/index.html")

    def file(self, repository: str, path: str) -> Path:
        """A repository's file, which may not be there."""
        return self._repositories / repository / path

    def model(self, repository: str, file: str | None) -> tuple[Path, Path | None]:
        """The model and its mmproj of ``owner/name[:TAG]``. Raises `NoSubstituteError`."""
        name, _, tag = repository.partition(":")
        if file:
            path = self.file(name, file)
            if not path.is_file():
                raise NoSubstituteError(f"{repository} has no substitute file {file}")
            return path, None
        found = sorted((self._repositories / name).rglob("*.gguf"))
        projectors = [path for path in found if "mmproj" in path.name]
        wanted = [path for path in found if path not in projectors and tag.lower() in path.name.lower()]
        if not wanted:
            raise NoSubstituteError(f"no substitute model for {repository}")
        return wanted[0], projectors[0] if projectors else None

    def fill_cache(self, cache: Path) -> None:
        """Lay the files out as the hub's own cache does, with links."""
        for name, root in self._all():
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

    def _all(self) -> list[tuple[str, Path]]:
        return [(f"{root.parent.name}/{root.name}", root) for root in sorted(self._repositories.glob("*/*"))]
