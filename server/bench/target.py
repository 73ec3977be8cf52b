"""The address that is measured."""

import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from server.bench.errors import BenchError

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible address; ``prefix`` is what its paths have before ``/v1``."""

    host: str
    port: int
    prefix: str = ""
    api_key: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    @property
    def local(self) -> bool:
        """Whether the server shares this machine."""
        return self.host in _LOOPBACK

    @property
    def url(self) -> str:
        """As a person writes it."""
        return f"{'https' if self.tls else 'http'}://{self._authority}{self.prefix}"

    @property
    def _authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def head(self, method: str, path: str, n_body: int, *, keep: bool) -> bytes:
        """The request line and the headers of a request with a JSON body of `n_body` bytes."""
        lines = [
            f"{method} {self.prefix}{path} HTTP/1.1",
            f"Host: {self._authority}",
            "Content-Type: application/json",
            f"Content-Length: {n_body}",
            f"Connection: {'keep-alive' if keep else 'close'}",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return "\r\n".join([*lines, "", ""]).encode()


def parse_target(url: str, api_key: str = "", *, insecure: bool = False) -> Target:
    """Parse ``http[s]://host[:port][/path][/v1]``. `insecure` accepts any certificate. Raises `BenchError`."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise BenchError(f"--url {url}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise BenchError(f"--url {url} is not http[s]://host[:port][/path]")
    if any(ord(character) < 33 or ord(character) > 126 for character in api_key):
        raise BenchError("the API key has characters that a header can't carry")
    tls = None
    if parts.scheme == "https":
        tls = ssl.create_default_context()
        if insecure:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Target(parts.hostname, port or (443 if tls else 80), prefix, api_key, tls)
