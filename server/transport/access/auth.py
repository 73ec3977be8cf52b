"""Who sends a request: ``Authorization: Bearer KEY`` or ``X-Api-Key: KEY`` (llama.cpp tools/server/server-http.cpp)."""

import hashlib
from collections.abc import Collection, Mapping

from starlette.types import Scope

from server.errors import AuthenticationFailed, NotFound, PermissionDenied
from server.transport.access.endpoints import SCOPES, Need
from server.transport.access.keys import ANYBODY, CALLER, Key, KeyRing, digest_of, key_name
from server.transport.access.target import Target

_PREFIX = b"bearer "


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

    def __init__(self, ring: KeyRing, open_paths: Collection[str] = ()) -> None:
        """`open_paths` need no key, beside those of the table."""
        self._ring = ring
        self._open = frozenset(open_paths)

    @property
    def required(self) -> bool:
        """Whether there are keys at all."""
        return self._ring.required

    def caller(self, headers: Mapping[bytes, bytes]) -> Key | None:
        """Whose request it is; None for one without a valid key, though there are keys."""
        if not self._ring.required:
            return ANYBODY
        return self._ring.find(_given_key(headers.get(b"authorization"), headers.get(b"x-api-key")))

    def check(self, key: Key | None, target: Target) -> None:
        """Check that `key` may reach every endpoint that `target` names.

        Raises `AuthenticationFailed` without a key, and `PermissionDenied` if the key lacks the scope. For a path that
        the table of endpoints does not list it raises `NotFound`, unless the key has every scope.
        """
        if not self._ring.required:
            return
        needs = ["nothing" if each.path in self._open else each.need for each in target.endpoints]
        for need in needs:
            if need != "nothing" and key is None:
                raise NotFound("File Not Found") if "nothing" in needs else AuthenticationFailed("Invalid API Key")
            if key is not None:
                _check_scope(key, need)


def _check_scope(key: Key, need: Need) -> None:
    if need == "every scope":
        if not key.scopes.issuperset(SCOPES):
            raise NotFound("File Not Found")
    elif need not in ("nothing", "any key") and need not in key.scopes:
        raise PermissionDenied(f"this API key may not do this: it lacks the scope '{need}'")
