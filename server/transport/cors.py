"""Checks of requests from web pages: CORS headers, cross-origin requests, and DNS rebinding.

`CorsPolicy` chooses the CORS headers of a reply (llama.cpp tools/server/server-http.cpp, pre-routing handler).

`Guard` protects a server without keys from pages that use a visitor's browser. Clients of llama-server rely on its
answers to pages of any site, so pages may generate (unless ``closed``). Endpoints that change the server refuse
requests from other sites' pages, and bodies that a page can send without a preflight request (text/plain, forms).
A page that uses DNS rebinding is recognized by its ``Host`` header. It is refused entirely on a loopback address, and
treated like any page on another address. Requests with a key are not checked: other sites' pages have no key.

Starlette's `CORSMiddleware` is not used. OPTIONS without ``Access-Control-Request-Method`` would become a 401 or 405,
one of another origin a 400, and requested headers would be repeated where llama-server sends ``*``
(`test_preflight_needs_no_key`). Its `TrustedHostMiddleware` would refuse every unlisted IP address, and check servers
that are not on a loopback address (`tests/unit/transport/test_dns_rebinding.py`).
"""

import functools
import ipaddress
import re
import socket
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from server.errors import InvalidRequest, PermissionDenied
from server.transport.endpoints import UNKNOWN, Target
from server.transport.options import FORWARD_PREFIX, HttpOptions

if TYPE_CHECKING:
    from starlette.types import Scope

ReplyHeaders = list[tuple[bytes, bytes]]
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class CorsPolicy:
    """The policy of ``--cors-origins``: "*", or origins and "localhost", separated by commas."""

    def __init__(self, options: HttpOptions) -> None:
        origins = [part.strip() for part in options.cors_origins.split(",")]
        self.listed = frozenset(origins) - {"", "*", "localhost"}
        self._echo_any = origins == ["*"] and options.cors_credentials
        self._any = "*" in origins
        self._local = "localhost" in origins
        self._preflight: ReplyHeaders = [
            (b"access-control-allow-credentials", b"true" if options.cors_credentials else b"false"),
            (b"access-control-allow-methods", options.cors_methods.encode("latin-1", "replace")),
            (b"access-control-allow-headers", options.cors_headers.encode("latin-1", "replace")),
        ]
        self._credentials = self._preflight[:1] if options.cors_credentials else []

    def headers(self, origin: bytes | None) -> ReplyHeaders:
        """Return the headers for a request with `origin`; none without an origin or for a forbidden one.

        With credentials and "*" the origin is echoed, since browsers refuse "*" together with credentials.
        """
        if not origin or not self.allows(origin):
            return []
        if self._any and not self._echo_any:
            return [(b"access-control-allow-origin", b"*")]
        return [(b"access-control-allow-origin", origin), (b"vary", b"Origin"), *self._credentials]

    def preflight(self, origin: bytes | None) -> ReplyHeaders:
        """Return the headers of the reply to OPTIONS. It needs no key, since browsers send none."""
        allowed = [pair for pair in self.headers(origin) if pair not in self._credentials]
        return [*allowed, *self._preflight]

    def allows(self, origin: bytes) -> bool:
        """Return whether pages of `origin` may read replies."""
        if self._any:
            return True
        text = origin.decode("latin-1")
        return text in self.listed or (self._local and host_of(text) in _LOCAL)


RequestHeaders = Mapping[bytes, bytes]
_FORWARDED = frozenset({b"forwarded", b"x-real-ip", b"via"})
"""Headers that a proxy adds to a request, besides ``X-Forwarded-*``."""


class NotJson(InvalidRequest):
    """The body's content type is not JSON (HTTP 415)."""


