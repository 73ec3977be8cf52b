"""`LlamaCppClient` with Llamapool in a real process: the contract, and what only Llamapool has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llamapool.client import AuthenticationFailed, LlamaCppClient, NotFound, ServerUnreachable
from tests.clients.conftest import API_KEY, QUIET
from tests.clients.llamacpp_contract import ALIAS, GENERATOR, HELLO, N_CTX, N_SLOTS, PROMPT, GeneratingContract
from tests.clients.llamacpp_contract import EmbeddingContract as TestEmbedding  # noqa: F401 (pytest collects it)
from tests.clients.llamacpp_contract import PerTokenContract as TestPerToken  # noqa: F401
from tests.clients.llamacpp_contract import RankingContract as TestRanking  # noqa: F401
from tests.support.ggufs import BERT_RERANKER, TinyModel, gguf_file, lora_file
from tests.support.real_server import RealServer, free_port, llamapool


@pytest.fixture(scope="class")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCppClient]:
    """Return a client of a Llamapool server with the class's ``MODEL``."""
    model: TinyModel = request.cls.MODEL
    folder = tmp_path_factory.mktemp("client")
    if model == GENERATOR:
        (folder / "slots").mkdir()
        flags = ["--lora", str(lora_file(folder)), "--slot-save-path", str(folder / "slots"), "--metrics", "--props"]
    else:
        flags = ["--reranking" if model == BERT_RERANKER else "--embedding"]
    sizes = ["-c", str(N_CTX if model == GENERATOR else 1024), "-np", str(N_SLOTS), "-t", "1", "-a", ALIAS]
    server = llamapool(gguf_file(folder, model), *sizes, *flags, environment=QUIET)
    with server, LlamaCppClient(server.base_url, timeout=120.0) as connected:
        yield connected


class TestGenerating(GeneratingContract):
    """The contract, and endpoints that llama-server does not have."""

    def test_a_text_is_scored_token_by_token(self, client: LlamaCppClient) -> None:
        scores = client.completions.score(PROMPT)
        assert len(scores) == len(client.tokenize(PROMPT, add_special=True).ids)
        assert scores[0].logprob is None
        for score in scores[1:]:
            assert score.logprob is not None
            assert score.best is not None
            assert score.logprob <= score.best <= 0.0
        assert PROMPT[scores[-1].offset :] == scores[-1].token

    def test_a_stored_response_can_be_retrieved_until_it_is_deleted(self, client: LlamaCppClient) -> None:
        response = client.responses.create("hello", max_output_tokens=2)
        assert client.responses.retrieve(response.id) == response
        assert client.responses.delete(response.id)
        with pytest.raises(NotFound):
            client.responses.retrieve(response.id)
        assert client.responses.input_tokens("hello") == response.input_tokens

    def test_a_model_and_its_tokenizer_are_described(self, client: LlamaCppClient) -> None:
        assert client.models.retrieve(ALIAS) == client.models.list()[0]
        assert client.tokenizer_info()["model_max_length"] == N_CTX // N_SLOTS
        with pytest.raises(NotFound):
            client.models.retrieve("another/model")

    def test_reasoning_of_an_unknown_chat_can_not_be_ended(self, client: LlamaCppClient) -> None:
        assert client.chat.end_reasoning("chatcmpl-unknown") is False

    def test_model_events_are_streamed(self, client: LlamaCppClient) -> None:
        with client.models.events() as events:
            assert client.models.unload(ALIAS)
            assert next(events)["model"] == ALIAS


def test_a_client_waits_for_a_starting_server_with_an_api_prefix(model: Path) -> None:
    server = llamapool(model, "-c", "512", "-t", "1", "--api-prefix", "/llm", environment=QUIET)
    try:
        with LlamaCppClient(f"{server.base_url}/llm", timeout=120.0) as client:
            assert client.wait_until_ready(timeout=120.0, poll_interval=0.05)
            assert client.detokenize(client.tokenize(PROMPT).ids) == PROMPT
            assert len(list(client.complete(PROMPT, n_predict=3, stream=True))) >= 1
        with LlamaCppClient(server.base_url) as without_prefix, pytest.raises(NotFound):
            without_prefix.props()
    finally:
        server.stop()


def test_a_missing_server_is_reported_as_unreachable() -> None:
    with LlamaCppClient(f"http://127.0.0.1:{free_port()}") as client:
        assert not client.is_ready()
        with pytest.raises(ServerUnreachable, match=r"http://127\.0\.0\.1:"):
            client.chat_completion(HELLO)


def test_requests_need_the_api_key(keyed_server: RealServer) -> None:
    with LlamaCppClient(keyed_server.base_url) as keyless, pytest.raises(AuthenticationFailed, match="Invalid API Key"):
        keyless.models.list()
    with LlamaCppClient(keyed_server.base_url, API_KEY) as client:
        assert {model.id for model in client.models.list()} == {"first", "second"}


def test_a_client_selects_one_of_several_models(keyed_server: RealServer) -> None:
    with LlamaCppClient(keyed_server.base_url, API_KEY, timeout=120.0) as client:
        with pytest.raises(NotFound, match="first"):
            client.chat_completion(HELLO)  # the default name is no model's
        first = client.for_model("first")
        assert first.chat_completion(HELLO, max_tokens=2).model == "first"
        assert first.complete(PROMPT, 2).model == "first"
        assert first.detokenize(first.tokenize(PROMPT).ids) == PROMPT
        assert len(first.slots.list()) == first.props()["total_slots"] == 1
        assert client.chat_completion(HELLO, model="gpt-4o-mini", max_tokens=2).choices[0].finish_reason == "length"


def test_models_can_be_loaded_and_unloaded(keyed_server: RealServer) -> None:
    with LlamaCppClient(keyed_server.base_url, API_KEY, timeout=120.0) as client:
        client.for_model("second").chat_completion(HELLO, max_tokens=1)  # loads it
        assert client.models.unload("second")
        assert client.models.load("second")
