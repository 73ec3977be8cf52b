from typing import Any

import pytest

from server.transport.cors import CorsPolicy
from server.transport.options import CorsOptions


def headers(origin: str | None, **options: Any) -> dict[str, str]:
    policy = CorsPolicy(CorsOptions(**options))
    return {k.decode(): v.decode() for k, v in policy.headers(origin.encode() if origin else None)}


def test_without_credentials_a_star_stays_a_star() -> None:
    assert headers("http://x.y", credentials=False) == {"access-control-allow-origin": "*"}


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:8080"])
def test_localhost_means_every_port_of_this_machine(origin: str) -> None:
    assert headers(origin, origins="localhost")["access-control-allow-origin"] == origin


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost.evil.example", "http://[bad", "null"])
def test_localhost_lets_no_other_origin_in(origin: str) -> None:
    assert headers(origin, origins="localhost") == {}


def test_a_list_of_origins_lets_in_those_alone() -> None:
    both = "https://a.example, https://b.example"
    assert headers("https://b.example", origins=both)["access-control-allow-origin"] == "https://b.example"
    assert headers("https://c.example", origins=both) == {}


def test_a_preflight_names_methods_and_headers() -> None:
    policy = CorsPolicy(CorsOptions())
    assert dict(policy.preflight(b"http://x.y")) == {
        b"access-control-allow-origin": b"http://x.y",
        b"vary": b"Origin",
        b"access-control-allow-credentials": b"true",
        b"access-control-allow-methods": b"GET, POST, DELETE, OPTIONS",
        b"access-control-allow-headers": b"*",
    }
