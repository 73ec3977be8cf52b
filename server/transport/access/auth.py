"""Who sends a request: ``Authorization: Bearer KEY`` or ``X-Api-Key: KEY`` (llama.cpp tools/server/server-http.cpp)."""

import hashlib
from collections.abc import Callable, Mapping, Sequence

from starlette.types import Scope

from server.errors import AuthenticationFailed, PermissionDenied
from server.transport.access.endpoints import scope_of
from server.transport.access.keys import ANYBODY, CALLER, Key, KeyRing, digest_of, key_name

IsOpen = Callable[[str], bool]
"""Whether a path, the server's prefix included, is everybody's: a page's files are."""
_PREFIX = b"bearer "
OPEN_PATHS = (
    *("/health", "/v1/health", "/livez", "/readyz", "/", "/openapi.json"),
    *("/docs", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/favicon-32x32.png"),
)
"""Answered without a key: a load balancer and a kubelet have none, nor has a browser for a page's files; the
description of the API is everybody's. llama-server opens ``/health`` and the root."""


def client_name(authorization: bytes | None, x_api_key: bytes | None) -> bytes:
    """What tells clients apart: their keys, without holding any. On an open server it is whatever they send."""
    return hashlib.sha256(_given_key(authorization, x_api_key)).digest()


def given_key(headers: Mapping[str, str]) -> str:
    """The key itself, for who acts in its name; "" where none was given."""
    named = (headers.get(name, "").encode("latin-1", "replace") for name in ("authorization", "x-api-key"))
    return _given_key(*named).decode("latin-1")


def given_name(headers: Mapping[bytes, bytes]) -> str:
    """What the log calls a key that opens nothing: the beginning of its hash; "" where none was given."""
    given = _given_key(headers.get(b"authorization"), headers.get(b"x-api-key"))
    return key_name(digest_of(given)) if given else ""


def _given_key(authorization: bytes | None, x_api_key: bytes | None) -> bytes:
    given = authorization or x_api_key or b""
    return given[len(_PREFIX) :].strip() if given[: len(_PREFIX)].lower() == _PREFIX else given


def scheduled_client(scope: Scope, end_user: str, *, several_keys: bool) -> str:
    """Among whom the scheduler shares slots fairly; an opaque name.

    Several keys tell clients apart, and nothing that a client says makes two of it. With one key or none, the body's
    `end_user` does, else the address: a proxy in front that names nobody is one client.
    """
    if several_keys:
        caller: Key = scope[CALLER]
        return caller.owner
    if end_user:
        return hashlib.sha256(end_user.encode("utf-8", "surrogatepass")).hexdigest()
    return (scope.get("client") or ("",))[0]


class Access:
    """Looks at the keys of requests."""

    def __init__(
        self, ring: KeyRing, prefix: str = "", is_open: IsOpen = lambda _: False, open_paths: Sequence[str] = ()
    ) -> None:
        self._ring = ring
        self._prefix = prefix
        self._open = frozenset(prefix + path for path in (*OPEN_PATHS, *open_paths))
        self._is_open = is_open

    @property
    def required(self) -> bool:
        """Whether there are keys at all."""
        return self._ring.required

    def caller(self, headers: Mapping[bytes, bytes]) -> Key | None:
        """Whose request it is; None for one without a valid key, though there are keys."""
        if not self._ring.required:
            return ANYBODY
        return self._ring.find(_given_key(headers.get(b"authorization"), headers.get(b"x-api-key")))

    def check(self, key: Key | None, scope: Scope) -> None:
        """Raises `AuthenticationFailed` where there had to be a key, `PermissionDenied` where it is not for this."""
        path = scope["path"]
        if not self._ring.required or path in self._open or (scope.get("method") == "GET" and self._is_open(path)):
            return
        if key is None:
            raise AuthenticationFailed("Invalid API Key")
        needed = scope_of(scope.get("method", "POST"), path.removeprefix(self._prefix), scope.get("query_string", b""))
        if needed is not None and needed not in key.scopes:
            raise PermissionDenied(f"this API key may not do this: it lacks the scope '{needed}'")
