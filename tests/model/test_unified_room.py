"""Unified cells that idle caches fill, on models of every kind of memory: what comes back takes their room."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.model.native_fixtures import open_runner
from tests.model.test_prefix_reuse import Served
from tests.support.ggufs import MODELS, gguf_file
from tests.support.real_server import llamapool

N_CTX = 2048


@pytest.fixture(scope="module", params=["no-template", "hybrid"])
def served(request: pytest.FixtureRequest, gguf_folder: Path) -> Iterator[Served]:
    path = gguf_file(gguf_folder, MODELS[request.param])
    cache = ("-ctk", "f32", "-ctv", "f32")
    flags = ("-c", str(N_CTX), "-np", "4", "-t", "1", "-fa", "off", "-ub", "128", "--kv-unified", "--metrics", *cache)
    native = {"n_ctx": N_CTX, "n_parallel": 1, "cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
    with llamapool(path, *flags) as server, open_runner(path, **native) as runner:
        yield Served(request.param, server, runner)


def conversation(n: int, step: int) -> list[int]:
    return [270 + (i * step) % 113 for i in range(n)]


def test_a_conversation_comes_back_though_others_fill_the_cells(served: Served) -> None:
    first = conversation(480, 7)
    served.ask(first, max_tokens=2)
    for step in (11, 13, 17):
        served.ask(conversation(600, step), max_tokens=2)
    served.ask(conversation(20, 3), max_tokens=2)
    again = [*first, *range(310, 330)]
    reply = served.ask(again)
    assert reply["timings"]["cache_n"] >= 470
    assert reply["choices"][0]["text"] == served.alone(again)


def test_streams_that_outgrow_the_cells_are_preempted_and_resume(served: Served) -> None:
    prompts = [conversation(380, step) for step in (19, 23, 29, 31)]

    def ask(prompt: list[int]) -> str:
        text: str = served.ask(prompt, max_tokens=160, cache_prompt=False)["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(ask, prompts))
    assert together == [ask(prompt) for prompt in prompts]
    metrics = served.server.request("GET", "/metrics").body.decode()
    n_preempted = next(
        line.split()[-1] for line in metrics.splitlines() if line.startswith("llamapool_preempted_requests_total")
    )
    assert float(n_preempted) > 0
