"""Puts the page's files in front of the application: a GET of one is answered here, everything else passes."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server.page.files import BuiltIn, FileSource, Folder, NoPage, PageFile
from server.transport.compression import wants_gzip

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
"""No script that stands in a document, none of another host, and no request to one."""
_SAFETY = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _Route:
    """What metrics count a file as."""

    path: str


class Page:
    """Around the application: the files of `files` behind `prefix`. ``policy``: the page is ours, so that we know what
    it may do."""

    def __init__(self, files: FileSource, prefix: str, *, policy: bool) -> None:
        self._files = files
        self._prefix = prefix
        self._headers = _SAFETY if policy else {"X-Content-Type-Options": "nosniff"}
        self._route = _Route(f"{prefix}/{{file}}")

    def has(self, path: str) -> bool:
        """Whether `path`, prefix included, is a file's: everybody may read those."""
        return path.startswith(self._prefix) and self._files.has(path.removeprefix(self._prefix))

    def around(self, app: ASGIApp) -> ASGIApp:
        """`app` with the files in front."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["method"] == "GET" and self.has(scope["path"]):
                path = scope["path"].removeprefix(self._prefix)
                file = await asyncio.to_thread(self._files.read, path)
                if file is not None:
                    scope["route"] = self._route
                    await self._reply(file, scope)(scope, receive, send)
                    return
            await app(scope, receive, send)

        return serve

    def _reply(self, file: PageFile, scope: Scope) -> Response:
        headers = {"ETag": file.etag, "Cache-Control": file.cache, "Vary": "Accept-Encoding", **self._headers}
        asked = dict(scope["headers"])
        known = [
            tag.strip().removeprefix("W/") for tag in asked.get(b"if-none-match", b"").decode("latin-1").split(",")
        ]
        if file.etag in known:
            return Response(status_code=304, headers=headers)
        if file.gzipped is not None and wants_gzip(scope["headers"]):
            headers["Content-Encoding"] = "gzip"
            return Response(file.gzipped, media_type=file.media_type, headers=headers)
        return Response(file.body, media_type=file.media_type, headers=headers)


def page_of(*, ui: bool, folder: Path | None, prefix: str) -> Page:
    """The page that the options ask for; without any there is still what takes another page's worker away."""
    if not ui:
        return Page(NoPage(), prefix, policy=True)
    if folder is not None:
        return Page(Folder(folder), prefix, policy=False)
    return Page(BuiltIn(), prefix, policy=True)
