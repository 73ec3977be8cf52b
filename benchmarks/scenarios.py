"""What is measured: each scenario makes a job for the client and reads figures from the client's records.

Prompts are made of two-syllable words, one token each in the vocabulary of `make_gguf`. Each is new: a server that
kept an earlier prompt in its cache finds nothing of use, except where a scenario is about a shared prefix.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.client import Job, Record, percentile
from benchmarks.make_gguf import SYLLABLES

Metrics = dict[str, float]
HIGHER_IS_BETTER = frozenset({"tok/s", "prompt tok/s", "requests/s"})


@dataclass(frozen=True, slots=True)
class Setting:
    """What a scenario may know. ``words_per_token`` corrects prompt lengths for a model of another vocabulary."""

    port: int
    slots: int
    seed: int
    words_per_token: float = 1.0
    scale: float = 1.0  # of output lengths and numbers of requests: below 1 for a quick look


@dataclass(frozen=True, slots=True)
class Scenario:
    """``bound`` says which bare speed of the library limits it: decoding ``n`` sequences, or the prompt."""

    name: str
    title: str
    job: Callable[[Setting], Job]
    metrics: Callable[[Sequence[Record]], Metrics]
    bound: str  # "decode-1", "decode-slots", "prompt"


def words(n_tokens: float, rng: random.Random) -> str:
    """So many random words, each with a space before it."""
    return "".join(f" {rng.choice(SYLLABLES)}{rng.choice(SYLLABLES)}" for _ in range(max(1, round(n_tokens))))


class Bodies:
    """Makes request bodies of one scenario; the same for both servers, another for each round."""

    def __init__(self, setting: Setting, name: str) -> None:
        self._rng = random.Random(f"{name} {setting.seed}")
        self._setting = setting

    def text(self, n_tokens: int) -> str:
        """A prompt of about `n_tokens`."""
        return words(n_tokens * self._setting.words_per_token, self._rng)

    def body(self, prompt: str, n_predict: int, stream: bool = True) -> dict[str, Any]:
        """Greedy, of a fixed length."""
        n_predict = max(1, round(n_predict * self._setting.scale))
        return {"prompt": prompt, "max_tokens": n_predict, "temperature": 0, "ignore_eos": True, "stream": stream}

    def cold(self, n: int, n_prompt: int, n_predict: int) -> list[dict[str, Any]]:
        """`n` bodies that share nothing."""
        return [self.body(self.text(n_prompt), n_predict) for _ in range(n)]


def _completions(setting: Setting, bodies: list[dict[str, Any]], **options: Any) -> Job:
    return Job(port=setting.port, path="/v1/completions", bodies=bodies, **options)


def _one_stream(setting: Setting) -> Job:
    return _completions(setting, Bodies(setting, "one").cold(1, 16, 128))


def _slots_streams(setting: Setting) -> Job:
    return _completions(setting, Bodies(setting, "eight").cold(setting.slots, 16, 64))


def _queue(setting: Setting) -> Job:
    return _completions(setting, Bodies(setting, "queue").cold(3 * setting.slots, 16, 24))


def _shared_prefix(setting: Setting) -> Job:
    bodies = Bodies(setting, "prefix")
    prefix = bodies.text(1500)
    return _completions(setting, [bodies.body(prefix + bodies.text(8), 16) for _ in range(setting.slots)])


def _long_prompt(setting: Setting) -> Job:
    bodies = Bodies(setting, "long")
    return _completions(setting, bodies.cold(3, 16, 400), newcomer=bodies.body(bodies.text(2100), 8))


def _requests(setting: Setting, n: int, n_parallel: int) -> Job:
    bodies = Bodies(setting, f"rate {n_parallel}")
    count = max(n_parallel, round(n * setting.scale))
    one_token = [bodies.body(bodies.text(4), 1, stream=False) for _ in range(count)]
    return _completions(setting, one_token, kind="requests", n_parallel=n_parallel)


def _gaps(record: Record) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(record.events)]


def _span_s(records: Sequence[Record]) -> float:
    return max(record.done for record in records) - min(record.sent for record in records)


def _stream_metrics(records: Sequence[Record]) -> Metrics:
    firsts = [record.events[0] - record.sent for record in records]
    gaps = [gap for record in records for gap in _gaps(record)]
    return {
        "tok/s": sum(record.n_predicted for record in records) / _span_s(records),
        "TTFT p50 ms": 1e3 * percentile(firsts, 0.5),
        "TTFT max ms": 1e3 * max(firsts),
        "ITL p50 ms": 1e3 * percentile(gaps, 0.5),
        "ITL p99 ms": 1e3 * percentile(gaps, 0.99),
    }


def _one_stream_metrics(records: Sequence[Record]) -> Metrics:
    """The rate between the first token and the last: the prompt is not part of it."""
    (record,) = records
    rate = (len(record.events) - 1) / (record.events[-1] - record.events[0])
    return {**_stream_metrics(records), "tok/s": rate}


def _prefix_metrics(records: Sequence[Record]) -> Metrics:
    total = sum(record.n_prompt + record.n_cached for record in records)
    return {
        "prompt tok/s": total / _span_s(records),
        "computed share": sum(record.n_prompt for record in records) / total,
        **{name: value for name, value in _stream_metrics(records).items() if name.startswith("TTFT")},
    }


def _newcomer_metrics(records: Sequence[Record]) -> Metrics:
    newcomer, *running = records
    first = newcomer.events[0]
    longest = 0.0
    for record in running:
        during = [time for time in record.events if newcomer.sent <= time <= first]
        longest = max(longest, *(b - a for a, b in itertools.pairwise([newcomer.sent, *during, first])))
    return {"longest gap ms": 1e3 * longest, "TTFT of the long prompt ms": 1e3 * (first - newcomer.sent)}


def _request_metrics(records: Sequence[Record]) -> Metrics:
    durations = [record.done - record.sent for record in records]
    return {
        "requests/s": len(records) / _span_s(records),
        "p50 ms": 1e3 * percentile(durations, 0.5),
        "p99 ms": 1e3 * percentile(durations, 0.99),
    }


SCENARIOS = (
    Scenario("one", "one stream", _one_stream, _one_stream_metrics, "decode-1"),
    Scenario("slots", "a stream in every slot", _slots_streams, _stream_metrics, "decode-slots"),
    Scenario("queue", "three requests for every slot", _queue, _stream_metrics, "decode-slots"),
    Scenario("prefix", "cold requests that share 1,500 tokens", _shared_prefix, _prefix_metrics, "prompt"),
    Scenario("long", "2,100 tokens arrive while 3 streams run", _long_prompt, _newcomer_metrics, "prompt"),
    Scenario("rate", "one token each, 16 connections", lambda s: _requests(s, 200, 16), _request_metrics, "prompt"),
    Scenario("serial", "one token each, one connection", lambda s: _requests(s, 40, 1), _request_metrics, "prompt"),
)
