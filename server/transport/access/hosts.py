"""Distinguishes this machine's addresses and names from names that another party may own (DNS rebinding)."""

import ipaddress
import re
import socket
from collections.abc import Collection
from functools import cache

_HOST = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]+(%[0-9A-Za-z._-]+)?)\]|(?P<name>[0-9A-Za-z._-]+))(:[0-9]*)?")
_PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".home.arpa")
"""Endings that public DNS never assigns (RFC 6761, 6762, 8375; ICANN reserves .internal for private use)."""


def is_local(address: str) -> bool:
    """Return whether an address or a name is a loopback one."""
    if address == "localhost" or address.endswith(".localhost"):
        return True
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


def host_of(origin: str) -> str:
    """Return the host of an origin (scheme, host, optional port; RFC 6454). Return "" for anything else."""
    found = _HOST.fullmatch(origin.partition("://")[2])
    return (found["address"] or found["name"]).lower() if found else ""


def is_strangers(host: str, allowed: Collection[str]) -> bool:
    """Return whether a ``Host`` header may be an attacker's name whose DNS entry points here (DNS rebinding).

    False for an address, a name without a dot, a name that public DNS never assigns, this machine's own name, and the
    names in `allowed`: ``*.example.com`` matches all names below it, ``*`` any name. True for text that is no name.
    """
    if not host:
        return False
    found = _HOST.fullmatch(host)
    name = (found["address"] or found["name"]).lower().rstrip(".") if found else ""
    if name and ("." not in name or name.endswith(_PRIVATE_ENDINGS) or _is_address(name)):
        return False
    return not (name == _own_name() or "*" in allowed or name in allowed or _is_below(name, allowed))


def _is_below(name: str, allowed: Collection[str]) -> bool:
    """Return whether the name ends with the part of a pattern after its star."""
    return any(name.endswith(one[1:]) for one in allowed if one.startswith("*."))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@cache
def _own_name() -> str:
    return socket.gethostname().lower()
