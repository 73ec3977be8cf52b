"""Identify clients by their keys: ``Authorization: Bearer KEY`` or ``X-Api-Key: KEY``.

llama.cpp: tools/server/server-http.cpp.
"""

import hashlib
from collections.abc import Collection, Mapping

from server.errors import AuthenticationFailed, NotFound, PermissionDenied
from server.transport.endpoints import SCOPES, Need, Target
from server.transport.keys import ANYBODY, Key, KeyStore, digest_of, key_name

_PREFIX = b"bearer "


def client_name(authorization: bytes | None, x_api_key: bytes | None) -> bytes:
    """Return an id of a client: a hash of the key that it sent. A server without keys hashes any key that it sent."""
    return hashlib.sha256(_given_key(authorization, x_api_key)).digest()


def given_key(headers: Mapping[str, str]) -> str:
    """Return the key that a client sent, "" if none. For code that sends requests in its name."""
    named = (headers.get(name, "").encode("latin-1", "replace") for name in ("authorization", "x-api-key"))
    return _given_key(*named).decode("latin-1")


def given_name(headers: Mapping[bytes, bytes]) -> str:
    """Return the name of an invalid key in the log: the start of its hash, "" if none was sent."""
    given = _given_key(headers.get(b"authorization"), headers.get(b"x-api-key"))
    return key_name(digest_of(given)) if given else ""


def _given_key(authorization: bytes | None, x_api_key: bytes | None) -> bytes:
    given = authorization or x_api_key or b""
    return given[len(_PREFIX) :].strip() if given[: len(_PREFIX)].lower() == _PREFIX else given


class Access:
    """Checks the keys of requests."""

    def __init__(self, ring: KeyStore, open_paths: Collection[str] = ()) -> None:
        """`open_paths` need no key, besides those of the table of endpoints."""
        self._ring = ring
        self._open = frozenset(open_paths)

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return self._ring.required

    def caller(self, headers: Mapping[bytes, bytes]) -> Key | None:
        """Return the key of a request: `ANYBODY` on a server without keys, None without a valid key."""
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
