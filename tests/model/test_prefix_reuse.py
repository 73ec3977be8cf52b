"""Cached prefixes do not change replies, on models with every kind of memory.

The reference is a separate context that prefills each prompt completely. Keys and values are F32: the shape of a batch
then changes logits by less than the difference between two tokens.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from server.llama.context.runner import LlamaRunner
from tests.model.native_fixtures import F32, GREEDY, generate, open_runner
from tests.support.ggufs import MODELS, gguf_file
from tests.support.real_server import EXACT, RealServer, llamapool
from tests.support.sampling import sample

CAN_TRUNCATE = ("experts", "no-template", "sliding-window")
CASES = [
    ("experts", "--kv-unified"),
    ("no-template", "--no-kv-unified"),
    ("hybrid", "--kv-unified"),
    ("recurrent", "--no-kv-unified"),
    ("sliding-window", "--no-kv-unified"),
]
N = 16
N_CTX = 2048
PREFIX = "the quick brown fox jumps over the lazy dog and then the other animals of the forest come together "
ENDINGS = ("to see", "at the client", "0123456789", "")
LONG = PREFIX * 8  # longer than the cache of the sliding window
NOT_ASCII = tuple((token, float("-inf")) for token in range(128, 256))  # as in tests/model/oracle/comparison.py
ONLY_ASCII = [[token, False] for token, _ in NOT_ASCII]


@dataclass(frozen=True, slots=True)
class Served:
    """A server, and a reference runner with the same file."""

    kind: str
    server: RealServer
    runner: LlamaRunner

    def complete(self, prompt: str | list[int], **fields: object) -> dict[str, Any]:
        """Return the reply to a greedy completion."""
        body = {"prompt": prompt, "max_tokens": N, "temperature": 0, "ignore_eos": True, "logit_bias": ONLY_ASCII}
        reply: dict[str, Any] = self.server.post("/v1/completions", body | fields)
        return reply

    def text(self, prompt: str | list[int], **fields: object) -> str:
        text: str = self.complete(prompt, **fields)["choices"][0]["text"]
        return text

    def expected(self, prompt: str | list[int]) -> str:
        """Return the text that the reference generates."""
        vocab = self.runner.vocab
        tokens = prompt if isinstance(prompt, list) else vocab.tokenize(prompt, add_special=True, parse_special=True)
        params = replace(GREEDY, ignore_eos=True, logit_bias=NOT_ASCII)
        return vocab.detokenize(generate(self.runner, tokens, N, params), special=False).decode()


@contextmanager
def serving(folder: Path, kind: str, n_ctx: int, *flags: str) -> Iterator[Served]:
    path, fixed = gguf_file(folder, MODELS[kind]), ("-np", "4", "-t", "1", "-ub", "128", *EXACT)
    with (
        llamapool(path, "-c", str(n_ctx), *fixed, *flags) as server,
        open_runner(path, n_ctx=N_CTX, n_parallel=1, **F32) as runner,
    ):
        yield Served(kind, server, runner)


@pytest.fixture(scope="module", params=sample(CASES, 3), ids=" ".join)
def served(request: pytest.FixtureRequest, gguf_folder: Path) -> Iterator[Served]:
    kind, layout = request.param
    with serving(gguf_folder, kind, 4 * N_CTX, layout, "-b", "512") as opened:
        yield opened


@pytest.fixture(scope="module", params=["no-template", "hybrid"])
def few_cells(request: pytest.FixtureRequest, gguf_folder: Path) -> Iterator[Served]:
    """Four slots that share cells for one full context."""
    with serving(gguf_folder, request.param, N_CTX, "--kv-unified", "--metrics") as opened:
        yield opened


def test_concurrent_requests_with_a_shared_prefix_get_their_own_text(served: Served) -> None:
    prompts = [PREFIX + "while " + ending for ending in ENDINGS] * 2
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(served.text, prompts)) == [served.expected(prompt) for prompt in prompts]


def test_a_prompt_that_is_a_prefix_of_a_cached_one_gets_its_own_text(served: Served) -> None:
    whole = LONG + "and then"
    assert served.text(whole) == served.expected(whole)
    for end in (len(whole) - 3, len(whole) // 2):
        assert served.text(whole[:end]) == served.expected(whole[:end])


def test_a_next_turn_reuses_the_prompt_and_the_reply(served: Served) -> None:
    """Prompts are tokens: the text that random weights generate is tokenized to other tokens."""
    prompt = served.runner.vocab.tokenize("hello " + LONG, add_special=True, parse_special=True)
    for turn in range(2):
        reply = served.complete(prompt, logprobs=1)
        assert reply["choices"][0]["text"] == served.expected(prompt)
        if turn:
            assert reply["timings"]["cache_n"] == len(prompt) - 3
        prompt += [entry["id"] for entry in reply["choices"][0]["logprobs"]["content"]] + [300, 301]


def test_a_next_turn_without_the_generated_reply_reuses_the_prompt(served: Served) -> None:
    """The client dropped the reply, or the template renders it differently from what the model generated."""
    tokens = served.runner.vocab.tokenize("again " + LONG, add_special=True, parse_special=True)
    for n_turn in range(2):
        reply = served.complete(tokens)
        assert reply["choices"][0]["text"] == served.expected(tokens)
        if n_turn:
            assert reply["timings"]["cache_n"] >= len(tokens) - 45  # 40 new ones, and at most 5 of the last prompt
        tokens = [*tokens, *range(300, 340)]


def test_the_third_prompt_with_a_long_prefix_reuses_it(served: Served) -> None:
    """If the memory cannot be truncated, the second prompt leaves a checkpoint where it diverges from the first."""
    n_cached = []
    for ending in ENDINGS[:3]:
        prompt = f"third: {LONG}{ending} 0123456789 0123456789"
        reply = served.complete(prompt)
        n_cached.append(reply["timings"]["cache_n"])
        assert reply["choices"][0]["text"] == served.expected(prompt)
    n = len(served.runner.vocab.tokenize("third: " + LONG, add_special=True, parse_special=True))
    assert n_cached[2] >= n - 3
    assert served.kind == "sliding-window" or (n_cached[1] >= n - 3) == (served.kind in CAN_TRUNCATE)


def test_prompts_of_one_request_prefill_their_long_prefix_once(served: Served) -> None:
    """Separate requests could arrive after the prefix, to which some memories cannot be rolled back."""
    prompts = ["at once " + LONG + ending for ending in ENDINGS]
    body = {"prompt": prompts, "n_predict": N, "temperature": 0, "ignore_eos": True, "logit_bias": ONLY_ASCII}
    replies = served.server.post("/completion", body)
    assert [r["content"] for r in replies] == [served.expected(prompt) for prompt in prompts]
    n = len(served.runner.vocab.tokenize(prompts[-1], add_special=True, parse_special=True))
    assert sorted(r["timings"]["cache_n"] >= n - 3 for r in replies) == [False, True, True, True]


def test_a_cancelled_request_does_not_change_later_replies(served: Served) -> None:
    body = {"prompt": PREFIX + "given up", "max_tokens": 500, "temperature": 0, "ignore_eos": True}
    with served.server.open_stream("/v1/completions", body):
        pass
    assert served.text(PREFIX + "given up") == served.expected(PREFIX + "given up")


def conversation(n: int, step: int) -> list[int]:
    return [270 + (i * step) % 113 for i in range(n)]


def test_an_evicted_conversation_is_loaded_from_ram(few_cells: Served) -> None:
    first = conversation(480, 7)
    few_cells.complete(first, max_tokens=2)
    for step in (11, 13, 17):
        few_cells.complete(conversation(600, step), max_tokens=2)
    few_cells.complete(conversation(20, 3), max_tokens=2)
    again = [*first, *range(310, 330)]
    reply = few_cells.complete(again)
    assert reply["timings"]["cache_n"] >= 470
    assert reply["choices"][0]["text"] == few_cells.expected(again)


def test_sequences_that_exceed_the_cells_are_preempted_and_resumed(few_cells: Served) -> None:
    prompts = [conversation(380, step) for step in (19, 23, 29, 31)]

    def text(prompt: list[int]) -> str:
        return few_cells.text(prompt, max_tokens=400, cache_prompt=False)

    with ThreadPoolExecutor(4) as pool:
        concurrent = list(pool.map(text, prompts))
    assert concurrent == [text(prompt) for prompt in prompts]
    metrics = few_cells.server.request("GET", "/metrics").body.decode()
    n_preempted = next(
        line.split()[-1] for line in metrics.splitlines() if line.startswith("llamapool_preempted_requests_total")
    )
    assert float(n_preempted) > 0
