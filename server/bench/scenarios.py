"""The scenarios: their requests and figures.

Each round has new prompts, so no useful prefix is cached unless a scenario measures caching. With the same seed, two
servers get the same prompts. Times are in milliseconds, rates per second.
"""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from server.bench.client import BenchError, ClientRecord, ModelClient

Figures = dict[str, float]
SYLLABLES = tuple(a + b for a, b in product("bcdfghjklmnprstvz", "aeiou"))
TOKENS_PER_WORD = 1.3
_LONG_WORDS = 0.3  # share of words of three syllables; the others have two
_MAX_DIFFERENCE = 0.15  # of a tokenizer's ratio that does not change the number of words
_N_FIT_WORDS = 64
CONVERSATIONS, TURNS = 32, 6
_LOOP = """
import os, sys
if core := sys.argv[1]:
    os.sched_setaffinity(0, {int(core)})
print("busy", flush=True)
while True:
    pass
"""


class RandomText:
    """Random words from a seed.

    In the vocabularies of `benchmarks.make_gguf`, a word has `TOKENS_PER_WORD` tokens, about as in English. For another
    tokenizer, `words_per_word` is the number of words that replace one.
    """

    def __init__(self, seed: object, words_per_word: float = 1.0) -> None:
        self._random = random.Random(str(seed))  # noqa: S311
        self._words_per_word = words_per_word

    def text(self, n_words: float) -> str:
        """Return `n_words` words, each after a space."""
        return "".join(f" {self._word()}" for _ in range(max(1, round(n_words * self._words_per_word))))

    def _word(self) -> str:
        return "".join(self._random.choices(SYLLABLES, k=3 if self._random.random() < _LONG_WORDS else 2))


@dataclass(frozen=True, slots=True)
class Setting:
    """The size of a run. ``scale`` shortens outputs and counts; ``fit`` is the result of `words_per_word`."""

    seed: int = 1
    n_parallel: int = 8
    scale: float = 1.0
    fit: float = 1.0

    def words(self, name: str) -> RandomText:
        """Return the text generator of a scenario in a round."""
        return RandomText(f"{name} {self.seed}", self.fit)

    def count(self, n: int, minimum: int = 1) -> int:
        """Return `n` scaled, at least `minimum`."""
        return max(minimum, round(n * self.scale))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario. ``local``: it loads the server's CPU, so the server must be on this machine."""

    name: str
    title: str
    run: Callable[[ModelClient, Setting], Coroutine[Any, Any, Figures]]
    local: bool = False


async def words_per_word(client: ModelClient) -> float:
    """Measure how many words have the usual tokens of one word. Raises `BenchError`.

    It is also the first request, which may load the model.
    """
    body = client.body([RandomText("fit").text(_N_FIT_WORDS)], 1, stream=False)
    try:
        _, record = await client.exchange("POST", client.path, body)
    except BenchError as error:
        hint = "" if client.chat else "; --chat uses /v1/chat/completions"
        raise BenchError(
            f"{error} (model '{client.model}', {client.path}, fields {sorted(body)}; --body changes fields{hint})",
            error.status,
        ) from error
    ratio = TOKENS_PER_WORD * _N_FIT_WORDS / (record.n_prompt or TOKENS_PER_WORD * _N_FIT_WORDS)
    return 1.0 if abs(ratio - 1.0) < _MAX_DIFFERENCE else ratio


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile `share` by the nearest-rank method; 0 without values."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))] if ordered else 0.0


def first_s(record: ClientRecord) -> float:
    """Return the seconds from sending to the first token, or to the end of a reply without text."""
    return (record.events[0] if record.events else record.done) - record.sent


def between_s(record: ClientRecord) -> float:
    """Return the seconds from the first to the last token; 0 without text."""
    return record.events[-1] - record.events[0] if record.events else 0.0


def span_s(records: Sequence[ClientRecord]) -> float:
    """Return the seconds from the first request to the end of the last reply."""
    return max(record.done for record in records) - min(record.sent for record in records)


def of_streams(records: Sequence[ClientRecord]) -> Figures:
    """Return the figures of parallel streams. The rate includes the time of the prompts."""
    gaps = [later - earlier for record in records for earlier, later in pairwise(record.events)]
    token_s = [between_s(record) / max(len(record.events) - 1, 1) for record in records]
    return {
        "tok/s": sum(record.n_predicted for record in records) / span_s(records),
        **of_first_tokens(records),
        "TPOT p50 ms": 1e3 * percentile(token_s, 0.5),
        "ITL p50 ms": 1e3 * percentile(gaps, 0.5),
        "ITL p99 ms": 1e3 * percentile(gaps, 0.99),
    }


