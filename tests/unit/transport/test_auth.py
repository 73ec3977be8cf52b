import pytest

from server.errors import AuthenticationFailed
from server.transport.auth import ApiKeys, client_name, scheduled_client


def test_without_keys_everything_is_open():
    ApiKeys([]).check("/v1/models", None, None)


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
def test_any_configured_key_opens(authorization, x_api_key):
    ApiKeys(["one", "two"]).check("/v1/models", authorization, x_api_key)


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [(None, None), (b"Bearer three", None), (b"Bearer", None), (b"Bearer ", None), (b"\xff\xfe", None), (b"x", b"one")],
)
def test_no_key_or_a_wrong_one_is_refused(authorization, x_api_key):
    with pytest.raises(AuthenticationFailed, match=r"^Invalid API Key$"):
        ApiKeys(["one", "two"]).check("/v1/models", authorization, x_api_key)


def test_a_key_may_hold_any_character():
    ApiKeys(["schlüssel"]).check("/props", "Bearer schlüssel".encode(), None)


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/livez", "/readyz"])
def test_health_is_open_behind_the_prefix_only(path):
    ApiKeys(["one"]).check(path, None, None)
    ApiKeys(["one"], "/llm").check("/llm" + path, None, None)
    with pytest.raises(AuthenticationFailed):
        ApiKeys(["one"], "/llm").check(path, None, None)


def test_a_client_is_told_by_its_key_wherever_it_stands_and_the_name_does_not_hold_it():
    names = {client_name(b"Bearer one", None), client_name(b"one", None), client_name(None, b"one")}
    assert len(names) == 1
    assert names.isdisjoint({client_name(b"Bearer two", None), client_name(None, None)})
    assert b"one" not in names.pop()


def scope(key: str = "", address: str = "10.0.0.1") -> dict:
    return {"headers": [(b"x-api-key", key.encode())] if key else [], "client": (address, 1234)}


def test_several_keys_tell_clients_apart_whatever_the_body_says():
    one, two = scheduled_client(scope("one"), "", 2), scheduled_client(scope("two"), "", 2)
    assert one != two
    assert scheduled_client(scope("one", "10.0.0.2"), "somebody", 2) == one


def test_one_key_tells_nobody_apart_so_the_user_does_and_then_the_address():
    anna, address = scheduled_client(scope("k"), "anna", 1), scheduled_client(scope("k"), "", 1)
    assert anna == scheduled_client(scope("k", "10.0.0.2"), "anna", 1)
    assert (
        len({anna, address, scheduled_client(scope("k"), "bert", 1), scheduled_client(scope("k", "::1"), "", 1)}) == 4
    )
    assert "anna" not in anna


def test_a_local_socket_has_no_address_and_a_name_may_hold_anything():
    assert scheduled_client({"headers": [], "client": None}, "", 0) == ""
    assert scheduled_client(scope(), "\ud800", 0)
