"""A fake Hugging Face hub on loopback, which can be slow, truncate contents, send wrong ones, refuse or redirect.

It imports only the standard library, since llama.cpp's own tests use it (`tests/conformance/hub.py`).
"""

import hashlib
import http.server
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "1" * 40
RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)")
_API = re.compile(r"/api/models/([^/]+/[^/]+)/(refs|tree)(?:/([^/]+))?")


@dataclass(slots=True)
class HubRequest:
    method: str
    path: str
    range: str
    token: str


@dataclass(slots=True)
class FakeHub:
    """Repositories and the faults of the hub. Tests may change the attributes while it runs."""

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    everywhere: dict[str, bytes] = field(default_factory=dict)  # by name: files of every repository
    commit: str = COMMIT
    token: str = ""  # the only accepted token; "" = no authentication
    gated: bool = False
    content_limits: list[int] = field(default_factory=list)  # the next contents are truncated to these numbers of bytes
    busy: int = 0  # the number of next requests that get a 503
    wrong: bytes = b""  # replaces every content
    tag: str = ""  # the ETag of contents, compared with If-Range
    wrong_hashes: dict[str, str] = field(default_factory=dict)  # path -> a wrong SHA-256 in the listing
    names: list[str] = field(default_factory=list)  # further file names in every listing
    redirect_to: str = ""  # contents are redirected to this URL
    lfs: bool = True
    hold: threading.Event | None = None  # contents pause after their first half until it is set
    holding: threading.Event = field(default_factory=threading.Event)
    silent: str = ""  # requests whose path contains this get no reply until the hub stops
    ended: threading.Event = field(default_factory=threading.Event)
    page: int = 0  # entries per page of a listing; 0 = all
    requests: list[HubRequest] = field(default_factory=list)

    def content(self, path: str) -> bytes | None:
        """Return the content at a path of the hub."""
        found = RESOLVE.fullmatch(path)
        files = self.repositories.get(found[1], {}) if found else {}
        return files.get(found[2], self.everywhere.get(PurePosixPath(path).name)) if found else None

    def content_requests(self) -> list[HubRequest]:
        return [request for request in self.requests if "/resolve/" in request.path]

    def entries(self, repository: str) -> list[dict[str, Any]]:
        """Return a listing in the format of the hub's API."""
        found = [{"type": "directory", "path": "folder", "oid": "0" * 40, "size": 0}]
        for path, content in self.repositories[repository].items():
            sha = self.wrong_hashes.get(path, hashlib.sha256(content).hexdigest())
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": "a" * 40}
            if self.lfs:
                entry["lfs"] = {"oid": sha, "size": len(content), "pointerSize": 130}
            else:
                entry["oid"] = hashlib.sha1(content).hexdigest()
            found.append(entry)
        found += [{"type": "file", "path": name, "size": 3, "oid": "b" * 40} for name in self.names]
        return found


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a client that disconnects, since tests read the output."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class QuietHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self.reply()

    def reply(self) -> None:
        """Answer a GET."""
        raise NotImplementedError

    def head(self, status: int, n_bytes: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(n_bytes), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.head(status, len(body), headers)
        self.wfile.write(body)


@contextmanager
def serving(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serve on loopback while the block runs. Yields the port."""
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=lambda: server.serve_forever(0.02), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def fake_hub(repositories: dict[str, dict[str, bytes]] | None = None) -> Iterator[FakeHub]:
    """Serve a `FakeHub` on loopback while the block runs."""
    hub = FakeHub(repositories=repositories or {})
    with serving(_handler(hub)) as port:
        hub.url = f"http://127.0.0.1:{port}"
        try:
            yield hub
        finally:
            hub.ended.set()
            if hub.hold is not None:
                hub.hold.set()


def _handler(hub: FakeHub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(QuietHandler):
        def do_HEAD(self) -> None:
            content = hub.content(unquote(urlsplit(self.path).path))
            self.head(404 if content is None else 200, len(content or b""), {"ETag": hub.tag} if hub.tag else {})

        def reply(self) -> None:
            path = unquote(urlsplit(self.path).path)
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            hub.requests.append(HubRequest(self.command, self.path, self.headers.get("Range", ""), token))
            if hub.silent and hub.silent in path:
                hub.holding.set()
                hub.ended.wait()
            if hub.busy:
                hub.busy -= 1
                return self._send(503, b"busy")
            if hub.gated:
                return self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
            if hub.token and token != hub.token:
                return self._send(401, b'{"error": "Invalid credentials"}')
            if (api := _API.fullmatch(path)) and api[1] in hub.repositories:
                return self._listing(api[1], api[2])
            if (content := hub.content(path)) is not None:
                if hub.redirect_to:
                    return self._send(302, b"", {"Location": hub.redirect_to + self.path})
                return self._content(content)
            return self._send(404, b'{"error": "not found"}')

        def _listing(self, repository: str, kind: str) -> None:
            if kind == "refs":
                branches = [{"name": "main", "ref": "refs/heads/main", "targetCommit": hub.commit}]
                return self._send(200, json.dumps({"branches": branches, "converts": [], "tags": []}).encode())
            entries, query = hub.entries(repository), urlsplit(self.path).query
            begin = int((re.findall(r"cursor=(\d+)", query) or [0])[0])
            end = begin + hub.page if hub.page else len(entries)
            headers = {}
            if end < len(entries):
                path = urlsplit(self.path).path
                headers["Link"] = f'<{hub.url}{path}?recursive=true&cursor={end}>; rel="next"'
            return self._send(200, json.dumps(entries[begin:end]).encode(), headers)

        def _content(self, content: bytes) -> None:
            body, status, headers = hub.wrong or content, 200, {}
            range_ = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if hub.tag:
                headers["ETag"] = hub.tag
                range_ = range_ if self.headers.get("If-Range") == hub.tag else None
            if range_:
                first, last = int(range_[1]), int(range_[2] or len(body) - 1)
                headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
                body, status = body[first : last + 1], 206
            self._send(status, body, headers, limit=hub.content_limits.pop(0) if hub.content_limits else None)

        def _send(
            self, status: int, body: bytes, headers: dict[str, str] | None = None, limit: int | None = None
        ) -> None:
            self.head(status, len(body), headers or {})
            try:
                if hub.hold is not None and status in (200, 206) and "/resolve/" in self.path:
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    hub.holding.set()
                    hub.hold.wait()
                    body = body[len(body) // 2 :]
                self.wfile.write(body[:limit])
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            if limit is not None:
                self.close_connection = True

    return Handler