def of_first_tokens(records: Sequence[ClientRecord]) -> Figures:
    firsts = [first_s(record) for record in records]
    return {"TTFT p50 ms": 1e3 * percentile(firsts, 0.5), "TTFT max ms": 1e3 * max(firsts)}


def of_prompts(records: Sequence[ClientRecord]) -> Figures:
    """Return the prompt tokens and the computed ones, if the server reports them for each request."""
    totals = [record.n_prompt for record in records if record.n_prompt is not None]
    computed = [record.n_computed for record in records if record.n_computed is not None]
    figures: Figures = {"prompt tokens": sum(totals)} if len(totals) == len(records) else {}
    return figures | ({"prompt tokens computed": sum(computed)} if len(computed) == len(records) else {})


def n_new(turns: Sequence[ClientRecord]) -> int:
    """Return the prompt tokens that no earlier turn of a conversation contained, which even a perfect cache computes.

    No cache contains the last token of a turn, because it was not decoded.
    """
    known, total = 0, 0
    for record in turns:
        total += max(1, (record.n_prompt or 0) - known)
        known = (record.n_prompt or 0) + record.n_predicted - 1
    return total


def longest_gap_s(running: Sequence[ClientRecord], start: float, end: float) -> float:
    """Return the longest time without a token in any of the streams, between `start` and `end`."""
    longest = 0.0
    for record in running:
        during = [time for time in record.events if start <= time <= end]
        longest = max(longest, *(later - earlier for earlier, later in pairwise([start, *during, end])))
    return longest


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy with another process, which is pinned to the last usable core if possible."""
    core = str(max(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ""
    process = subprocess.Popen([sys.executable, "-S", "-c", _LOOP, core], stdout=subprocess.PIPE)  # noqa: S603
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


async def _contended(client: ModelClient, setting: Setting) -> Figures:
    if not client.target.local:
        raise BenchError("the scenario 'contended' needs the server on this machine")
    words = setting.words("contended")
    bodies = [client.body([words.text(12)], setting.count(32, 2)) for _ in range(setting.n_parallel)]
    with busy_core():
        return of_streams(await client.streams(bodies))


async def _prefix(client: ModelClient, setting: Setting) -> Figures:
    words = setting.words("prefix")
    prefix = words.text(700 * min(1.0, setting.scale))
    bodies = [client.body([prefix + words.text(6)], 8) for _ in range(setting.n_parallel)]
    records = await client.streams(bodies)
    return of_first_tokens(records) | of_prompts(records)


async def _long(client: ModelClient, setting: Setting) -> Figures:
    words = setting.words("long")
    running = [client.start(client.body([words.text(12)], 400)) for _ in range(3)]
    try:
        for stream in running:
            await stream.running.wait()
        record = await client.stream(client.body([words.text(1500 * min(1.0, setting.scale))], 8))
    finally:
        for stream in running:
            stream.close()
    finished = [await stream.finished() for stream in running]
    first_token = record.sent + first_s(record)
    gap = longest_gap_s(finished, record.sent, first_token)
    return {"longest gap ms": 1e3 * gap, "TTFT of the long prompt ms": 1e3 * (first_token - record.sent)}


async def _conversations(client: ModelClient, setting: Setting) -> Figures:
    """Interleave conversations: before one continues, each slot has had others."""
    words = setting.words("conversations")
    conversations: list[list[str]] = [[] for _ in range(setting.count(CONVERSATIONS, setting.n_parallel))]
    turns: list[list[ClientRecord]] = []
    for _ in range(TURNS):
        for texts in conversations:
            texts.append(words.text(20))
        turns.append(await client.streams([client.body(texts, 8) for texts in conversations], setting.n_parallel))
        for texts, reply in zip(conversations, turns[-1], strict=True):
            texts.append(reply.text)
    records = [record for turn in turns for record in turn]
    result = of_prompts(records)
    if "prompt tokens" in result:
        result["prompt tokens new"] = sum(n_new(each) for each in zip(*turns, strict=True))
    return result | of_first_tokens(records)


SCENARIOS = (
    Scenario("prefix", "cold requests in every slot that share 700 words", _prefix),
    Scenario("long", "a prompt of 1,500 words while 3 streams run", _long),
    Scenario("conversations", "32 conversations of 6 turns, interleaved", _conversations),
    Scenario("contended", "a stream in every slot next to a process that keeps one core busy", _contended, local=True),
)


def run(scenario: Scenario, client: ModelClient, setting: Setting) -> Figures:
    """Run a scenario on a new event loop. Raises `BenchError`."""
    return asyncio.run(scenario.run(client, setting))
