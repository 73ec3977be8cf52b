"""Embeddings through the official client, beside a model that generates in the same process."""

import asyncio
from collections.abc import Iterator

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.clients.conftest import QUIET, TEMPLATE
from tests.support.closeness import same_vectors
from tests.support.ggufs import BERT, BERT_RERANKER, EMBED_NONE, TinyModel, gguf_file
from tests.support.real_server import REPLY_S, RealServer, llamapool_config

CONFIG = """
server: {{metrics: true}}
defaults: {{n_ctx: 2048, n_threads: 1}}
models:
  chat: {{path: {chat}, load: startup, n_parallel: 4, flash_attn: "off", cache_type_k: f32, cache_type_v: f32}}
  embed: {{path: {bert}, load: startup, embedding: true}}
  tokens: {{path: {none}, embedding: true}}
  ranker: {{path: {ranker}, reranking: true}}
"""
TEXTS = ["the quick brown fox", "jumps over the lazy dog", "a"]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Models for chat, embeddings and reranking."""
    folder = tmp_path_factory.mktemp("embeddings")
    models = {"chat": TinyModel(chat_template=TEMPLATE), "bert": BERT, "none": EMBED_NONE, "ranker": BERT_RERANKER}
    config = folder / "pool.yaml"
    config.write_text(CONFIG.format(**{name: gguf_file(folder, model) for name, model in models.items()}))
    with llamapool_config(config, environment=QUIET) as running:
        yield running


@pytest.fixture
def embeddings(pool: RealServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{pool.base_url}/v1", api_key="none", max_retries=0, timeout=REPLY_S) as client:
        yield client


def test_a_list_of_texts(embeddings: OpenAI) -> None:
    """The client asks for base64 unless told otherwise, and decodes it."""
    reply = embeddings.embeddings.create(model="embed", input=TEXTS)
    assert [entry.index for entry in reply.data] == [0, 1, 2]
    assert all(np.linalg.norm(entry.embedding) == pytest.approx(1.0, abs=1e-4) for entry in reply.data)
    assert reply.model == "embed"
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 0


def test_floats_are_the_same_numbers_as_base64(embeddings: OpenAI) -> None:
    as_floats = embeddings.embeddings.create(model="embed", input="x", encoding_format="float").data[0].embedding
    as_base64 = embeddings.embeddings.create(model="embed", input="x").data[0].embedding
    assert same_vectors(as_floats, as_base64)
    raw = embeddings.embeddings.create(model="embed", input="x", encoding_format="base64").data[0].embedding
    assert isinstance(raw, str)


def test_tokens_dimensions_and_user(embeddings: OpenAI) -> None:
    reply = embeddings.embeddings.create(model="embed", input=[[5, 6], [7]], dimensions=8, user="somebody")
    assert [len(entry.embedding) for entry in reply.data] == [8, 8]
    assert reply.usage.prompt_tokens == 3
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        embeddings.embeddings.create(model="embed", input="x", dimensions=65)


async def test_chats_and_200_texts_at_once(pool: RealServer) -> None:
    async with AsyncOpenAI(base_url=f"{pool.base_url}/v1", api_key="none", max_retries=0, timeout=REPLY_S) as client:

        async def chat(i: int) -> str:
            reply = await client.chat.completions.create(
                model="chat", messages=[{"role": "user", "content": f"hi {i}"}], max_tokens=20, temperature=0
            )
            return reply.choices[0].message.content or ""

        async def embed(i: int) -> list[float]:
            reply = await client.embeddings.create(model="embed", input=f"the text number {i}")
            return reply.data[0].embedding

        alone = await embed(7), await chat(3)
        vectors, chats = await asyncio.gather(
            asyncio.gather(*(embed(i) for i in range(200))), asyncio.gather(*(chat(i) for i in range(4)))
        )
    assert same_vectors(vectors[7], alone[0])
    assert chats[3] == alone[1]
    assert not same_vectors(vectors[7], vectors[8])


def test_200_texts_of_a_request_share_decodes(embeddings: OpenAI, pool: RealServer) -> None:
    """Those of 200 requests, too (`tests/api/inference/`), if they come faster than they are computed."""
    alone = embeddings.embeddings.create(model="embed", input="the text number 7").data[0].embedding
    before = n_decodes(pool)
    reply = embeddings.embeddings.create(model="embed", input=[f"the text number {i}" for i in range(200)])
    assert same_vectors(reply.data[7].embedding, alone)
    assert 0 < n_decodes(pool) - before < 50


def n_decodes(pool: RealServer) -> float:
    """Of the model "embed", since the server was started."""
    lines = pool.request("GET", "/metrics?model=embed").body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("llamacpp:n_decode_total "))