class Guard:
    """Checks requests before their bodies are read."""

    def __init__(self, options: HttpOptions, origins: Collection[str]) -> None:
        """`origins`: origins whose pages have the rights of this server's own pages."""
        self._closed = options.closed
        self._hosts = frozenset(options.allowed_hosts)
        self._origins = origins

    def check(self, target: Target, scope: "Scope", headers: RequestHeaders) -> None:
        """Check a request without a key on a server that needs none.

        Raises `PermissionDenied` and `NotJson`.
        """
        server = scope.get("server")  # None on a Unix socket, which no browser reaches
        if self._closed and server and not is_local(server[0]):
            raise PermissionDenied("this server is closed to others than this machine: it has no API key yet")
        host = headers.get(b"host", b"").decode("latin-1")
        if (self._closed or (server and is_local(server[0]))) and is_foreign_host(host, self._hosts):
            name = (_name_of(host) or host)[:80]
            raise PermissionDenied(
                f"this server does not answer to the name {name!r}; list it in --allowed-hosts, or use a key"
            )
        if target.endpoint is UNKNOWN:
            return  # no endpoint
        if (self._closed and not target.is_page) or target.endpoint.changes_server:
            self._check_change(target, scope, headers)

    def _check_change(self, target: Target, scope: "Scope", headers: RequestHeaders) -> None:
        """Check a request that changes the server. Raises like `check`."""
        if self.is_foreign(headers) or (target.method == "GET" and not self._closed and _hides_its_origin(headers)):
            raise PermissionDenied(
                "pages of other sites may not do this without an API key; see --cors-origins, and --allowed-hosts for "
                "names of this server"
            )
        if target.method == "POST" and not (_is_json(headers) or _needs_preflight(target.path, headers)):
            raise NotJson("send the body as Content-Type: application/json, or an API key with it")
        if target.endpoint.is_local_only and not _is_local_client(scope, headers):
            raise PermissionDenied("this is for clients of the server's own machine; others need an API key")

    def is_foreign(self, headers: RequestHeaders) -> bool:
        """Return whether the request comes from a page of another origin: not this server's, not loopback, not listed.

        A page under a host name that an attacker may own is foreign, even if this server delivered it.
        """
        host = headers.get(b"host", b"").decode("latin-1").lower()
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin:
            is_own = origin.partition("://")[2].lower() == host and not is_foreign_host(host, self._hosts)
            return not (is_own or is_local(host_of(origin)) or origin in self._origins)
        site = headers.get(b"sec-fetch-site")
        return site in (b"cross-site", b"same-site") or (site == b"same-origin" and is_foreign_host(host, self._hosts))


def _is_local_client(scope: "Scope", headers: RequestHeaders) -> bool:
    """Return whether the client runs on this machine.

    False for every forwarded request: the address in its header is not verified, and uvicorn trusts it from any peer in
    FORWARDED_ALLOW_IPS.
    """
    is_forwarded = any(name in _FORWARDED or name.startswith(b"x-forwarded-") for name in headers)
    return not is_forwarded and is_local((scope.get("client") or ("127.0.0.1",))[0])


def _hides_its_origin(headers: RequestHeaders) -> bool:
    """Return whether a browser sent the request without a header that tells where the page is from.

    Browsers send ``Sec-Fetch-Site`` with a GET only to loopback addresses and over TLS; pages can suppress ``Referer``.
    """
    return headers.get(b"user-agent", b"").startswith(b"Mozilla/") and b"sec-fetch-site" not in headers


def _needs_preflight(path: str, headers: RequestHeaders) -> bool:
    """Return whether a browser must send a preflight request before this one, because of its custom headers.

    llama.cpp's web UI adds the prefix to every header that ``/cors-proxy`` forwards, including the content type.
    """
    return path == "/cors-proxy" and any(name.startswith(FORWARD_PREFIX) for name in headers)


def _is_json(headers: RequestHeaders) -> bool:
    """Return whether the body is empty or declared as JSON. Pages can send bodies without any content type."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if not kind:
        return headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))


_HOST = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]+(%[0-9A-Za-z._-]+)?)\]|(?P<name>[0-9A-Za-z._-]+))(:[0-9]*)?")
_PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".home.arpa")
"""Endings that public DNS never assigns (RFC 6761, 6762, 8375; ICANN reserves .internal for private use)."""


@functools.lru_cache(256)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_local(address: str) -> bool:
    """Return whether an address or a name is loopback."""
    parsed = _address(address)
    if parsed is None:
        return address == "localhost" or address.endswith(".localhost")
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


def host_of(origin: str) -> str:
    """Return the host of an origin (scheme, host, optional port; RFC 6454). Return "" for anything else."""
    found = _HOST.fullmatch(origin.partition("://")[2])
    return (found["address"] or found["name"]).lower() if found else ""


def _name_of(host: str) -> str:
    """Return the name or address in a ``Host`` header, without its port; "" for text that is not a name."""
    found = _HOST.fullmatch(host)
    return (found["address"] or found["name"]).lower().rstrip(".") if found else ""


def is_foreign_host(host: str, allowed: Collection[str]) -> bool:
    """Return whether a ``Host`` header may be an attacker's name whose DNS entry points here (DNS rebinding).

    False for an address, a name without a dot, a name that public DNS never assigns, this machine's own name, and the
    names in `allowed`: ``*.example.com`` matches all subdomains, ``*`` any name. True for text that is not a name.
    """
    if not host:
        return False
    name = _name_of(host)
    if name and ("." not in name or name.endswith(_PRIVATE_ENDINGS) or _address(name)):
        return False
    is_subdomain = any(name.endswith(pattern[1:]) for pattern in allowed if pattern.startswith("*."))
    return not (name == socket.gethostname().lower() or "*" in allowed or name in allowed or is_subdomain)
