"""The files of the web UI: the built-in ones or a folder's (``--path``).

A name under ``_app/`` contains the hash of all modules, so that browsers cache it forever and never mix two
versions; modules import each other by relative addresses. Browsers revalidate all other files by ETag.
"""

import gzip
import hashlib
import json
import mimetypes
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Protocol

from server import __version__

KEPT = "public, max-age=31536000, immutable"
ASKED = "no-cache"
APP = "_app"
_PLAIN = frozenset({".woff2", ".png", ".ico"})  # compressed already
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}

REMOVE_WORKER = b"""\
// Llamapool's web UI has no service worker. A browser that has llama-server's for this URL would continue to show
// llama-server's UI. When the browser updates that worker, this one replaces it and unregisters itself.
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(leave()));
async function leave() {
  await self.registration.unregister();
  for (const name of await caches.keys()) await caches.delete(name);
  for (const client of await self.clients.matchAll({ type: "window" })) client.navigate(client.url);
}
"""


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent. ``gzipped`` None: it would not get smaller."""

    body: bytes
    media_type: str
    etag: str
    gzipped: bytes | None = None
    cache: str = ASKED


class FileSource(Protocol):
    """A source of files. A path is the part after the server's prefix, with its slash."""

    def has(self, path: str) -> bool:
        """Return whether there is a file at `path`. Fast."""

    def read(self, path: str) -> PageFile | None:
        """Return the file at `path`. Blocking."""


class BuiltIn:
    """The package's web UI. All files are read and compressed at the first request."""

    def __init__(self, static: Traversable | None = None) -> None:
        self._static = static or resources.files(__package__).joinpath("static")
        self._top = {"/", "/sw.js"} | {f"/{entry.name}" for entry in self._static.iterdir() if entry.is_file()}

    @cached_property
    def version(self) -> str:
        """The version of the web UI: a hash of all its files."""
        digest = hashlib.sha256()
        for name, body in sorted(self._sources.items()):
            digest.update(f"{name}\0{len(body)}\0".encode() + body)
        return digest.hexdigest()[:16]

    @cached_property
    def _sources(self) -> dict[str, bytes]:
        """Every file by its name below ``static/``."""
        found: dict[str, bytes] = {}

        def collect(folder: Traversable, prefix: str) -> None:
            for entry in folder.iterdir():
                if entry.is_dir():
                    collect(entry, f"{prefix}{entry.name}/")
                else:
                    found[prefix + entry.name] = entry.read_bytes()

        collect(self._static, "")
        return found

    @cached_property
    def _paths(self) -> dict[str, str]:
        """Name below ``static/`` of each path; "" for those that are made."""
        kept = {f"/{APP}/{self.version}/{name}": name for name in self._sources if "/" in name}
        top = {f"/{name}": name for name in self._sources if "/" not in name}
        return kept | top | {"/": "index.html", "/sw.js": "", f"/{APP}/version.json": ""}

    @cached_property
    def _files(self) -> dict[str, PageFile]:
        return {path: self._made(path, name) for path, name in self._paths.items()}

    def has(self, path: str) -> bool:
        """Return whether there is a file at `path`."""
        return path in self._top or (path.startswith(f"/{APP}/") and path in self._paths)

    def read(self, path: str) -> PageFile | None:
        """Return the file at `path`."""
        return self._files.get(path)

    def _made(self, path: str, name: str) -> PageFile:
        if path == "/sw.js":
            return page_file(REMOVE_WORKER, ".js")
        if not name:
            return page_file(json.dumps({"version": self.version, "server": __version__}).encode(), ".json")
        body = self._sources[name]
        if "/" not in name:
            body = body.replace(b"{{app}}", f"{APP}/{self.version}".encode())
        return page_file(body, Path(name).suffix, KEPT if path.startswith(f"/{APP}/") else ASKED)


class Folder:
    """The files of `root`, as they are at that moment; ``index.html`` where a folder is named (llama.cpp
    tools/server/server-http.cpp; cpp-httplib's mount points). Nothing above `root` is reached, by links neither."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def has(self, path: str) -> bool:
        """Return whether there is a file at `path`."""
        return path == "/sw.js" or self._place(path) is not None

    def read(self, path: str) -> PageFile | None:
        """Return the file at `path`."""
        place = self._place(path)
        if place is not None:
            try:
                return page_file(place.read_bytes(), place.suffix.lower())
            except OSError:
                return None  # gone meanwhile, or not ours to read
        return page_file(REMOVE_WORKER, ".js") if path == "/sw.js" else None

    def _place(self, path: str) -> Path | None:
        if "\0" in path or "\\" in path:
            return None
        try:
            place = self._root.joinpath(*[part for part in path.split("/") if part]).resolve()
            if place.is_dir() and path.endswith("/"):
                place = (place / "index.html").resolve()
            return place if place.is_relative_to(self._root) and place.is_file() else None
        except (OSError, RuntimeError):  # a name that is too long, a loop of links
            return None


class NoPage:
    """``--no-ui``: only a script that removes the service worker of a previously served web UI."""

    def has(self, path: str) -> bool:
        """Return whether there is a file at `path`."""
        return path == "/sw.js"

    def read(self, path: str) -> PageFile | None:
        """Return the file at `path`."""
        return page_file(REMOVE_WORKER, ".js") if self.has(path) else None


def page_file(body: bytes, suffix: str, cache: str = ASKED) -> PageFile:
    """Return a file whose name ends in `suffix`."""
    media_type = _TYPES.get(suffix) or mimetypes.types_map.get(suffix, "application/octet-stream")
    gzipped = None if suffix in _PLAIN else gzip.compress(body, 9, mtime=0)
    if gzipped is not None and len(gzipped) >= len(body):
        gzipped = None
    return PageFile(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"', gzipped, cache)
