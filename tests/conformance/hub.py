"""What stands in for the model hub: substitute files (`models`), a server on the loopback, a cache of its form."""

import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from pathlib import Path
from typing import Any

DOWNLOADED = ("ggml-org/test-model-router-download", "ggml-org/test-preset-ci")
"""Repositories that the suite downloads by itself, so that they are in no cache."""
RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)")
_NO_IMAGE = b"<!doctype html><title>not an image</title>"


class NoSubstituteError(Exception):
    """A model that `models` does not make."""


class Hub:
    """The substitute files in `models`, by the names of the hub's repositories."""

    def __init__(self, models: Path) -> None:
        self._repositories = models / "hub"
        self._images = models / "images"
        self.url = ""

    def start(self) -> None:
        """Answer on the loopback from now on; `url` says where."""
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}"

    def here(self, url: Any) -> Any:
        """A web address that the suite names, on the loopback."""
        if not isinstance(url, str) or not url.startswith("https://"):
            return url
        path = urllib.parse.urlparse(url).path
        if RESOLVE.fullmatch(path):
            return self.url + path
        return self.url + ("/404" if path.endswith("/404") else "/index.html")

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
                    link = base / "snapshots" / commit_of(name) / path.relative_to(root)
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(path.resolve())
            (base / "refs").mkdir(parents=True, exist_ok=True)
            (base / "refs" / "main").write_text(commit_of(name))

    def answer(self, path: str, wanted: str) -> tuple[int, bytes, str, dict[str, str]]:
        """Status, body, type and headers of the reply to a GET; `wanted` is its Range."""
        if (found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(refs|tree/[^/]+)", path)) and self._has(found[1]):
            listing = self._refs(found[1]) if found[2] == "refs" else self._tree(found[1])
            return 200, json.dumps(listing).encode(), "application/json", {}
        if found := RESOLVE.fullmatch(path):
            for file in (self.file(*found.groups()), self._images / Path(found[2]).name):
                if file.is_file():
                    return _content(file.read_bytes(), wanted)
        if path == "/index.html":
            return 200, _NO_IMAGE, "text/html", {}
        return 404, b'{"error":"not found"}', "application/json", {}

    def _all(self) -> list[tuple[str, Path]]:
        return [(f"{root.parent.name}/{root.name}", root) for root in sorted(self._repositories.glob("*/*"))]

    def _has(self, repository: str) -> bool:
        return (self._repositories / repository).is_dir()

    def _refs(self, repository: str) -> dict[str, Any]:
        commit = commit_of(repository)
        return {
            "branches": [{"name": "main", "ref": "refs/heads/main", "targetCommit": commit}],
            "converts": [],
            "tags": [],
        }

    def _tree(self, repository: str) -> list[dict[str, Any]]:
        root = self._repositories / repository
        contents = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
        return [
            {"type": "file", "path": str(path.relative_to(root)), "size": len(data), "oid": sha1(data)}
            for path, data in contents.items()
        ]


def sha1(data: bytes) -> str:
    """As the hub names contents and commits."""
    return hashlib.sha1(data).hexdigest()


def commit_of(repository: str) -> str:
    """The one commit of a substitute repository."""
    return sha1(f"substitute {repository}".encode())


def _content(data: bytes, wanted: str) -> tuple[int, bytes, str, dict[str, str]]:
    headers = {"ETag": f'"{sha1(data)}"', "Accept-Ranges": "bytes"}
    if part := re.fullmatch(r"bytes=(\d+)-(\d*)", wanted):
        first, last = int(part[1]), int(part[2] or len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return 206, data[first : last + 1], "application/octet-stream", headers
    return 200, data, "application/octet-stream", headers


def _handler(hub: Hub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            path = urllib.parse.unquote(self.path.split("?")[0])
            status, body, kind, headers = hub.answer(path, self.headers.get("Range", ""))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

    return Handler
