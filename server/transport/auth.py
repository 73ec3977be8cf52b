"""API keys: ``Authorization: Bearer KEY`` or ``X-Api-Key: KEY`` (llama.cpp tools/server/server-http.cpp)."""

import hashlib
import hmac
from collections.abc import Callable, Iterable

from starlette.types import Scope

from server.errors import AuthenticationFailed

IsOpen = Callable[[str], bool]
"""Whether a path, the server's prefix included, is everybody's: a page's files are."""
_PREFIX = b"bearer "
OPEN_PATHS = (
    *("/health", "/v1/health", "/livez", "/readyz", "/", "/openapi.json"),
    *("/docs", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/favicon-32x32.png"),
)
"""Answered without a key: a load balancer and a kubelet have none, nor has a browser for a page's files; the
description of the API is everybody's. llama-server opens ``/health`` and the root."""

HAS_KEY = "llamapool.has_key"
"""A key in the ASGI scope of a request: whether it may know all, since it gave a key or none is needed."""


def client_name(authorization: bytes | None, x_api_key: bytes | None) -> bytes:
    """What tells clients apart: their keys, without holding any. On an open server it is whatever they send."""
    return hashlib.sha256(_given_key(authorization, x_api_key)).digest()


def _given_key(authorization: bytes | None, x_api_key: bytes | None) -> bytes:
    given = authorization or x_api_key or b""
    return given[len(_PREFIX) :].strip() if given[: len(_PREFIX)].lower() == _PREFIX else given


def scheduled_client(scope: Scope, end_user: str, n_keys: int) -> str:
    """Among whom the scheduler shares slots fairly; an opaque name.

    Several keys tell clients apart. With one key or none, the body's `end_user` does, else the address: a proxy
    in front that names nobody is one client.
    """
    headers = dict(scope["headers"])
    if n_keys > 1:
        return client_name(headers.get(b"authorization"), headers.get(b"x-api-key")).hex()
    if end_user:
        return hashlib.sha256(end_user.encode("utf-8", "surrogatepass")).hexdigest()
    return (scope.get("client") or ("",))[0]


class ApiKeys:
    """The keys that open the server; none configured = open to all."""

    def __init__(self, keys: Iterable[str], prefix: str = "", is_open: IsOpen = lambda _: False) -> None:
        self._keys = tuple(key.encode() for key in keys)
        self._open = frozenset(prefix + path for path in OPEN_PATHS)
        self._is_open = is_open

    def __bool__(self) -> bool:
        return bool(self._keys)

    def check(self, path: str, authorization: bytes | None, x_api_key: bytes | None) -> bool:
        """Whether a key fits or none is needed. Where neither is so and `path` isn't open: `AuthenticationFailed`.

        Every key is compared in constant time, so that the time taken says nothing about any of them.
        """
        if not self._keys:
            return True
        given = _given_key(authorization, x_api_key)
        fits = False
        for key in self._keys:
            fits |= hmac.compare_digest(given, key)
        if not fits and path not in self._open and not self._is_open(path):
            raise AuthenticationFailed("Invalid API Key")
        return fits
