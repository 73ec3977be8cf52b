"""Decides which hosts the server may contact for a request, and at which IP address.

A URL in a request makes the server send a request (SSRF). So all hosts are rejected by default (`AllowedHosts`), and an
allowed name must not resolve to a private network.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.media.header import Unreadable

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SPECIAL = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")))
"""Ranges of IANA's special-purpose registries for which `is_global` is true in some or all versions of Python."""
_SHOWN_CHARS = 200
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a host, from its name and a port."""


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The hosts that may be contacted: none, all (``anywhere``), or these names.

    A name that starts with ``*.`` matches all subdomains. A listed IP address is allowed in any network; a name must
    not resolve to a private one. ``folder``: the root of ``file://`` URLs; None = not allowed.
    """

    anywhere: bool = False
    hosts: tuple[str, ...] = ()
    folder: Path | None = None

    def allow(self, host: str) -> bool:
        if self.anywhere or host in self.hosts:
            return True
        return any(name.startswith("*.") and host.endswith(name[1:]) for name in self.hosts)

    def trust(self, host: str) -> bool:
        """Return whether the IP address is listed."""
        return host in self.hosts and _address(host) is not None


async def resolved(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def checked_address(host: str, port: int, sites: AllowedHosts, resolve: Resolve) -> str:
    """Return an IP address of the host.

    Raises `Unreadable` if it has none, or if one is in a private network and `sites` does not list it.
    """
    try:
        addresses = await resolve(host, port)
    except (OSError, UnicodeError):
        addresses = ()
    if not addresses:
        raise Unreadable(f"{shown(host)} is not known")
    if not sites.trust(host):
        for written in addresses:
            address = _address(written)
            if address is None or not is_public(address):
                raise Unreadable(f"{shown(host)} is, or leads to, an address that is not of the open internet")
    return addresses[0]


def is_public(address: IpAddress) -> bool:
    """Return whether the address is public. Also checks IPv4 addresses embedded in IPv6 addresses."""
    if isinstance(address, ipaddress.IPv6Address):
        mapped = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address.ipv4_mapped
        if mapped is not None:
            return is_public(mapped)
        if not all(inner is None or is_public(inner) for inner in (address.sixtofour, *(address.teredo or ()))):
            return False
        if address.is_site_local:  # fec0::/10, for which `is_global` is true
            return False
    if any(address in network for network in _SPECIAL):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _address(written: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(written.partition("%")[0])
    except ValueError:
        return None


def shown(text: str) -> str:
    """Return `text` quoted and truncated for an error message."""
    return ascii(text[:_SHOWN_CHARS])
