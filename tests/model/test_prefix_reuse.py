"""On models of every kind of memory, what was computed before for others never changes what a request gets.

The reference is a context of its own that reads each prompt from the beginning. Keys and values are F32, so that
batches of another shape differ by less than two tokens' logits do.
"""

from collections.abc import Iterator, Sequence
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

CUTTABLE = ("experts", "no-template", "sliding-window")
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
LONG = PREFIX * 8  # past what a sliding window's cache holds
NOT_ASCII = tuple((token, float("-inf")) for token in range(128, 256))  # as in tests/model/oracle/comparison.py
ONLY_ASCII = [[token, False] for token, _ in NOT_ASCII]


@dataclass(frozen=True, slots=True)
class Served:
    """A server, and a context of its own over the same file."""

    kind: str
    server: RealServer
    runner: LlamaRunner

    def ask(self, prompt: str | list[int], **fields: object) -> dict[str, Any]:
        """The reply to a greedy completion."""
        body = {"prompt": prompt, "max_tokens": N, "temperature": 0, "ignore_eos": True, "logit_bias": ONLY_ASCII}
        reply: dict[str, Any] = self.server.post("/v1/completions", body | fields)
        return reply

    def text(self, prompt: str, **fields: object) -> str:
        """Only its text."""
        text: str = self.ask(prompt, **fields)["choices"][0]["text"]
        return text

    def alone(self, prompt: str | list[int]) -> str:
        """What must come: the same from a context that has read nothing else."""
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
    with serving(gguf_folder, kind, 4 * N_CTX, layout, "-b", "512") as found:
        yield found


@pytest.fixture(scope="module", params=["no-template", "hybrid"])
def full(request: pytest.FixtureRequest, gguf_folder: Path) -> Iterator[Served]:
    """Unified cells for one slot's context, which four slots share."""
    with serving(gguf_folder, request.param, N_CTX, "--kv-unified", "--metrics") as found:
        yield found


def at_once(served: Served, prompts: Sequence[str]) -> list[str]:
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(served.text, prompts))


def test_requests_at_once_with_a_shared_prefix_get_their_own_text(served: Served) -> None:
    prompts = [PREFIX + "while " + ending for ending in ENDINGS] * 2
    assert at_once(served, prompts) == [served.alone(prompt) for prompt in prompts]


def test_a_prompt_that_ends_inside_a_cached_one_is_as_if_alone(served: Served) -> None:
    whole = LONG + "and then"
    assert served.text(whole) == served.alone(whole)
    for end in (len(whole) - 3, len(whole) // 2):
        assert served.text(whole[:end]) == served.alone(whole[:end])


def test_a_conversation_goes_on_where_it_was(served: Served) -> None:
    """In tokens, since the text that random weights write is not tokenized as it was written."""
    prompt = served.runner.vocab.tokenize("hello " + LONG, add_special=True, parse_special=True)
    for turn in range(2):
        reply = served.ask(prompt, logprobs=1)
        assert reply["choices"][0]["text"] == served.alone(prompt)
        if turn:
            assert reply["timings"]["cache_n"] == len(prompt) - 3
        prompt += [entry["id"] for entry in reply["choices"][0]["logprobs"]["content"]] + [300, 301]


def test_a_reply_that_is_asked_anew_starts_where_the_prompt_ended(served: Served) -> None:
    """A client that dropped the reply, or whose template renders it in another way than the model wrote it."""
    tokens = served.runner.vocab.tokenize("again " + LONG, add_special=True, parse_special=True)
    for n_turn in range(2):
        reply = served.ask(tokens)
        assert reply["choices"][0]["text"] == served.alone(tokens)
        if n_turn:
            assert reply["timings"]["cache_n"] >= len(tokens) - 45  # 40 new, and 4 before the last prompt's end
        tokens = [*tokens, *range(300, 340)]


def test_a_long_prefix_is_reused_by_the_third_who_has_it(served: Served) -> None:
    """Where the memory can't be cut the second leaves a checkpoint at the place where it parted from the first."""
    n_cached = []
    for ending in ENDINGS[:3]:
        prompt = f"third: {LONG}{ending} 0123456789 0123456789"
        reply = served.ask(prompt)
        n_cached.append(reply["timings"]["cache_n"])
        assert reply["choices"][0]["text"] == served.alone(prompt)
    n = len(served.runner.vocab.tokenize("third: " + LONG, add_special=True, parse_special=True))
    assert n_cached[2] >= n - 3
    assert served.kind == "sliding-window" or (n_cached[1] >= n - 3) == (served.kind in CUTTABLE)


def test_prompts_at_once_compute_a_long_prefix_once(served: Served) -> None:
    """In one request, so that none of them comes late: where the memory can't be cut, the prefix is past then."""
    prompts = ["at once " + LONG + ending for ending in ENDINGS]
    body = {"prompt": prompts, "n_predict": N, "temperature": 0, "ignore_eos": True, "logit_bias": ONLY_ASCII}
    replies = served.server.post("/completion", body)
    assert [r["content"] for r in replies] == [served.alone(prompt) for prompt in prompts]
    n = len(served.runner.vocab.tokenize(prompts[-1], add_special=True, parse_special=True))
    assert sorted(r["timings"]["cache_n"] >= n - 3 for r in replies) == [False, True, True, True]


def test_a_request_that_was_given_up_leaves_nothing_behind(served: Served) -> None:
    body = {"prompt": PREFIX + "given up", "max_tokens": 500, "temperature": 0, "ignore_eos": True}
    with served.server.open_stream("/v1/completions", body):
        pass
    assert served.text(PREFIX + "given up") == served.alone(PREFIX + "given up")


def conversation(n: int, step: int) -> list[int]:
    return [270 + (i * step) % 113 for i in range(n)]


def test_a_conversation_comes_back_though_others_fill_the_cells(full: Served) -> None:
    first = conversation(480, 7)
    full.ask(first, max_tokens=2)
    for step in (11, 13, 17):
        full.ask(conversation(600, step), max_tokens=2)
    full.ask(conversation(20, 3), max_tokens=2)
    again = [*first, *range(310, 330)]
    reply = full.ask(again)
    assert reply["timings"]["cache_n"] >= 470
    assert reply["choices"][0]["text"] == full.alone(again)


def test_streams_that_outgrow_the_cells_are_preempted_and_resume(full: Served) -> None:
    prompts = [conversation(380, step) for step in (19, 23, 29, 31)]

    def ask(prompt: list[int]) -> str:
        text: str = full.ask(prompt, max_tokens=400, cache_prompt=False)["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(ask, prompts))
    assert together == [ask(prompt) for prompt in prompts]
    metrics = full.server.request("GET", "/metrics").body.decode()
    n_preempted = next(
        line.split()[-1] for line in metrics.splitlines() if line.startswith("llamapool_preempted_requests_total")
    )
    assert float(n_preempted) > 0
