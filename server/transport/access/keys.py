"""API keys: who somebody is, and what he may do."""

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf

from server.transport.access.endpoints import SCOPES, Scope

CALLER = "llamapool.caller"
"""A key in the ASGI scope of a request: the `Key` that it came with, `ANYBODY` where none is needed, or None where one
is and none was given (few paths are open to such)."""
MANAGES = "llamapool.manages"
"""A key in the ASGI scope of a request: whether who sent it may say which models stay in memory."""
INTERNAL = "llamapool.internal"
"""A key in the ASGI scope of a request that the server makes for a client, such as one of a batch: the client's `Key`.
Such a request needs no credentials and counts as no further request; its tokens count."""
_SHOWN_HEX = 8


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What a key may use; 0 = any amount. Tokens are those of prompts and of replies."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    at_once: int = 0

    def __bool__(self) -> bool:
        return bool(self.requests_per_minute or self.tokens_per_minute or self.at_once)


@dataclass(frozen=True, slots=True)
class Key:
    """One key, of which nothing but the SHA-256 is known.

    ``is_named`` False means that the key has no entry in a file, and that ``name`` is the beginning of its hash.
    ``models`` are patterns (``qwen*``) of ids and aliases, none = all. ``priority`` is the most urgent that its
    requests may have; None = any.
    """

    name: str
    digest: bytes
    scopes: frozenset[Scope] = frozenset(SCOPES)
    models: tuple[str, ...] = ()
    limits: KeyLimits = KeyLimits()
    priority: int | None = None
    expires_at: float = inf
    is_named: bool = True

    @property
    def owner(self) -> str:
        """Return who owns its conversations, streams, caches and slot files; "" for nobody.

        Keys of one name are one owner, so a key can be replaced while the old one is still valid. A key without a name
        is an owner by itself. No name in a file is the same owner as a key without one.
        """
        if not self.name:
            return ""
        told = b"name:" + self.name.encode() if self.is_named else b"key:" + self.digest
        return hashlib.sha256(told).hexdigest()[:32]

    @property
    def sees_all(self) -> bool:
        """Whether what others do is for it."""
        return "metrics" in self.scopes

    def may_use(self, model_names: Iterable[str]) -> bool:
        """Whether a model of these names is for it."""
        return not self.models or any(fnmatchcase(name, one) for name in model_names for one in self.models)


ANYBODY = Key("", b"")


def digest_of(key: bytes) -> bytes:
    """Keys are random and long, so one plain hash is enough to keep them from being guessed."""
    return hashlib.sha256(key).digest()


def plain_key(text: str) -> Key:
    """A key of ``--api-key`` or ``--api-key-file``, which may do everything."""
    digest = digest_of(text.encode())
    return Key(key_name(digest), digest, is_named=False)


def key_name(digest: bytes) -> str:
    """What a key is called that has no name."""
    return f"key-{digest.hex()[:_SHOWN_HEX]}"


class KeyRing:
    """The keys that open the server. `required` False means that it is open to all; it stays as it was at the start, so
    that a file that loses its last key opens nothing."""

    def __init__(self, keys: Iterable[Key] = (), *, required: bool | None = None) -> None:
        self.replace(keys)
        self.required = bool(self._by_digest) if required is None else required

    def replace(self, keys: Iterable[Key]) -> None:
        """These from now on; requests under way go on."""
        self._by_digest = {key.digest: key for key in keys}
        self.several = len({key.owner for key in self._by_digest.values()}) > 1

    def __len__(self) -> int:
        return len(self._by_digest)

    def named(self, name: str, now: Callable[[], float] = time.time) -> Key | None:
        """Return a valid key of that name, `ANYBODY` for no name on a server without keys, otherwise None."""
        if not name:
            return None if self.required else ANYBODY
        return next((key for key in self._by_digest.values() if key.name == name and key.expires_at > now()), None)

    def find(self, given: bytes, now: Callable[[], float] = time.time) -> Key | None:
        """The key that was given, unless it has expired. What is looked up is a hash of it, so that the time taken says
        nothing about any key; those of keys are compared in constant time."""
        digest = digest_of(given)
        found = self._by_digest.get(digest)
        if found is None or not hmac.compare_digest(found.digest, digest) or found.expires_at <= now():
            return None
        return found
