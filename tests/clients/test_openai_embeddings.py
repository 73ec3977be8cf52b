"""Embeddings through the official client."""

from collections.abc import Iterator

import numpy as np
import openai
import pytest
from openai import OpenAI

from tests.clients.conftest import QUIET
from tests.support.ggufs import BERT, gguf_file
from tests.support.real_server import REPLY_S, llamapool


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    model = gguf_file(tmp_path_factory.mktemp("embeddings"), BERT)
    with (
        llamapool(model, "--embedding", "-a", "embed", "-t", "1", environment=QUIET) as server,
        OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=REPLY_S) as client,
    ):
        yield client


def test_a_list_of_texts(embeddings: OpenAI) -> None:
    """The client asks for base64 unless told otherwise, and decodes it."""
    reply = embeddings.embeddings.create(model="embed", input=["the quick brown fox", "jumps over", "a"])
    assert [entry.index for entry in reply.data] == [0, 1, 2]
    assert all(np.linalg.norm(entry.embedding) == pytest.approx(1.0, abs=1e-4) for entry in reply.data)
    assert reply.model == "embed"
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 0


def test_tokens_dimensions_and_user(embeddings: OpenAI) -> None:
    reply = embeddings.embeddings.create(model="embed", input=[[5, 6], [7]], dimensions=8, user="somebody")
    assert [len(entry.embedding) for entry in reply.data] == [8, 8]
    assert reply.usage.prompt_tokens == 3
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        embeddings.embeddings.create(model="embed", input="x", dimensions=65)
