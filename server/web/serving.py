"""Middleware that answers GET requests for the web UI's files and passes on everything else."""

import asyncio
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import NotFound
from server.transport.endpoints import TARGET, Target
from server.web.files import BuiltIn, FileSource, Folder, NoPage, PageFile

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data: blob:; "
    "media-src data: blob:; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
    "connect-src 'self'"
)
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


class Page:
    """Serves the web UI's files, with ``headers`` in each response."""

    def __init__(self, files: FileSource, headers: dict[str, str]) -> None:
        self.has = files.has
        self._files = files
        self._headers = headers

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return `app` with the files in front. A file that cannot be read is a 404, never the endpoint of its name."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            target: Target | None = scope.get(TARGET)  # none for a lifespan
            if target is None or not target.is_page:
                await app(scope, receive, send)
                return
            file = await asyncio.to_thread(self._files.read, target.path)
            if file is None:
                raise NotFound("File Not Found")
            await self._reply(file, scope)(scope, receive, send)

        return serve

    def _reply(self, file: PageFile, scope: Scope) -> Response:
        headers = {"ETag": file.etag, "Cache-Control": file.cache, "Vary": "Accept-Encoding", **self._headers}
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


def page_of(*, ui: bool, folder: Path | None, connect: tuple[str, ...]) -> Page:
    """Return the web UI that the options select. Without one, it still removes a previously served service worker."""
    if not ui:
        return Page(NoPage(), security_headers(()))
    if folder is not None:
        return Page(Folder(folder), _NO_SNIFFING)
    return Page(BuiltIn(), security_headers(connect))
