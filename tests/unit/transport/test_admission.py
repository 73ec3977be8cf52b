"""API keys of requests, the client for fair scheduling, and the queue for grammar compilation."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from server.errors import AuthenticationFailed, TooLate
from server.transport.admission import ADMISSION, Admission, AdmissionControl, CompileTurns, scheduled_client
from server.transport.endpoints import Resolver
from server.transport.keys import ANYBODY, Key, KeyStore, hash_of, plain_key
from server.transport.limits import Rates
from server.transport.options import HttpOptions


def find_key(authorization: bytes | None, x_api_key: bytes | None = None, *, keys: str = "one two") -> Key | None:
    """Return the key of a request for the list of models. Raises the error that refuses the request."""
    headers = {b"authorization": authorization, b"x-api-key": x_api_key}
    store = KeyStore(map(plain_key, keys.split()))
    caller = store.caller({name: value for name, value in headers.items() if value is not None})
    store.check(caller, Resolver().target({"path": "/v1/models", "method": "GET", "query_string": b""}))
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
def test_configured_key_is_accepted_in_either_header(authorization: bytes | None, x_api_key: bytes | None) -> None:
    assert find_key(authorization, x_api_key) == plain_key("two")


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [(None, None), (b"Bearer three", None), (b"Bearer", None), (b"Bearer ", None), (b"\xff\xfe", None), (b"x", b"one")],
)
def test_missing_or_wrong_key_is_refused(authorization: bytes | None, x_api_key: bytes | None) -> None:
    with pytest.raises(AuthenticationFailed, match=r"^Invalid API Key$"):
        find_key(authorization, x_api_key)


def test_key_may_contain_non_ascii_characters() -> None:
    assert find_key("Bearer schlüssel".encode(), keys="schlüssel")


def test_expired_key_is_not_found() -> None:
    store = KeyStore([Key(name="a", hash=hash_of("one"), expires=datetime.fromtimestamp(100, UTC))])
    assert store.find(b"one", lambda: 99.9)
    assert store.find(b"one", lambda: 100.0) is None


def scope(key: str = "", address: str = "10.0.0.1") -> dict[str, Any]:
    admission = Admission(AdmissionControl(HttpOptions(), KeyStore(), Rates(), asyncio.Event()))
    admission.caller = plain_key(key) if key else ANYBODY
    return {ADMISSION: admission, "client": (address, 1234)}


def test_clients_are_distinguished_by_key_if_there_are_several() -> None:
    one, two = (scheduled_client(scope(key), "", several_keys=True) for key in ("one", "two"))
    assert one != two
    assert scheduled_client(scope("one", "10.0.0.2"), "somebody", several_keys=True) == one


def test_clients_of_one_key_are_distinguished_by_user_or_address() -> None:
    def client(user: str, address: str = "10.0.0.1") -> str:
        return scheduled_client(scope("k", address), user, several_keys=False)

    anna = client("anna")
    assert anna == client("anna", "10.0.0.2")
    assert len({anna, client(""), client("bert"), client("", "::1")}) == 4
    assert "anna" not in anna


# ---- concurrent grammar compilations


async def test_compilations_alternate_between_clients_and_skip_cancelled_ones() -> None:
    turns, order = CompileTurns(1), list[str]()

    async def work(client: str) -> None:
        async with turns.turn(client):
            order.append(client)

    async with turns.turn("greedy"):
        tasks = [asyncio.create_task(work(client)) for client in ("greedy", "greedy", "other", "third", "cancelled")]
        await asyncio.sleep(0)
        tasks[-1].cancel()
    await asyncio.wait(tasks)
    assert order == ["other", "third", "greedy", "greedy"]


async def test_compilation_that_waits_too_long_is_refused_with_retry_after() -> None:
    turns = CompileTurns(1, wait_s=0.01)
    async with turns.turn("a"):
        with pytest.raises(TooLate, match="waited for 0 s, retry in 5 s"):
            async with turns.turn("b"):
                pass
