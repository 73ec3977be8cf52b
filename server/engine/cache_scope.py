"""Within which bounds a request's cells may be of use to others. Pure.

A scope is a text: ``""`` is everybody's, ``owner/`` one owner's, ``owner/salt`` his under a salt, ``owner/!id`` one
request's alone. What was computed in one scope is nothing to all others: it is part of what computes a sequence
(`lora.Tuning`), so neither cells nor kept states, hashes, waiting or counts go from one to another.
"""

import hashlib
import secrets
from typing import Literal

Mode = Literal["server", "key", "request"]
_ALONE = "!"


def cache_scope(mode: Mode, owner: str, salt: str) -> str:
    """The scope of a request of `owner` (no ``/`` in it) with that `salt` of its own; "" is none of either."""
    if mode == "request":
        return f"{owner}/{_ALONE}{secrets.token_hex(8)}"
    owner = owner if mode == "key" else ""
    salt = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() if salt else ""
    return f"{owner}/{salt}" if owner or salt else ""


def owner_of(scope: str) -> str:
    """Whose it is; "" = nobody's."""
    return scope.partition("/")[0]


def is_lasting(scope: str) -> bool:
    """Whether somebody may come who has a use for what was computed in it."""
    return f"/{_ALONE}" not in scope
