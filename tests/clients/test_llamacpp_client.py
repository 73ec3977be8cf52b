"""`LlamaCppClient` with Llamapool in a real process."""

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
    """A client of Llamapool on the class's ``MODEL``."""
    model: TinyModel = request.cls.MODEL
    folder = tmp_path_factory.mktemp("client")
    if model == GENERATOR:
        (folder / "slots").mkdir()
        flags = ["--lora", str(lora_file(folder)), "--slot-save-path", str(folder / "slots"), "--metrics", "--props"]
    else:
        flags = ["--reranking" if model == BERT_RERANKER else "--embedding"]
    sizes = ["-c", str(N_CTX if model == GENERATOR else 1024), "-np", str(N_SLOTS), "-t", "1", "-a", ALIAS]
    server = llamapool(gguf_file(folder, model), *sizes, *flags, environment=QUIET)
    with server, LlamaCppClient(server.base_url, timeout=120.0) as found:
        yield found


class TestGenerating(GeneratingContract):
    """And what llama-server does not have."""

    def test_a_text_is_scored(self, client: LlamaCppClient) -> None:
        scores = client.completions.score(PROMPT)
        assert len(scores) == len(client.tokenize(PROMPT, add_special=True).ids)
        assert scores[0].logprob is None
        for score in scores[1:]:
            assert score.logprob is not None
            assert score.best is not None
            assert score.logprob <= score.best <= 0.0
        assert PROMPT[scores[-1].offset :] == scores[-1].token

    def test_a_stored_response_is_found_until_it_is_deleted(self, client: LlamaCppClient) -> None:
        made = client.responses.create("hello", max_output_tokens=2)
        assert client.responses.retrieve(made.id) == made
        assert client.responses.delete(made.id)
        with pytest.raises(NotFound):
            client.responses.retrieve(made.id)
        assert client.responses.input_tokens("hello") == made.input_tokens

    def test_a_model_and_its_tokenizer(self, client: LlamaCppClient) -> None:
        assert client.models.retrieve(ALIAS) == client.models.list()[0]
        assert client.tokenizer_info()["model_max_length"] == N_CTX // N_SLOTS
        with pytest.raises(NotFound):
            client.models.retrieve("another/model")

    def test_thoughts_of_a_chat_that_does_not_run_can_not_be_ended(self, client: LlamaCppClient) -> None:
        assert client.chat.end_reasoning("chatcmpl-of-nobody") is False

    def test_events_of_models_come_as_a_stream(self, client: LlamaCppClient) -> None:
        with client.models.events() as events:
            assert client.models.unload(ALIAS)
            assert next(events)["model"] == ALIAS


def test_a_client_waits_for_a_server_that_starts_behind_a_prefix(model: Path) -> None:
    server = llamapool(model, "-c", "512", "-t", "1", "--api-prefix", "/llm", environment=QUIET)
    try:
        with LlamaCppClient(f"{server.base_url}/llm", timeout=120.0) as client:
            assert client.wait_until_ready(timeout=120.0, poll_interval=0.05)
            assert client.detokenize(client.tokenize(PROMPT).ids) == PROMPT
            assert len(list(client.complete(PROMPT, n_predict=3, stream=True))) >= 1
        with LlamaCppClient(server.base_url) as elsewhere, pytest.raises(NotFound):
            elsewhere.props()
    finally:
        server.stop()


def test_no_server_is_unreachable() -> None:
    with LlamaCppClient(f"http://127.0.0.1:{free_port()}") as client:
        assert not client.is_ready()
        with pytest.raises(ServerUnreachable, match=r"http://127\.0\.0\.1:"):
            client.chat_completion(HELLO)


def test_a_key_opens_the_server(guarded: RealServer) -> None:
    with LlamaCppClient(guarded.base_url) as stranger, pytest.raises(AuthenticationFailed, match="Invalid API Key"):
        stranger.models.list()
    with LlamaCppClient(guarded.base_url, API_KEY) as client:
        assert {model.id for model in client.models.list()} == {"first", "second"}


def test_with_several_models_each_call_asks_for_one(guarded: RealServer) -> None:
    with LlamaCppClient(guarded.base_url, API_KEY, timeout=120.0) as client:
        with pytest.raises(NotFound, match="first"):
            client.chat_completion(HELLO)  # the default is no model's name
        first = client.for_model("first")
        assert first.chat_completion(HELLO, max_tokens=2).model == "first"
        assert first.complete(PROMPT, 2).model == "first"
        assert first.detokenize(first.tokenize(PROMPT).ids) == PROMPT
        assert len(first.slots.list()) == first.props()["total_slots"] == 1
        assert client.chat_completion(HELLO, model="gpt-4o-mini", max_tokens=2).choices[0].finish_reason == "length"


def test_a_model_is_loaded_and_unloaded(guarded: RealServer) -> None:
    with LlamaCppClient(guarded.base_url, API_KEY, timeout=120.0) as client:
        client.for_model("second").chat_completion(HELLO, max_tokens=1)  # loads it
        assert client.models.unload("second")
        assert client.models.load("second")
