"""Addresses and names: what is of this machine, and which name a stranger may own."""

import ipaddress
import re
import socket
from collections.abc import Collection
from functools import cache

_HOST = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]+(%[0-9A-Za-z._-]+)?)\]|(?P<name>[0-9A-Za-z._-]+))(:[0-9]*)?")
_PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".home.arpa")
"""Names that public DNS never gives to anybody (RFC 6761, 6762, 8375; .internal is ICANN's for private use)."""


def is_local(address: str) -> bool:
    """Whether an address, or a name, is of this machine."""
    if address == "localhost" or address.endswith(".localhost"):
        return True
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


def host_of(origin: str) -> str:
    """Of an origin, without its port; "" for what is none: a scheme, a host, perhaps a port (RFC 6454)."""
    found = _HOST.fullmatch(origin.partition("://")[2])
    return (found["address"] or found["name"]).lower() if found else ""


def is_strangers(host: str, allowed: Collection[str]) -> bool:
    """Whether a ``Host`` header may be a name of somebody else's that DNS was made to lead here (DNS rebinding).

    An address is none, nor a name without a dot or one that no public DNS has, nor this machine's own. `allowed` has
    further names; ``*.example.com`` are all below it, ``*`` is any. What is no name at all is a stranger's.
    """
    if not host:
        return False
    found = _HOST.fullmatch(host)
    name = (found["address"] or found["name"]).lower().rstrip(".") if found else ""
    if name and ("." not in name or name.endswith(_PRIVATE_ENDINGS) or _is_address(name)):
        return False
    return not (name == _own_name() or "*" in allowed or name in allowed or _is_below(name, allowed))


def _is_below(name: str, allowed: Collection[str]) -> bool:
    """Whether a pattern's part behind the star ends the name."""
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
