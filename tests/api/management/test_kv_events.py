"""KV events over ZMQ on loopback, read by a subscriber like llm-d's router."""

import asyncio
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
import zmq.asyncio

from server.app import create_app
from server.cli.command_line import main
from server.engine.cache.prefix_cache import BLOCK
from server.errors import ConfigError
from server.telemetry.kv_events import KvEvents
from tests.api.conftest import TIMEOUT_S, Api, Serve, make_settings
from tests.api.management.test_models import TWO_MODELS
from tests.support.fakes import FakeLoader

LONG = "A prompt of more than three blocks of sixteen tokens, so that there is something to report."
EVENTS = {"kv_events": "tcp://127.0.0.1:*", "kv_events_replay": "tcp://127.0.0.1:*", "kv_events_pod": "10.0.0.1:8080"}


class Router:
    """Applies KV events. `blocks`: for each model and medium, the tokens up to the end of each block, by hash."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []
        self.numbers: list[int] = []
        self.salts: set[str] = set()
        self.blocks: dict[tuple[str, str], dict[int, tuple[int, ...]]] = {}

    def read(self, topic: bytes, number: bytes, payload: bytes) -> None:
        self.messages.append([topic, number, payload])
        kv, pod, model = topic.decode().split("@")
        assert (kv, pod, len(number)) == ("kv", "10.0.0.1:8080", 8)
        self.numbers.append(int.from_bytes(number, "big"))
        at, events = msgpack.unpackb(payload)  # type: ignore[attr-defined, no-untyped-call]
        assert at > 1_600_000_000
        for name, *fields in events:
            if name == "AllBlocksCleared":
                self.blocks = {key: {} for key in self.blocks if key[0] != model}
            elif name == "BlockRemoved":
                hashes, medium = fields
                for block in hashes:
                    del self.blocks[model, medium][block]
            else:
                assert name == "BlockStored"
                hashes, parent, tokens, size, lora_id, medium, lora_name = fields[:7]
                assert (size, lora_id, lora_name) == (BLOCK, None, None)
                if len(fields) > 7:
                    self.salts.add(fields[7][0][0])
                stored = self.blocks.setdefault((model, medium), {})
                prefix = () if parent is None else stored[parent]
                for i, block in enumerate(hashes):
                    assert 0 <= block < 1 << 64
                    prefix += tuple(tokens[i * size : (i + 1) * size])
                    stored[block] = prefix

    def prefixes(self, model: str) -> set[tuple[int, ...]]:
        return set(self.blocks.get((model, "GPU"), {}).values())


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.telemetry.kv_events.INTERVAL_S", 0.005)


async def complete(api: Api, headers: Any = None, **body: Any) -> list[int]:
    """Complete a prompt. Returns the prompt's tokens, without those of a partial last block."""
    body = {"max_tokens": 2, "ignore_eos": True, "prompt": LONG, **body}
    await api.expect("POST /v1/completions", body, headers=headers)
    text = {"content": body["prompt"], "add_special": True}
    tokens = (await api.client.post("/tokenize", json=text, headers=headers)).json()["tokens"]
    return list(tokens[: len(tokens) // BLOCK * BLOCK])


def prefixes(tokens: list[int]) -> set[tuple[int, ...]]:
    return {tuple(tokens[:n]) for n in range(BLOCK, len(tokens) + 1, BLOCK)}


async def replay(address: str) -> Router:
    """Request all messages so far, as llm-d's router does, and apply them."""
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


async def router_state(api: Api, condition: Callable[[Router], bool]) -> Router:
    """Replay the events until `condition` holds for a router that applies them."""
    events: KvEvents = api.app.state.events
    _, address = events.addresses
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            found = await replay(address)
            if condition(found):
                return found


async def test_events_report_the_cached_blocks(serve: Serve) -> None:
    async with serve(FakeLoader(n_seq=2), server=EVENTS) as api:
        first, second = await complete(api), await complete(api, prompt=LONG[::-1])
        found = await router_state(api, lambda router: prefixes(first) | prefixes(second) <= router.prefixes("demo"))
        assert found.numbers == list(range(len(found.numbers)))
        third = await complete(api, prompt=f"a{LONG}")
        found = await router_state(api, lambda router: prefixes(third) <= router.prefixes("demo"))
        assert not prefixes(first) | prefixes(second) <= found.prefixes("demo")  # one lost its slot


async def test_unload_removes_the_blocks_of_the_model(serve: Serve) -> None:
    async with serve(models=TWO_MODELS, server=EVENTS) as api:
        tokens = await complete(api, model="b")
        await router_state(api, lambda router: prefixes(tokens) <= router.prefixes("b"))
        await api.client.post("/models/unload", json={"model": "b"})
        await router_state(api, lambda router: not router.prefixes("b"))


async def test_blocks_of_each_api_key_have_their_own_salt(serve: Serve) -> None:
    server = EVENTS | {"api_keys": ["one", "two"]}
    async with serve(FakeLoader(n_seq=2), server=server) as api:
        for key in ("one", "two"):
            await complete(api, headers={"Authorization": f"Bearer {key}"})
        found = await router_state(api, lambda router: len(router.salts) == 2)
        assert all(salt and "one" not in salt for salt in found.salts)


async def test_missing_zmq_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.delitem(sys.modules, "server.telemetry.kv_events", raising=False)
    with pytest.raises(ConfigError, match=r"llamapool\[events\]"):
        create_app(make_settings(server=EVENTS), loader=FakeLoader())


def test_unusable_address_is_a_config_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        used = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        for server in (EVENTS | {"kv_events_replay": used}, EVENTS | {"kv_events": "tpc://*:5557"}):
            with pytest.raises(ConfigError, match=r"server\.kv_events: .*(in use|not supported)"):
                create_app(make_settings(server=server), loader=FakeLoader())


def test_unusable_address_ends_the_start_before_models_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("server.logs.configure", lambda _: None)
    monkeypatch.setattr("server.model_pool.open_pool", None)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with socket.create_server(("127.0.0.1", 0)) as other:
        events = ["--kv-events", EVENTS["kv_events"], "--kv-events-replay", f"tcp://127.0.0.1:{other.getsockname()[1]}"]
        assert main(["serve", "-m", str(tmp_path / "m.gguf"), "--port", "0", *events]) == 2
    assert "in use" in capsys.readouterr().err
