"""Middleware that answers GET requests for the web UI's files and passes on everything else."""

import asyncio
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import NotFound
from server.transport.endpoints import TARGET, Target
from server.web.files import BuiltIn, FileSource, Folder, NoPage, PageFile

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "font-src 'self'",
        "img-src 'self' data: blob:",
        "media-src data: blob:",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    )
)
"""Forbids inline scripts, scripts from other hosts, and requests to other hosts."""
_SAFETY = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Page:
    """Serves the web UI's files. ``policy``: whether to send our security policy, for the built-in web UI."""

    def __init__(self, files: FileSource, *, policy: bool) -> None:
        self.has = files.has
        self._files = files
        self._headers = _SAFETY if policy else {"X-Content-Type-Options": "nosniff"}

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


def page_of(*, ui: bool, folder: Path | None) -> Page:
    """Return the web UI that the options select. Without one, it still removes a previously served service worker."""
    if not ui:
        return Page(NoPage(), policy=True)
    if folder is not None:
        return Page(Folder(folder), policy=False)
    return Page(BuiltIn(), policy=True)
