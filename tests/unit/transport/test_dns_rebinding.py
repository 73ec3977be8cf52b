"""Loopback addresses, hosts of origins, and Host headers that may be DNS rebinding."""

import socket

import pytest

from server.transport.cors import host_of, is_foreign_host, is_local


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "localhost", "a.localhost")),
        *((host, False) for host in ("", "0.0.0.0", "::", "192.168.0.1", "localhost.example")),
        *((host, False) for host in ("127.0.0.1.example", "[::1")),
    ],
)
def test_loopback_addresses_and_names(address: str, expected: bool) -> None:
    assert is_local(address) is expected


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:3000", "localhost"),
        ("https://[::1]:8443", "::1"),
        ("http://127.0.0.1", "127.0.0.1"),
        *((bad, "") for bad in ("null", "", "file://", "http://[::1", "http://127.0.0.1/a", "localhost")),
        *((bad, "") for bad in ("http://e.example@127.0.0.1", "http://[::1].evil.example", "http://127.0.0.1:80:80")),
    ],
)
def test_host_of_an_origin_is_empty_if_the_origin_is_malformed(origin: str, host: str) -> None:
    assert host_of(origin) == host


@pytest.mark.parametrize(
    "host",
    [
        *("", "127.0.0.1:8080", "[::1]:8080", "[fe80::1%eth0]", "192.0.2.7", "localhost:1", "LOCALHOST", "localhost."),
        "model.localhost",
        *("llamapool:8080", "mac.local", "host.docker.internal:80", "nas.home.arpa", socket.gethostname()),
        *("api.example.com", "API.Example.com:443", "a.b.wild.example"),
    ],
)
def test_hosts_that_attackers_cannot_own_are_accepted(host: str) -> None:
    assert not is_foreign_host(host, {"api.example.com", "*.wild.example"})


@pytest.mark.parametrize(
    "host",
    [
        *("rebound.example", "rebound.example:8080", "127.0.0.1.rebound.example", "localhost.example", "wild.example"),
        *("example.com", "xwild.example", "rebound.example.", "api.example.com.evil.example", "[::1", ":80"),
        *("evil\u3002example", "evil%2eexample", "127.0.0.1/.evil.example", "127.0.0.1#.evil.example", "a@127.0.0.1"),
        *("[::1].evil.example", "127.0.0.1:80@evil.example", "localhost evil.example"),
    ],
)
def test_hosts_that_attackers_may_own_are_foreign(host: str) -> None:
    assert is_foreign_host(host, {"api.example.com", "*.wild.example"})
    assert not is_foreign_host("rebound.example", {"*"})
