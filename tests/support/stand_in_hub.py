"""A hub on the loopback that misbehaves as it is told to: slow, cut off, wrong, forbidding, elsewhere.

It imports the standard library only: llama.cpp's own tests use it (`tests/conformance/hub.py`).
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
class Asked:
    method: str
    path: str
    range: str
    token: str


@dataclass(slots=True)
class StandInHub:
    """Repositories, and what is wrong with them. Attributes may be changed while it answers."""

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    everywhere: dict[str, bytes] = field(default_factory=dict)  # by name: contents that are in every repository
    commit: str = COMMIT
    token: str = ""  # the only one that is let in; "" = everybody
    gated: bool = False
    cuts: list[int] = field(default_factory=list)  # each of the next contents ends after so many bytes
    busy: int = 0  # so many of the next requests get a 503
    wrong: bytes = b""  # comes in place of every content
    tag: str = ""  # the ETag of contents, which If-Range is compared with
    lies: dict[str, str] = field(default_factory=dict)  # path -> the sum that is announced for it
    names: list[str] = field(default_factory=list)  # further names in every listing
    elsewhere: str = ""  # contents are at this hub
    lfs: bool = True
    hold: threading.Event | None = None  # contents stop after their first half until it is set
    holding: threading.Event = field(default_factory=threading.Event)
    silent: str = ""  # requests whose path has this in it get no answer until the hub ends
    ended: threading.Event = field(default_factory=threading.Event)
    page: int = 0  # entries of one page of a listing; 0 = all
    asked: list[Asked] = field(default_factory=list)

    def content(self, path: str) -> bytes | None:
        """The content at a path of the hub."""
        found = RESOLVE.fullmatch(path)
        files = self.repositories.get(found[1], {}) if found else {}
        return files.get(found[2], self.everywhere.get(PurePosixPath(path).name)) if found else None

    def contents_asked(self) -> list[Asked]:
        return [asked for asked in self.asked if "/resolve/" in asked.path]

    def entries(self, repository: str) -> list[dict[str, Any]]:
        """A listing, as the hub's API has it."""
        found = [{"type": "directory", "path": "folder", "oid": "0" * 40, "size": 0}]
        for path, content in self.repositories[repository].items():
            sha = self.lies.get(path, hashlib.sha256(content).hexdigest())
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
        """A client that goes before it has read all is no fault; its trace would stand in what a test reads."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class QuietHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing."""

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
    """Answer on the loopback while the block runs; the port."""
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
def stand_in_hub(repositories: dict[str, dict[str, bytes]] | None = None) -> Iterator[StandInHub]:
    """Answers on the loopback while the block runs."""
    hub = StandInHub(repositories=repositories or {})
    with serving(_handler(hub)) as port:
        hub.url = f"http://127.0.0.1:{port}"
        try:
            yield hub
        finally:
            hub.ended.set()
            if hub.hold is not None:
                hub.hold.set()


def _handler(hub: StandInHub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(QuietHandler):
        def do_HEAD(self) -> None:
            content = hub.content(unquote(urlsplit(self.path).path))
            self.head(404 if content is None else 200, len(content or b""), {"ETag": hub.tag} if hub.tag else {})

        def reply(self) -> None:
            path = unquote(urlsplit(self.path).path)
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            hub.asked.append(Asked(self.command, self.path, self.headers.get("Range", ""), given))
            if hub.silent and hub.silent in path:
                hub.holding.set()
                hub.ended.wait()
            if hub.busy:
                hub.busy -= 1
                return self._say(503, b"busy")
            if hub.gated:
                return self._say(403, b"{}", {"X-Error-Code": "GatedRepo"})
            if hub.token and given != hub.token:
                return self._say(401, b'{"error": "Invalid credentials"}')
            if (api := _API.fullmatch(path)) and api[1] in hub.repositories:
                return self._listing(api[1], api[2])
            if (content := hub.content(path)) is not None:
                if hub.elsewhere:
                    return self._say(302, b"", {"Location": hub.elsewhere + self.path})
                return self._content(content)
            return self._say(404, b'{"error": "not found"}')

        def _listing(self, repository: str, kind: str) -> None:
            if kind == "refs":
                branches = [{"name": "main", "ref": "refs/heads/main", "targetCommit": hub.commit}]
                return self._say(200, json.dumps({"branches": branches, "converts": [], "tags": []}).encode())
            entries, query = hub.entries(repository), urlsplit(self.path).query
            begin = int((re.findall(r"cursor=(\d+)", query) or [0])[0])
            end = begin + hub.page if hub.page else len(entries)
            headers = {}
            if end < len(entries):
                address = urlsplit(self.path).path
                headers["Link"] = f'<{hub.url}{address}?recursive=true&cursor={end}>; rel="next"'
            return self._say(200, json.dumps(entries[begin:end]).encode(), headers)

        def _content(self, content: bytes) -> None:
            body, status, headers = hub.wrong or content, 200, {}
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if hub.tag:
                headers["ETag"] = hub.tag
                wanted = wanted if self.headers.get("If-Range") == hub.tag else None
            if wanted:
                first, last = int(wanted[1]), int(wanted[2] or len(body) - 1)
                headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
                body, status = body[first : last + 1], 206
            self._say(status, body, headers, cut=hub.cuts.pop(0) if hub.cuts else None)

        def _say(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
            self.head(status, len(body), headers or {})
            try:
                if hub.hold is not None and status in (200, 206) and "/resolve/" in self.path:
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    hub.holding.set()
                    hub.hold.wait()
                    body = body[len(body) // 2 :]
                self.wfile.write(body if cut is None else body[:cut])
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            if cut is not None:
                self.close_connection = True

    return Handler
