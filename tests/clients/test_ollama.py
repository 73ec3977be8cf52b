"""Ollama's API with its official client: chat, generate, tools, structure, thoughts, vectors, models, errors.

The tools are called by the default model, which has learned to; the rest runs on random weights.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import ollama
import pytest
from ollama import AsyncClient, Client

from tests.clients.conftest import API_KEY
from tests.clients.slots import wait_until
from tests.support.ggufs import TinyModel, gguf_file
from tests.support.real_server import REPLY_S, RealServer, llamapool

HELLO = [{"role": "user", "content": "hello world"}]
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "num_predict": 12}  # random weights may end at once


@pytest.fixture
def client(server: RealServer) -> Iterator[Client]:
    with Client(host=server.base_url, timeout=REPLY_S) as connected:
        yield connected


@pytest.fixture
def agent(demo: RealServer) -> Iterator[Client]:
    with Client(host=demo.base_url, timeout=REPLY_S) as connected:
        yield connected


@pytest.fixture
async def async_client(server: RealServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(host=server.base_url, timeout=REPLY_S) as connected:
        yield connected


async def test_the_asynchronous_client_streams(async_client: AsyncClient) -> None:
    parts = [part async for part in await async_client.chat("tiny", HELLO, options=GREEDY, stream=True)]
    assert parts[-1].done_reason == "length"


def test_models_are_listed_shown_and_running(agent: Client) -> None:
    (listed,) = agent.list().models
    assert listed.model == "demo"
    assert listed.size is not None
    assert listed.size > 1000
    shown = agent.show("demo")
    assert set(shown.capabilities or ()) == {"completion", "tools", "thinking", "insert"}
    assert shown.details is not None
    assert shown.modelinfo is not None
    assert shown.modelinfo[f"{shown.details.family}.context_length"] > 0
    assert [each.model for each in agent.ps().models] == ["demo"]
    assert agent.pull("demo").status == "success"


def test_several_models_answer_by_their_names(guarded: RealServer) -> None:
    with Client(host=guarded.base_url, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=REPLY_S) as keyed:
        assert [each.model for each in keyed.list().models] == ["first", "second"]
        assert keyed.chat("first:latest", HELLO, options=GREEDY).model == "first:latest"
        assert keyed.generate("second", "hello", options=GREEDY, keep_alive=0).model == "second"
        wait_until(lambda: [each.model for each in keyed.ps().models] == ["first"], "the second is freed")
        with pytest.raises(ollama.ResponseError, match="model 'third' not found") as caught:
            keyed.chat("third", HELLO)
    assert caught.value.status_code == 404


def test_vectors(tmp_path: Any) -> None:
    file = gguf_file(tmp_path, TinyModel(n_ctx=256))
    flags = ("--embedding", "--pooling", "mean", "-t", "1", "-a", "tiny-embed")
    with llamapool(file, *flags) as running, Client(host=running.base_url, timeout=REPLY_S) as connected:
        several = connected.embed("tiny-embed", ["hello", "world"])
        one = connected.embed("tiny-embed", "hello", dimensions=4)
        old = connected.embeddings("tiny-embed", "hello")
    assert len(several.embeddings) == 2
    assert sum(number**2 for number in several.embeddings[0]) == pytest.approx(1, abs=1e-4)
    assert len(one.embeddings[0]) == 4
    assert len(old.embedding) == len(several.embeddings[0])
