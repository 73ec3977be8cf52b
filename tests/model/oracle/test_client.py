"""`LlamaCppClient` with the real llama-server: the same contract as with Llamapool."""

from collections.abc import Iterator

import pytest

from llamapool.client import LlamaCppClient
from tests.clients.llamacpp_contract import ALIAS, GENERATOR, N_CTX, N_SLOTS
from tests.clients.llamacpp_contract import EmbeddingContract as TestEmbedding  # noqa: F401 (pytest collects it)
from tests.clients.llamacpp_contract import GeneratingContract as TestGenerating  # noqa: F401
from tests.clients.llamacpp_contract import PerTokenContract as TestPerToken  # noqa: F401
from tests.clients.llamacpp_contract import RankingContract as TestRanking  # noqa: F401
from tests.model.oracle.conftest import PASSIVE_WAIT
from tests.support.ggufs import BERT_RERANKER, TinyModel, gguf_file, lora_file
from tests.support.oracle import Value, oracle


@pytest.fixture(scope="class")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCppClient]:
    """A client of llama-server, which serves the ``MODEL`` of the test class."""
    model: TinyModel = request.cls.MODEL
    folder = tmp_path_factory.mktemp("client")
    params: dict[str, Value] = {"embedding": True, **({"pooling_type": 4} if model == BERT_RERANKER else {})}
    if model == GENERATOR:
        (folder / "slots").mkdir()
        params = {"lora_adapters": [str(lora_file(folder))], "slot_save_path": f"{folder / 'slots'}/"}
        params |= {"endpoint_metrics": True, "endpoint_props": True}
    server = oracle(
        gguf_file(folder, model),
        n_ctx=N_CTX if model == GENERATOR else 1024,
        n_parallel=N_SLOTS,
        n_threads=1,
        alias=ALIAS,
        params=params,
        environment=PASSIVE_WAIT,
    )
    with server, LlamaCppClient(server.base_url, timeout=120.0) as opened:
        yield opened
