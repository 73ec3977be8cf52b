"""Protect a server without keys from web pages that use a visitor's browser (cross-origin and DNS rebinding checks).

llama-server answers pages of any site, and its clients rely on that, so pages may generate (unless ``closed``).
Endpoints that change the server refuse requests from other sites' pages, and bodies that a page can send without a
preflight request (text/plain, forms). A page that uses DNS rebinding is recognized by its ``Host`` header: a loopback
address refuses it entirely, another address treats it as any page. Requests with a key are not checked here, since
other sites' pages have no key.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.types import Scope

from server.errors import InvalidRequest, LlamapoolError, NotFound, PermissionDenied
from server.transport.access.endpoints import UNKNOWN
from server.transport.access.hosts import host_of, is_local, is_strangers
from server.transport.access.target import Target
from server.transport.forward import PREFIX
from server.transport.options import HttpOptions

RequestHeaders = Mapping[bytes, bytes]
_FORWARDED = frozenset({b"forwarded", b"x-real-ip", b"via"})
"""Headers that a proxy adds to a request, besides ``X-Forwarded-*``."""


class NotJson(InvalidRequest):
    """The body's content type is not JSON (HTTP 415)."""


class Guard:
    """Checks requests before their bodies are read."""

    def __init__(self, options: HttpOptions) -> None:
        self._closed = options.closed
        self._hosts = frozenset(options.allowed_hosts)
        self._origins = options.cors.listed

    def check(self, target: Target, scope: Scope, headers: RequestHeaders) -> None:
        """Check a request without a key on a server that needs none.

        Raises `PermissionDenied` and `NotJson`. Raises `NotFound` in their place for a path that is no endpoint.
        """
        server = scope.get("server")  # None on a Unix socket, which no browser reaches
        if self._closed and server and not is_local(server[0]):
            raise PermissionDenied("this server is closed to others than this machine: it has no API key yet")
        if self._closed or (server and is_local(server[0])):
            self._check_host(headers.get(b"host", b"").decode("latin-1"))
        if self._closed or target.changes_server:
            refusal = self._refusal(target, scope, headers)
            if refusal is not None:
                raise NotFound("File Not Found") if target.endpoints == (UNKNOWN,) else refusal

    def _refusal(self, target: Target, scope: Scope, headers: RequestHeaders) -> LlamapoolError | None:
        """Return why a request that changes the server is refused, None if it is not."""
        if self.is_foreign(headers) or (target.method == "GET" and not self._closed and _hides_its_page(headers)):
            return PermissionDenied(
                "pages of other sites may not do this without an API key; see --cors-origins, and --allowed-hosts for "
                "names of this server"
            )
        has_body = target.method in ("POST", "PUT", "PATCH")
        if has_body and not (_is_json(headers) or _was_asked_about(target.path, headers)):
            return NotJson("send the body as Content-Type: application/json, or an API key with it")
        if target.is_of_this_machine and not _is_local_client(scope, headers):
            return PermissionDenied("without an API key this is for clients of the server's own machine")
        return None

    def is_foreign(self, headers: RequestHeaders) -> bool:
        """Return whether a page sent the request that is neither this server's, nor this machine's, nor listed.

        A page under a name that an attacker may own is not this server's, even if this server delivered it.
        """
        host = headers.get(b"host", b"").decode("latin-1").lower()
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin:
            own = _authority(origin) == host and not is_strangers(host, self._hosts)
            return not (own or is_local(host_of(origin)) or origin in self._origins)
        site = headers.get(b"sec-fetch-site")
        return site in (b"cross-site", b"same-site") or (site == b"same-origin" and is_strangers(host, self._hosts))

    def _check_host(self, host: str) -> None:
        if is_strangers(host, self._hosts):
            raise PermissionDenied(
                f"this server does not answer to the name {host[:80]!r}; list it in --allowed-hosts, or use a key"
            )


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_local_client(scope: Scope, headers: RequestHeaders) -> bool:
    """Return whether the client runs on this machine.

    False for every forwarded request: the address in its header is unverified, and uvicorn trusts it from any peer in
    FORWARDED_ALLOW_IPS.
    """
    is_forwarded = any(name in _FORWARDED or name.startswith(b"x-forwarded-") for name in headers)
    return not is_forwarded and is_local((scope.get("client") or ("127.0.0.1",))[0])


def _hides_its_page(headers: RequestHeaders) -> bool:
    """Return whether a browser sent the request without naming the page that caused it.

    Browsers send ``Sec-Fetch-Site`` with a GET only to loopback addresses and over TLS; pages can suppress ``Referer``.
    """
    return headers.get(b"user-agent", b"").startswith(b"Mozilla/") and b"sec-fetch-site" not in headers


def _was_asked_about(path: str, headers: RequestHeaders) -> bool:
    """Return whether a browser must send a preflight request before this one, because of its custom headers.

    llama.cpp's web UI adds the prefix to every header that ``/cors-proxy`` forwards, including the content type.
    """
    return path == "/cors-proxy" and any(name.startswith(PREFIX) for name in headers)


def _is_json(headers: RequestHeaders) -> bool:
    """Return whether the body is empty or declared as JSON. Pages can send bodies without any content type."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if not kind:
        return headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))
