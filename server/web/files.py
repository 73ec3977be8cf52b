"""The files of the web UI: the built-in ones or those of a folder (``--path``).

A path under ``_app/`` contains the hash of all modules, so that browsers cache it forever and never mix two versions.
Modules import each other by relative URLs. Browsers revalidate all other files by ETag.
"""

import asyncio
import hashlib
import json
import os
import stat
from functools import cached_property
from pathlib import Path, PurePosixPath

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from server import __version__
from server.errors import NotFound
from server.transport.endpoints import TARGET, Target
from server.transport.sse import HEAD_ONLY, compressed

STATIC = Path(__file__).parent / "static"
IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"
APP = "_app"
_VERSION_FILE = f"/{APP}/version.json"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".gz": "application/gzip",
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


class FileSource:
    """A source of files, which are sent with ``headers``. A path is the part after the API prefix, with its slash.

    The base class (``--no-ui``) has only a script that removes the service worker of a previously served web UI.
    """

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = {"Cache-Control": REVALIDATE, **headers}

    def has(self, path: str) -> bool:
        """Return whether there is a file at `path`. Fast."""
        return path == "/sw.js"

    def reply(self, path: str, scope: Scope) -> Response | None:
        """Return the reply with the file at `path`. Blocking."""
        return Response(REMOVE_WORKER, media_type=_TYPES[".js"], headers=self._headers) if path == "/sw.js" else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the file of the request's target, compressed. Raises `NotFound` if it cannot be read."""
        target: Target = scope[TARGET]
        if scope.get(HEAD_ONLY):  # without reading the file
            scope = {**scope, "method": "HEAD"}
        reply = await asyncio.to_thread(self.reply, target.path, scope)
        if reply is None:
            raise NotFound("File Not Found")
        await compressed(reply)(scope, receive, send)


class BuiltIn(FileSource):
    """The package's web UI. All files are read at the first request."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__(headers)
        self._top = {"/", "/sw.js"} | {f"/{entry.name}" for entry in STATIC.iterdir() if entry.is_file()}

    @cached_property
    def _files(self) -> tuple[str, dict[str, bytes]]:
        """The hash of all files, and the content of each file by its path."""
        files = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in STATIC.rglob("*") if path.is_file()}
        digest = hashlib.sha256(REMOVE_WORKER + __version__.encode())
        for name, body in sorted(files.items()):
            digest.update(f"{name}\0{len(body)}\0".encode() + body)
        version = digest.hexdigest()[:16]
        app = f"{APP}/{version}"
        modules = {f"/{app}/{name}": body for name, body in files.items() if "/" in name}
        top = {f"/{name}": body.replace(b"{{app}}", app.encode()) for name, body in files.items() if "/" not in name}
        version_file = json.dumps({"version": version, "server": __version__}).encode()
        return version, modules | top | {"/": top["/index.html"], "/sw.js": REMOVE_WORKER, _VERSION_FILE: version_file}

    def has(self, path: str) -> bool:
        return path in self._top or (path.startswith(f"/{APP}/") and path in self._files[1])

    def reply(self, path: str, scope: Scope) -> Response | None:
        version, files = self._files
        if path not in files:
            return None
        headers = {**self._headers, "ETag": f'"{version}"'}
        if path.startswith(f"/{APP}/") and path != _VERSION_FILE:
            headers["Cache-Control"] = IMMUTABLE
        if path.endswith("/diagram.html"):
            headers["Content-Security-Policy"] = _DIAGRAM_POLICY
        known = Headers(scope=scope).get("if-none-match", "").split(",")
        if headers["ETag"] in [tag.strip().removeprefix("W/") for tag in known]:
            return Response(status_code=304, headers=headers)
        suffix = ".html" if path == "/" else PurePosixPath(path).suffix
        return Response(files[path], media_type=_TYPES[suffix], headers=headers)


class Folder(FileSource):
    """The files of `root`, read at each request. A path of a folder returns its ``index.html``, as in llama-server
    (tools/server/server-http.cpp; cpp-httplib's mount points). Files outside `root` are never served, even by links."""

    def __init__(self, root: Path) -> None:
        super().__init__(_NO_SNIFFING)
        self._files = StaticFiles(directory=root, check_dir=False)

    def has(self, path: str) -> bool:
        return super().has(path) or self._find(path) is not None

    def reply(self, path: str, scope: Scope) -> Response | None:
        found = self._find(path)
        if found is None:
            return super().reply(path, scope)
        name, status = found
        if not os.access(name, os.R_OK):
            return None
        reply = self._files.file_response(name, status, scope)
        reply.headers.update(self._headers)
        if kind := _TYPES.get(PurePosixPath(name).suffix.lower()):
            reply.headers["Content-Type"] = kind
        return reply

    def _find(self, path: str) -> tuple[str, os.stat_result] | None:
        """Return the name and status of the file at `path`, None without one."""
        if "\\" in path:
            return None
        try:
            name, status = self._files.lookup_path((path + "index.html" * path.endswith("/")).lstrip("/"))
        except (OSError, ValueError):  # the name is too long or has a NUL, or links form a loop
            return None
        return (name, status) if status is not None and stat.S_ISREG(status.st_mode) else None


_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data: blob:; "
    "media-src data: blob:; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
    "frame-src 'self'; connect-src 'self'"
)
_DIAGRAM_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""The policy of the frame that runs Mermaid, which writes styles: no origin, no storage, no requests."""
_LOOPBACK = ("http://127.0.0.1:*", "http://localhost:*")
_NO_SNIFFING = {"X-Content-Type-Options": "nosniff"}


def security_headers(connect: tuple[str, ...]) -> dict[str, str]:
    """Forbid inline scripts, scripts from other hosts, and requests to other hosts except ``connect``.

    ``connect``: sources of ``connect-src``, for MCP servers; ``loopback`` means loopback addresses.
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
