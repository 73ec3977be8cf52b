"""`LlamaCppClient` with the real llama-server: what it does with Llamapool it does there too."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llamapool.client import LlamaCppClient
from tests.clients.llamacpp_contract import (
    ALIAS,
    GENERATOR,
    N_CTX,
    N_SLOTS,
    EmbeddingContract,
    GeneratingContract,
    PerTokenContract,
    RankingContract,
)
from tests.support.ggufs import BERT, BERT_RERANKER, EMBED_NONE, TinyModel, gguf_file, lora_file
from tests.support.oracle import Value, oracle

WAIT_QUIETLY = {"OMP_WAIT_POLICY": "passive"}
EMBEDS: dict[str, Value] = {"embedding": True}
RANKS: dict[str, Value] = {"embedding": True, "pooling_type": 4}


@pytest.fixture(scope="class")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCppClient]:
    """A client of llama-server on the class's ``MODEL``."""
    model: TinyModel = request.cls.MODEL
    folder = tmp_path_factory.mktemp("client")
    server = oracle(
        gguf_file(folder, model),
        n_ctx=N_CTX if model == GENERATOR else 1024,
        n_parallel=N_SLOTS,
        n_threads=1,
        alias=ALIAS,
        params=generating(folder) if model == GENERATOR else request.cls.PARAMS,
        environment=WAIT_QUIETLY,
    )
    with server, LlamaCppClient(server.base_url, timeout=120.0) as found:
        yield found


def generating(folder: Path) -> dict[str, Value]:
    """What `GeneratingContract` wants."""
    (folder / "slots").mkdir()
    return {
        "lora_adapters": [str(lora_file(folder))],
        "slot_save_path": f"{folder / 'slots'}/",
        "endpoint_metrics": True,
        "endpoint_props": True,
    }


class TestGenerating(GeneratingContract):
    MODEL = GENERATOR


class TestEmbedding(EmbeddingContract):
    MODEL = BERT
    PARAMS = EMBEDS


class TestPerToken(PerTokenContract):
    MODEL = EMBED_NONE
    PARAMS = EMBEDS


class TestRanking(RankingContract):
    MODEL = BERT_RERANKER
    PARAMS = RANKS
