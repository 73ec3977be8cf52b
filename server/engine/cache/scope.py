"""Cache namespaces: which requests may reuse each other's cells. Pure.

A namespace is a string: ``""`` is shared by all clients, ``owner/`` belongs to one owner, ``owner/salt`` to one
owner and salt, ``owner/!id`` to a single request. It is part of the adapter set (`lora.AdapterSet`), so cells,
cached states, hashes, waits and counters never cross namespaces.
"""

import hashlib
import secrets
from typing import Literal

Mode = Literal["server", "key", "request"]
_ALONE = "!"


def cache_scope(mode: Mode, owner: str, salt: str) -> str:
    """Return the namespace of a request by `owner` (without ``/``) with the client's own `salt`; "" = none."""
    if mode == "request":
        return f"{owner}/{_ALONE}{secrets.token_hex(8)}"
    owner = owner if mode == "key" else ""
    salt = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() if salt else ""
    return f"{owner}/{salt}" if owner or salt else ""


def owner_of(scope: str) -> str:
    """Return the owner of a namespace; "" = shared."""
    return scope.partition("/")[0]


def is_lasting(scope: str) -> bool:
    """Return whether a later request can use what was computed in this namespace."""
    return f"/{_ALONE}" not in scope
