"""API keys: the identity of a client and its permissions."""

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf

from server.transport.access.endpoints import SCOPES, Scope

CALLER = "llamapool.caller"
"""A key in the ASGI scope of a request: the client's `Key`, or `ANYBODY` on a server without keys.

None for a request without a valid key on a server with keys, which may reach few paths."""
MANAGES = "llamapool.manages"
"""A key in the ASGI scope of a request: whether its client may decide which models stay in memory."""
INTERNAL = "llamapool.internal"
"""A key in the ASGI scope of a request that the server makes for a client, such as one of a batch: the client's `Key`.

Such a request needs no credentials. Rate limits do not count it as a request, but they count its tokens."""
_SHOWN_HEX = 8


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The rate limits of a key; 0 = unlimited. Tokens are those of prompts and of replies."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    at_once: int = 0

    def __bool__(self) -> bool:
        return bool(self.requests_per_minute or self.tokens_per_minute or self.at_once)


@dataclass(frozen=True, slots=True)
class Key:
    """One key, known by its SHA-256 (``digest``) only.

    ``is_named`` False means that the key has no entry in a file, and that ``name`` is the start of its hash.
    ``models`` are patterns (``qwen*``) of ids and aliases; none = all. ``mcp`` are patterns of labels and hosts of MCP
    servers that its requests may use; None = all that the server allows. ``priority`` is the most urgent priority that
    its requests may have; None = any. ``expires_at`` is in Unix seconds.
    """

    name: str
    digest: bytes
    scopes: frozenset[Scope] = frozenset(SCOPES)
    models: tuple[str, ...] = ()
    limits: KeyLimits = KeyLimits()
    priority: int | None = None
    expires_at: float = inf
    is_named: bool = True
    mcp: tuple[str, ...] | None = None

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
        """Whether it may see the activity of other clients."""
        return "metrics" in self.scopes

    def may_use(self, model_names: Iterable[str]) -> bool:
        """Return whether it may use a model with these names (id and aliases)."""
        return not self.models or any(fnmatchcase(name, one) for name in model_names for one in self.models)

    def may_call(self, name: str) -> bool:
        """Whether its requests may use the MCP server of that label or host."""
        return self.mcp is None or any(fnmatchcase(name, one) for one in self.mcp)


ANYBODY = Key("", b"")


def digest_of(key: bytes) -> bytes:
    """Return the SHA-256 of a key. Keys are long and random, so a slow password hash is not needed."""
    return hashlib.sha256(key).digest()


def plain_key(text: str) -> Key:
    """Return the key of ``--api-key`` or ``--api-key-file``, which has every scope."""
    digest = digest_of(text.encode())
    return Key(key_name(digest), digest, is_named=False)


def key_name(digest: bytes) -> str:
    """Return a name for a key that has none: the start of its hash."""
    return f"key-{digest.hex()[:_SHOWN_HEX]}"


class KeyStore:
    """The server's valid keys. `required` False means that requests need no key.

    `required` never changes after the start: a key file that loses its last key does not open the server.
    """

    def __init__(self, keys: Iterable[Key] = (), *, required: bool | None = None) -> None:
        self.replace(keys)
        self.required = bool(self._by_digest) if required is None else required

    def replace(self, keys: Iterable[Key]) -> None:
        """Replace all keys. Running requests continue."""
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
        """Return the valid key that a client gave, otherwise None.

        The lookup uses a hash, and digests are compared in constant time, so the time taken reveals nothing.
        """
        digest = digest_of(given)
        found = self._by_digest.get(digest)
        if found is None or not hmac.compare_digest(found.digest, digest) or found.expires_at <= now():
            return None
        return found
