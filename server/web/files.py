"""The files of the web UI, the built-in ones or a folder's (``--path``), served by a middleware.

A name under ``_app/`` contains the hash of all modules, so that browsers cache it forever and never mix two
versions; modules import each other by relative addresses. Browsers revalidate all other files by ETag.
"""

import asyncio
import gzip
import hashlib
import json
import mimetypes
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server import __version__
from server.errors import NotFound
from server.transport.endpoints import TARGET, Target

STATIC = Path(__file__).parent / "static"
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
    """One file as it is sent. ``gzipped`` None: it would not get smaller. ``policy``: replaces the page's CSP."""

    body: bytes
    media_type: str
    etag: str
    gzipped: bytes | None = None
    cache: str = ASKED
    policy: str | None = None


class FileSource:
    """A source of files, which are sent with ``headers``. A path is the part after the server's prefix, with its slash.

    This one (``--no-ui``) has only a script that removes the service worker of a previously served web UI.
    """

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    def has(self, path: str) -> bool:
        """Return whether there is a file at `path`. Fast."""
        return path == "/sw.js"

    def read(self, path: str) -> PageFile | None:
        """Return the file at `path`. Blocking."""
        return page_file(REMOVE_WORKER, ".js") if path == "/sw.js" else None

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return `app` with the files in front. A file that cannot be read is a 404, never the endpoint of its name."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            target: Target | None = scope.get(TARGET)  # none for a lifespan
            if target is None or not target.is_page:
                await app(scope, receive, send)
                return
            file = await asyncio.to_thread(self.read, target.path)
            if file is None:
                raise NotFound("File Not Found")
            await self._reply(file, scope)(scope, receive, send)

        return serve

    def _reply(self, file: PageFile, scope: Scope) -> Response:
        headers = {"ETag": file.etag, "Cache-Control": file.cache, "Vary": "Accept-Encoding", **self._headers}
        if file.policy is not None:
            headers["Content-Security-Policy"] = file.policy
        asked = dict(scope["headers"])
        known = [
            tag.strip().removeprefix("W/") for tag in asked.get(b"if-none-match", b"").decode("latin-1").split(",")
        ]
        if file.etag in known:
            return Response(status_code=304, headers=headers)
        if file.gzipped is not None and b"gzip" in asked.get(b"accept-encoding", b""):
            headers["Content-Encoding"] = "gzip"
            return Response(file.gzipped, media_type=file.media_type, headers=headers)
        return Response(file.body, media_type=file.media_type, headers=headers)


class BuiltIn(FileSource):
    """The package's web UI. All files are read at the first request; each is compressed when it is first sent."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__(headers)
        self._made: dict[str, PageFile] = {}
        self._top = {"/", "/sw.js"} | {f"/{entry.name}" for entry in STATIC.iterdir() if entry.is_file()}

    @cached_property
    def _sources(self) -> dict[str, bytes]:
        """Every file by its path."""
        files = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in STATIC.rglob("*") if path.is_file()}
        digest = hashlib.sha256()
        for name, body in sorted(files.items()):
            digest.update(f"{name}\0{len(body)}\0".encode() + body)
        version = digest.hexdigest()[:16]
        app = f"{APP}/{version}"
        kept = {f"/{app}/{name}": body for name, body in files.items() if "/" in name}
        top = {f"/{name}": body.replace(b"{{app}}", app.encode()) for name, body in files.items() if "/" not in name}
        about = json.dumps({"version": version, "server": __version__}).encode()
        return kept | top | {"/": top["/index.html"], "/sw.js": REMOVE_WORKER, f"/{APP}/version.json": about}

    def has(self, path: str) -> bool:
        return path in self._top or (path.startswith(f"/{APP}/") and path in self._sources)

    def read(self, path: str) -> PageFile | None:
        if path not in self._made and path in self._sources:
            is_kept = path.startswith(f"/{APP}/") and path != f"/{APP}/version.json"
            suffix = ".html" if path == "/" else Path(path).suffix
            made = page_file(self._sources[path], suffix, KEPT if is_kept else ASKED)
            self._made[path] = replace(made, policy=_DIAGRAM_POLICY) if path.endswith("/diagram.html") else made
        return self._made.get(path)


class Folder(FileSource):
    """The files of `root`, as they are at that moment; ``index.html`` where a folder is named (llama.cpp
    tools/server/server-http.cpp; cpp-httplib's mount points). Nothing above `root` is reached, by links neither."""

    def __init__(self, root: Path) -> None:
        super().__init__(_NO_SNIFFING)
        self._root = root.resolve()

    def has(self, path: str) -> bool:
        return super().has(path) or self._place(path) is not None

    def read(self, path: str) -> PageFile | None:
        place = self._place(path)
        if place is None:
            return super().read(path)
        try:
            return page_file(place.read_bytes(), place.suffix.lower())
        except OSError:
            return None  # gone meanwhile, or not ours to read

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


def page_file(body: bytes, suffix: str, cache: str = ASKED) -> PageFile:
    """Return a file whose name ends in `suffix`."""
    media_type = _TYPES.get(suffix) or mimetypes.types_map.get(suffix, "application/octet-stream")
    gzipped = None if suffix in _PLAIN else gzip.compress(body, 9, mtime=0)
    if gzipped is not None and len(gzipped) >= len(body):
        gzipped = None
    return PageFile(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"', gzipped, cache)


_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data: blob:; "
    "media-src data: blob:; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
    "frame-src 'self'; connect-src 'self'"
)
_DIAGRAM_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""Of the frame that runs Mermaid, which writes styles: no origin, no storage, no requests."""
_LOOPBACK = ("http://127.0.0.1:*", "http://localhost:*")
_NO_SNIFFING = {"X-Content-Type-Options": "nosniff"}


def security_headers(connect: tuple[str, ...]) -> dict[str, str]:
    """Forbid inline scripts, scripts from other hosts, and requests to other hosts except ``connect``.

    ``connect``: sources of ``connect-src``, for MCP servers; ``loopback`` means this machine.
    """
    sources = [source for each in connect for source in (_LOOPBACK if each == "loopback" else (each,))]
    return _NO_SNIFFING | {
        "Content-Security-Policy": " ".join((_POLICY, *sources)),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
    }


def page_of(*, ui: bool, folder: Path | None, connect: tuple[str, ...]) -> FileSource:
    """Return the web UI that the options select. Without one, it still removes a previously served service worker."""
    if not ui:
        return FileSource(security_headers(()))
    return BuiltIn(security_headers(connect)) if folder is None else Folder(folder)
