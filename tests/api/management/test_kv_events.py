"""KV events as a subscriber like llm-d's router reads them: real sockets on loopback."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
import zmq
import zmq.asyncio

from server.app import create_app
from server.engine.cache.prefix_cache import BLOCK
from server.errors import ConfigError
from server.telemetry.kv_events import KvEvents
from tests.api.conftest import TIMEOUT_S, Api, Serve, make_settings, until
from tests.api.management.test_models import TWO
from tests.support.fakes import FakeLoader

LONG = "A prompt of more than three blocks of sixteen tokens, so that there is something to tell."
EVENTS = {"kv_events": "tcp://127.0.0.1:*", "kv_events_replay": "tcp://127.0.0.1:*", "kv_events_pod": "10.0.0.1:8080"}


class Router:
    """What it has been told: by model and medium, each block's text."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []
        self.numbers: list[int] = []
        self.salts: set[str] = set()
        self.held: dict[tuple[str, str], dict[int, tuple[int, ...]]] = {}

    def read(self, topic: bytes, number: bytes, payload: bytes) -> None:
        self.messages.append([topic, number, payload])
        kv, pod, model = topic.decode().split("@")
        assert (kv, pod, len(number)) == ("kv", "10.0.0.1:8080", 8)
        self.numbers.append(int.from_bytes(number, "big"))
        at, events = msgpack.unpackb(payload)  # type: ignore[attr-defined, no-untyped-call]
        assert at > 1_600_000_000
        for name, *fields in events:
            if name == "AllBlocksCleared":
                self.held = {key: {} for key in self.held if key[0] != model}
            elif name == "BlockRemoved":
                hashes, medium = fields
                for block in hashes:
                    del self.held[model, medium][block]
            else:
                assert name == "BlockStored"
                hashes, parent, tokens, size, lora_id, medium, lora_name = fields[:7]
                assert (size, lora_id, lora_name) == (BLOCK, None, None)
                if len(fields) > 7:
                    self.salts.add(fields[7][0][0])
                of = self.held.setdefault((model, medium), {})
                text = () if parent is None else of[parent]
                for i, block in enumerate(hashes):
                    assert 0 <= block < 1 << 64
                    text += tuple(tokens[i * size : (i + 1) * size])
                    of[block] = text

    def texts(self, model: str, medium: str = "GPU") -> set[tuple[int, ...]]:
        return set(self.held.get((model, medium), {}).values())


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.telemetry.kv_events.EVERY_S", 0.005)


async def complete(api: Api, headers: Any = None, **body: Any) -> list[int]:
    """The tokens of a prompt that was computed, in whole blocks."""
    asked = {"max_tokens": 2, "ignore_eos": True, "prompt": LONG, **body}
    await api.expect("POST /v1/completions", asked, headers=headers)
    words = {"content": asked["prompt"], "add_special": True}
    tokens = (await api.client.post("/tokenize", json=words, headers=headers)).json()["tokens"]
    return list(tokens[: len(tokens) // BLOCK * BLOCK])


def beginnings(tokens: list[int]) -> set[tuple[int, ...]]:
    return {tuple(tokens[:n]) for n in range(BLOCK, len(tokens) + 1, BLOCK)}


async def addresses(api: Api) -> list[str]:
    """Where it is told, and where to ask for what was missed."""
    events: KvEvents = api.app.state.events
    await until(lambda: events.addresses)
    return events.addresses


async def replayed(address: str) -> Router:
    """All messages so far, asked for as llm-d's router does."""
    context = zmq.asyncio.Context()
    found = Router()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.connect(address)
        await dealer.send_multipart([b"", (0).to_bytes(8, "big")])
        while True:
            delimiter, topic, number, payload = await asyncio.wait_for(dealer.recv_multipart(), TIMEOUT_S)
            assert delimiter == b""
            if not payload:
                return found
            found.read(topic, number, payload)
    finally:
        context.destroy(linger=0)


async def told(api: Api, condition: Callable[[Router], bool]) -> Router:
    """What a router knows once `condition` holds."""
    _, address = await addresses(api)
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            found = await replayed(address)
            if condition(found):
                return found


async def test_a_router_knows_what_is_held(serve: Serve) -> None:
    async with serve(FakeLoader(n_seq=2), server=EVENTS) as api:
        first, second = await complete(api), await complete(api, prompt=LONG[::-1])
        found = await told(api, lambda router: beginnings(first) | beginnings(second) <= router.texts("demo"))
        assert found.numbers == list(range(len(found.numbers)))
        third = await complete(api, prompt=f"a{LONG}")
        found = await told(api, lambda router: beginnings(third) <= router.texts("demo"))
        assert not beginnings(first) | beginnings(second) <= found.texts("demo")  # one of them has lost its slot


async def test_what_an_unloaded_model_held_is_gone(serve: Serve) -> None:
    async with serve(models=TWO, server=EVENTS) as api:
        tokens = await complete(api, model="b")
        await told(api, lambda router: beginnings(tokens) <= router.texts("b"))
        await api.client.post("/models/unload", json={"model": "b"})
        await told(api, lambda router: not router.texts("b"))


async def test_keys_have_blocks_of_their_own(serve: Serve) -> None:
    server = EVENTS | {"api_keys": ["one", "two"]}
    async with serve(FakeLoader(n_seq=2), server=server) as api:
        for key in ("one", "two"):
            await complete(api, headers={"Authorization": f"Bearer {key}"})
        found = await told(api, lambda router: len(router.salts) == 2)
        assert all(salt and "one" not in salt for salt in found.salts)


async def test_without_zmq_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.delitem(sys.modules, "server.telemetry.kv_events", raising=False)
    with pytest.raises(ConfigError, match=r"llamapool\[events\]"):
        create_app(make_settings(server=EVENTS), loader=FakeLoader())
