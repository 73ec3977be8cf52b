import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from server.errors import AuthenticationFailed
from server.transport.admission import ADMISSION, Admission, AdmissionControl, scheduled_client
from server.transport.endpoints import Resolver
from server.transport.keys import ANYBODY, Key, KeyStore, digest_of, given_key, plain_key
from server.transport.limits import Rates
from server.transport.options import HttpOptions


def admitted(
    keys: Iterable[str | Key],
    path: str = "/v1/models",
    authorization: bytes | None = None,
    x_api_key: bytes | None = None,
    *,
    prefix: str = "",
    method: str = "GET",
    query: bytes = b"",
) -> Key | None:
    """Who it is by the keys."""
    given = {b"authorization": authorization, b"x-api-key": x_api_key}
    ring = KeyStore(plain_key(key) if isinstance(key, str) else key for key in keys)
    scope = {"path": path, "method": method, "query_string": query}
    caller = ring.caller({name: value for name, value in given.items() if value is not None})
    ring.check(caller, Resolver(prefix).target(scope))
    return caller


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [
        (b"Bearer two", None),
        (b"bearer two", None),
        (b"two", None),
        (None, b"two"),
        (None, b"Bearer two"),
        (b"", b"two"),
    ],
)
def test_any_configured_key_opens(authorization: bytes | None, x_api_key: bytes | None) -> None:
    assert admitted(["one", "two"], "/v1/models", authorization, x_api_key) == plain_key("two")


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [(None, None), (b"Bearer three", None), (b"Bearer", None), (b"Bearer ", None), (b"\xff\xfe", None), (b"x", b"one")],
)
def test_no_key_or_a_wrong_one_is_refused(authorization: bytes | None, x_api_key: bytes | None) -> None:
    with pytest.raises(AuthenticationFailed, match=r"^Invalid API Key$"):
        admitted(["one", "two"], "/v1/models", authorization, x_api_key)


def test_a_key_may_hold_any_character() -> None:
    assert admitted(["schlüssel"], "/props", "Bearer schlüssel".encode())


def test_a_key_that_has_expired_is_none() -> None:
    ring = KeyStore([Key("a", digest_of(b"one"), expires_at=100.0)])
    assert ring.find(b"one", lambda: 99.9)
    assert ring.find(b"one", lambda: 100.0) is None


def test_a_key_is_read_from_either_header() -> None:
    assert given_key({b"authorization": b"Bearer one"}) == given_key({b"authorization": b"one"}) == b"one"
    assert given_key({b"x-api-key": b"one"}) == b"one"
    assert given_key({}) == b""


def scope(key: str = "", address: str = "10.0.0.1") -> dict[str, Any]:
    admission = Admission(AdmissionControl(HttpOptions(), KeyStore(), Rates(), asyncio.Event()))
    admission.caller = plain_key(key) if key else ANYBODY
    return {ADMISSION: admission, "client": (address, 1234)}


def test_several_keys_tell_clients_apart_whatever_the_body_says() -> None:
    one, two = (
        scheduled_client(scope("one"), "", several_keys=True),
        scheduled_client(scope("two"), "", several_keys=True),
    )
    assert one != two
    assert scheduled_client(scope("one", "10.0.0.2"), "somebody", several_keys=True) == one


def test_one_key_tells_nobody_apart_so_the_user_does_and_then_the_address() -> None:
    anna, address = (
        scheduled_client(scope("k"), "anna", several_keys=False),
        scheduled_client(scope("k"), "", several_keys=False),
    )
    assert anna == scheduled_client(scope("k", "10.0.0.2"), "anna", several_keys=False)
    assert (
        len(
            {
                anna,
                address,
                scheduled_client(scope("k"), "bert", several_keys=False),
                scheduled_client(scope("k", "::1"), "", several_keys=False),
            }
        )
        == 4
    )
    assert "anna" not in anna
