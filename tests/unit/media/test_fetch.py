"""Fetching of media URLs: allowed hosts, resolved addresses, redirects, limits and local files."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpcore2
import pytest

from server.media.fetch import FetchLimits, MediaFetcher
from server.media.header import Unreadable
from server.media.hosts import AllowedHosts, is_public

PUBLIC_ADDRESS = "93.184.215.14"
ANYWHERE = AllowedHosts(anywhere=True)


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def redirect(url: str) -> bytes:
    return b"HTTP/1.1 302 Found\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % url.encode()


NOT_PUBLIC = (
    *("127.0.0.1", "10.0.0.1", "172.16.5.5", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
    *("224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1"),
    *("192.0.0.8", "192.0.0.9", "192.88.99.1", "3fff::1", "::ffff:192.88.99.1"),
    *("::1", "::", "fe80::1", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.1.2.3", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::1"),
    *("2002:7f00:1::", "2002:a00:1::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"),
)
PUBLIC = (PUBLIC_ADDRESS, "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101", "::ffff:8.8.8.8")


@pytest.mark.parametrize("address", [*NOT_PUBLIC, *PUBLIC])
def test_public_addresses_are_distinguished(address: str) -> None:
    assert is_public(ipaddress.ip_address(address)) is (address in PUBLIC)


async def test_no_host_is_allowed_by_default() -> None:
    with pytest.raises(Unreadable, match=r"'example\.com' are not fetched: this server's option media_fetch"):
        await fetcher_with_dns(AllowedHosts()).fetch("http://example.com/a.png")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        *(("a.example.com", True), ("b.a.example.com", True), ("example.com", False), ("evilexample.com", False)),
        *(("pics.org", True), ("www.pics.org", False), ("pics.org.evil.net", False)),
    ],
)
def test_allowed_host_matches_exactly_and_wildcard_matches_subdomains(host: str, allowed: bool) -> None:
    assert AllowedHosts(hosts=("*.example.com", "pics.org")).allow(host) is allowed


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://a/b", "http://", "http:///x", "httpx://a/b", "http://user:pw@a/b", "http://a:b@c/", "http://a:99999/"),
        *("http://[::1", "http://fe80::1%25eth0/", "gopher://a", "http", "http:a", f"http://{'ä' * 70}/"),
    ],
)
async def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(Unreadable):
        await fetcher_with_dns(ANYWHERE).fetch(url)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0x7f.1", "2130706433", "[::ffff:127.0.0.1]"])
async def test_loopback_urls_are_rejected_in_every_notation(host: str) -> None:
    async with http_server(ok(b"secret")) as port:
        with pytest.raises(Unreadable, match=r"not of the open internet|not known"):
            await MediaFetcher(ANYWHERE).fetch(f"http://{host}:{port}/")


async def test_host_with_a_private_address_is_rejected() -> None:
    async with http_server(ok(b"secret")) as port:
        with pytest.raises(Unreadable, match="not of the open internet"):
            await fetcher_with_dns(ANYWHERE, [PUBLIC_ADDRESS, "10.0.0.1"]).fetch(f"http://example.com:{port}/")
        with pytest.raises(Unreadable, match="not of the open internet"):
            await fetcher_with_dns(AllowedHosts(hosts=("example.com",)), ["10.0.0.1"]).fetch(
                f"http://example.com:{port}/"
            )


async def test_connection_uses_the_checked_address_despite_dns_rebinding() -> None:
    resolved: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        resolved.append(host)
        return [PUBLIC_ADDRESS] if len(resolved) == 1 else ["127.0.0.1"]

    requests: list[bytes] = []
    async with http_server(ok(b"picture"), requests) as port:
        backend = LoopbackBackend(port)
        data = await MediaFetcher(ANYWHERE, resolve=resolve, backend=backend).fetch("http://example.com:8080/a b?c=ä")
    assert data == b"picture"
    assert resolved == ["example.com"]
    assert backend.connected == [(PUBLIC_ADDRESS, 8080)]
    assert requests[0].startswith(b"GET /a%20b?c=%C3%A4 HTTP/1.1\r\nHost: example.com:8080\r\n")


async def test_redirects_are_followed_and_checked_like_the_first_url() -> None:
    trusted = MediaFetcher(AllowedHosts(hosts=("127.0.0.1",)))
    async with http_server(ok(b"picture")) as target, http_server(redirect(f"http://127.0.0.1:{target}/")) as port:
        assert await trusted.fetch(f"http://127.0.0.1:{port}/") == b"picture"
    async with http_server(redirect("http://127.0.0.2/")) as port:
        with pytest.raises(Unreadable, match=r"'127\.0\.0\.2' are not fetched"):
            await trusted.fetch(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (redirect("file:///etc/passwd"), "is not an http or https URL"),
        *((redirect(url), "valid URL") for url in ("http://[", "//[::1", "http://a]/", "http://a:b:c/")),
        (redirect("/again"), "more than 3 redirects"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nabc", "HTTP status 404"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", "more than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + b"x" * 101 + b"\r\n", "more than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", "compressed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc", "can't be fetched"),
        (b"220 mail.example.com ESMTP\r\n", "can't be fetched"),
        (b"", "can't be fetched"),
        (None, r"took more than 0\.2 s"),
    ],
)
async def test_invalid_oversized_and_late_replies_are_rejected(reply: bytes | None, error: str) -> None:
    limits = FetchLimits(file_bytes=100) if reply is not None else FetchLimits(seconds=0.2)
    trusted = AllowedHosts(hosts=("127.0.0.1",), folder=Path("/etc"))
    async with http_server(reply) as port:
        with pytest.raises(Unreadable, match=error):
            await MediaFetcher(trusted, limits).fetch(f"http://127.0.0.1:{port}/")


async def test_file_urls_are_limited_to_the_media_path(tmp_path: Path) -> None:
    folder = tmp_path / "media"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a b.png").write_bytes(b"picture")
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "inside").symlink_to(folder / "sub" / "a b.png")
    (folder / "circle").symlink_to("circle")
    fetcher = MediaFetcher(AllowedHosts(folder=folder), FetchLimits(file_bytes=7))
    for url in ("file://sub/a b.png", "file:///sub//a b.png", "file://inside"):
        assert await fetcher.fetch(url) == b"picture"
    for url, error in {
        "file://../secret": "not allowed",
        "file://sub/../../secret": "not allowed",
        "file://link": "not allowed",
        "file://sub": "does not exist",
        "file://": "does not exist",
        "file://none.png": "does not exist",
        "file://circle": "does not exist",
        "file://sub/a b.png/x": "does not exist",
        "file://a\0b": "not allowed|does not exist",
        f"file://{'x' * 5000}": "does not exist",
    }.items():
        with pytest.raises(Unreadable, match=error):
            await fetcher.fetch(url)
    with pytest.raises(Unreadable, match="more than 6 bytes"):
        await MediaFetcher(AllowedHosts(folder=folder), FetchLimits(file_bytes=6)).fetch("file://inside")
    with pytest.raises(Unreadable, match="unless --media-path"):
        await MediaFetcher(ANYWHERE).fetch("file://inside")


@asynccontextmanager
async def http_server(reply: bytes | None, requests: list[bytes] | None = None) -> AsyncIterator[int]:
    """Serve `reply` on loopback, or nothing for None, and yield the port. Append received requests to ``requests``."""
    stopping = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reply is None:
            await stopping.wait()
        else:
            request = await reader.readuntil(b"\r\n\r\n")
            if requests is not None:
                requests.append(request)
            writer.write(reply)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        stopping.set()
        server.close()


def fetcher_with_dns(hosts: AllowedHosts, addresses: Sequence[str] = (PUBLIC_ADDRESS,)) -> MediaFetcher:
    """Return a fetcher that resolves every host to these addresses."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return MediaFetcher(hosts, resolve=resolve, backend=LoopbackBackend(0))


class LoopbackBackend(httpcore2.AnyIOBackend):
    """Records the requested connections, and connects to a loopback port instead."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.connected: list[tuple[str, int]] = []

    async def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        self.connected.append((host, port))
        return await super().connect_tcp("127.0.0.1", self._port, *args, **options)
