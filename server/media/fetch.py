"""Downloads files from URLs in requests.

`server.media.hosts` determines which hosts are allowed. The server connects to the IP address that it checked, checks
each redirect like the first URL, and limits size, time and number.
"""

import asyncio
import string
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

import httpcore2

from server.media.header import Unreadable
from server.media.hosts import AllowedHosts, Resolve, checked_address, resolved, shown

_REDIRECTS = (301, 302, 303, 307, 308)
_FILE = "file://"


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of one file, as in llama-server (tools/server/server-common.cpp, handle_media), and ``redirects``."""

    file_bytes: int = 10 << 20
    seconds: float = 10.0
    redirects: int = 3


class MediaFetcher:
    """Downloads files. Runs on the event loop."""

    def __init__(
        self,
        sites: AllowedHosts,
        limits: FetchLimits = FetchLimits(),
        *,
        resolve: Resolve = resolved,
        backend: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        self._sites, self._limits, self._resolve = sites, limits, resolve
        self._backend = backend or httpcore2.AnyIOBackend()

    async def fetch(self, url: str) -> bytes:
        """Return the bytes at an ``http``, ``https`` or ``file`` URL. Raises `Unreadable`."""
        if url.startswith(_FILE):
            return await asyncio.to_thread(self._local, url)
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await self._remote(url)
        except TimeoutError:
            raise Unreadable(f"{shown(url)} took more than {self._limits.seconds:g} s") from None

    def _local(self, url: str) -> bytes:
        """Return a file below the media path, with llama-server's rules and errors."""
        folder = self._sites.folder
        if folder is None:
            raise Unreadable("file:// URLs are not allowed unless --media-path is specified")
        name = url[len(_FILE) :]
        quoted = shown(name)[1:-1]
        try:
            base = folder.resolve(strict=True)
            path = (base / name.lstrip("/")).resolve()
            if ".." in name or "\0" in name or not path.is_relative_to(base):
                raise Unreadable(f"file path is not allowed: {quoted}")
            if not path.is_file():
                raise Unreadable(f"file does not exist or cannot be opened: {quoted}")
            with path.open("rb") as file:
                data = file.read(self._limits.file_bytes + 1)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: circular links, before Python 3.13
            raise Unreadable(f"file does not exist or cannot be opened: {quoted}") from None
        if len(data) > self._limits.file_bytes:
            raise self._too_large(url)
        return data

    async def _remote(self, url: str) -> bytes:
        for _ in range(self._limits.redirects + 1):
            self._check(url)
            location, body = await self._get(url)
            if not location:
                return body
            try:
                url = urljoin(url, location)
            except ValueError:  # e.g. an unclosed bracket
                raise Unreadable(f"{shown(url)} redirects to an invalid URL") from None
        raise Unreadable(f"{shown(url)} has more than {self._limits.redirects} redirects")

    def _check(self, url: str) -> None:
        """Raise `Unreadable` for a URL whose host may not be contacted."""
        try:
            parts = urlsplit(url)
            host, _ = (parts.hostname or "").rstrip("."), parts.port
            _ascii(host)
        except ValueError:  # e.g. an invalid port or character in the host's name
            raise Unreadable(f"{shown(url)} is not a valid URL") from None
        if parts.scheme not in ("http", "https") or not host or "%" in host:
            raise Unreadable(f"{shown(url)} is not an http or https URL")
        if parts.username is not None or parts.password is not None:
            raise Unreadable("URLs with a user name or password are not fetched")
        if not self._sites.allow(host):
            raise Unreadable(
                f"files of {shown(host)} are not fetched: this server's option media_fetch does not allow it; "
                "send the file itself, as a data URL"
            )

    async def _get(self, url: str) -> tuple[str, bytes]:
        """Return the redirect target ("" for none) and the body."""
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        target = httpcore2.URL(
            scheme=parts.scheme.encode(),
            host=_ascii(parts.hostname or "").encode(),
            port=parts.port,
            target=quote(path, safe=string.punctuation).encode(),
        )
        headers = [
            (b"Host", _ascii(f"{host}{port}").encode()),
            (b"User-Agent", b"llamapool"),
            (b"Accept", b"image/*, audio/*, */*;q=0.1"),
            (b"Accept-Encoding", b"identity"),  # no decompression bombs
            (b"Connection", b"close"),
        ]
        backend = CheckedBackend(self._sites, self._resolve, self._backend)
        try:
            async with (
                httpcore2.AsyncConnectionPool(network_backend=backend) as pool,
                pool.stream("GET", target, headers=headers) as reply,
            ):
                received = {name.lower(): value for name, value in reply.headers}
                if reply.status in _REDIRECTS and received.get(b"location"):
                    return received[b"location"].decode("latin-1"), b""
                return "", await self._body(url, reply, received)
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError):
            raise Unreadable(f"{shown(url)} can't be fetched") from None

    async def _body(self, url: str, reply: httpcore2.Response, headers: dict[bytes, bytes]) -> bytes:
        if not 200 <= reply.status < 300:
            raise Unreadable(f"{shown(url)} can't be fetched: HTTP status {reply.status}")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Unreadable(f"{shown(url)} can't be fetched: the reply is compressed")
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limits.file_bytes:
            raise self._too_large(url)
        body = bytearray()
        async for part in reply.aiter_stream():
            body += part
            if len(body) > self._limits.file_bytes:
                raise self._too_large(url)
        return bytes(body)

    def _too_large(self, url: str) -> Unreadable:
        return Unreadable(f"{shown(url)} has more than {self._limits.file_bytes} bytes")


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to the IP address of a host that was checked (`checked_address`). TLS still verifies the name."""

    def __init__(
        self, sites: AllowedHosts, resolve: Resolve, backend: httpcore2.AsyncNetworkBackend | None = None
    ) -> None:
        self._sites, self._resolve, self._backend = sites, resolve, backend or httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface's
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect. Raises `Unreadable` for an address that is not allowed."""
        address = await checked_address(host.rstrip("."), port, self._sites, self._resolve)
        return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


def _ascii(host: str) -> str:
    return host if host.isascii() else host.encode("idna").decode()
