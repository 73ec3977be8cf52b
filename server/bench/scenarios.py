"""What is measured.

Every prompt is new in every round, so that nothing useful is in a cache, except where a scenario is about that; with
the same seed two servers get the same prompts.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from server.bench import figures
from server.bench.errors import BenchError
from server.bench.figures import Figures
from server.bench.prompts import RandomText
from server.bench.reply import ClientRecord
from server.bench.session import ModelClient

_LOOP = """
import os, sys
if core := sys.argv[1]:
    os.sched_setaffinity(0, {int(core)})
print("busy", flush=True)
while True:
    pass
"""


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy in another process, pinned to the last core that this process may use, if possible."""
    core = str(max(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ""
    process = subprocess.Popen([sys.executable, "-S", "-c", _LOOP, core], stdout=subprocess.PIPE)  # noqa: S603 - our own
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


CONVERSATIONS, TURNS = 32, 6
TEXTS = 256
WAVES = 3  # of streams that fill half of the slots
SHORT, LONG = 24, 120  # tokens of streams that end early, and of those left over
FILE = """[server]
host = "0.0.0.0"
port = 8080
workers = 4
timeout_s = 30
log_level = "info"

[database]
host = "db.internal"
port = 5432
name = "orders"
user = "orders_app"
pool_size = 10
timeout_s = 5

[cache]
host = "cache.internal"
port = 6379
prefix = "orders:"
ttl_s = 600

[mail]
host = "mail.internal"
port = 587
sender = "shop@example.com"
retries = 3
timeout_s = 20
"""
PROSE = (
    "The harbour was quiet that morning. Two boats had come in during the night, and their crews were asleep on deck, "
    "wrapped in blankets against the wind. An old man walked along the pier with a lantern in his hand, though the sun "
    "had been up for an hour. He stopped at every post, looked at the ropes, and wrote a number in a small green book. "
    "Nobody knew what the numbers were for. Some said that he counted the days until his son came home; others said "
    "that he had forgotten the war was over. When he reached the end of the pier he closed the book, put out the "
    "lantern and sat down on a barrel. Then he took a piece of bread from his pocket and broke it in two. One half "
    "he ate, and the other he gave to the gulls, as he had done every morning for eleven years."
)
ASKED = ("an old clockmaker", "a lost letter", "a village without rain", "the last train", "a very small dragon")
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 24},
        "kind": {"enum": ["report", "invoice", "letter"]},
        "lines": {
            "type": "array",
            "minItems": 40,
            "maxItems": 40,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 12},
                    "amount": {"type": "integer"},
                    "paid": {"type": "boolean"},
                },
                "required": ["name", "amount", "paid"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["title", "kind", "lines"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """How much of it: ``scale`` shortens outputs and counts for a quick look, ``fit`` is `prompts.fit`."""

    seed: int = 1
    n_parallel: int = 8
    scale: float = 1.0
    fit: float = 1.0

    def words(self, name: str) -> RandomText:
        """The texts of one scenario in one round."""
        return RandomText(f"{name} {self.seed}", self.fit)

    def count(self, n: int, least: int = 1) -> int:
        """`n`, scaled."""
        return max(least, round(n * self.scale))


@dataclass(frozen=True, slots=True)
class Scenario:
    """``extra``: not run unless it is named, because not every server can."""

    name: str
    title: str
    run: Callable[[ModelClient, Setting], Coroutine[Any, Any, Figures]]
    extra: bool = False
    local: bool = False  # disturbs the machine that the server runs on


async def _one(session: ModelClient, setting: Setting) -> Figures:
    body = session.body([setting.words("one").text(12)], setting.count(128, 2))
    record = await session.stream(body)
    return {**figures.of_streams([record]), "tok/s": figures.decode_rate(record)}


async def _side_by_side(session: ModelClient, setting: Setting, name: str, n_predict: int) -> Figures:
    words = setting.words(name)
    bodies = [session.body([words.text(12)], setting.count(n_predict, 2)) for _ in range(setting.n_parallel)]
    return figures.of_streams(await session.streams(bodies))


async def _slots(session: ModelClient, setting: Setting) -> Figures:
    return await _side_by_side(session, setting, "slots", 64)


async def _contended(session: ModelClient, setting: Setting) -> Figures:
    if not session.target.local:
        raise BenchError("the neighbour of the scenario 'contended' needs the server on this machine")
    with busy_core():
        return await _side_by_side(session, setting, "contended", 32)


async def _prefix(session: ModelClient, setting: Setting) -> Figures:
    words = setting.words("prefix")
    prefix = words.text(700 * min(1.0, setting.scale))
    bodies = [session.body([prefix + words.text(6)], 8) for _ in range(setting.n_parallel)]
    records = await session.streams(bodies)
    return figures.of_first_tokens(records) | figures.of_prompts(records)


async def _long(session: ModelClient, setting: Setting) -> Figures:
    words = setting.words("long")
    running = [session.start(session.body([words.text(12)], 400)) for _ in range(3)]
    try:
        for stream in running:
            await stream.running.wait()
        newcomer = await session.stream(session.body([words.text(1500 * min(1.0, setting.scale))], 8))
    finally:
        for stream in running:
            stream.close()
    seen = [await stream.finished() for stream in running]
    first = newcomer.sent + figures.first_s(newcomer)
    gap = figures.longest_gap_s(seen, newcomer.sent, first)
    return {"longest gap ms": 1e3 * gap, "TTFT of the long prompt ms": 1e3 * (first - newcomer.sent)}


async def _conversations(session: ModelClient, setting: Setting) -> Figures:
    """Turn by turn through all conversations: before one comes back, every slot has held others."""
    words = setting.words("conversations")
    talks: list[list[str]] = [[] for _ in range(setting.count(CONVERSATIONS, setting.n_parallel))]
    turns: list[list[ClientRecord]] = []
    for _ in range(TURNS):
        for talk in talks:
            talk.append(words.text(20))
        turns.append(await session.streams([session.body(talk, 8) for talk in talks], setting.n_parallel))
        for talk, reply in zip(talks, turns[-1], strict=True):
            talk.append(reply.text)
    records = [record for turn in turns for record in turn]
    result = figures.of_prompts(records)
    if "prompt tokens" in result:
        result["prompt tokens new"] = sum(figures.n_new(talk) for talk in zip(*turns, strict=True))
    return result | figures.of_first_tokens(records)


async def _rate(session: ModelClient, setting: Setting) -> Figures:
    words = setting.words("rate")
    n = setting.count(240, setting.n_parallel)
    bodies = [session.body([words.text(4)], 1, stream=False) for _ in range(n)]
    return figures.of_requests(await session.requests(bodies, setting.n_parallel))


async def _constrained(session: ModelClient, setting: Setting) -> Figures:
    prompt = f"Write an invoice as JSON.{setting.words('constrained').text(12)}"
    schema = {"type": "json_schema", "json_schema": {"name": "invoice", "strict": True, "schema": SCHEMA}}
    chat = session.as_chat()
    record = await chat.stream(chat.body([prompt], setting.count(96, 2), response_format=schema))
    if not record.text.lstrip().startswith("{"):
        raise BenchError(f"the server did not hold its output to the schema: {json.dumps(record.text[:100])}")
    return {"tok/s": figures.decode_rate(record), **figures.of_first_tokens([record])}


async def _loaded(session: ModelClient, words: RandomText, n_streams: int, n_predict: int) -> list[ClientRecord]:
    return await session.streams([session.body([words.text(12)], n_predict) for _ in range(n_streams)])


def _together(records: Sequence[ClientRecord]) -> float:
    """Tokens per second of streams that run side by side, from first tokens to last ones."""
    return sum(figures.decode_rate(record) for record in records)


async def _partial(session: ModelClient, setting: Setting) -> Figures:
    words, n, n_predict = setting.words("partial"), setting.n_parallel, setting.count(48, 2)
    rates = {k: _together(await _loaded(session, words, k, n_predict)) for k in range(1, n)}
    return {f"{k} of {n}: tok/s": rate for k, rate in rates.items()}


async def _every_other(
    session: ModelClient, setting: Setting, words: RandomText
) -> tuple[list[ClientRecord], list[ClientRecord]]:
    """A stream in every slot, of which every other is short: those that end early, and those that are left over."""
    lengths = [setting.count((LONG, SHORT)[i % 2], 2) for i in range(setting.n_parallel)]
    records = await session.streams([session.body([words.text(12)], length) for length in lengths])
    return records[1::2], records[::2]


async def _half(session: ModelClient, setting: Setting) -> Figures:
    words = setting.words("half")
    await _every_other(session, setting, words)
    n_predict = setting.count(48, 2)
    waves = [await _loaded(session, words, setting.n_parallel // 2, n_predict) for _ in range(WAVES)]
    return {"tok/s": median(_together(wave) for wave in waves)}


async def _left(session: ModelClient, setting: Setting) -> Figures:
    words = setting.words("left")
    alone = _together(await _loaded(session, words, setting.n_parallel // 2, setting.count(64, 2)))
    ended, left = await _every_other(session, setting, words)
    since = max(record.done for record in ended)
    later = [figures.after(record, since) for record in left]
    rate = sum(figures.decode_rate(record) for record in later)
    return {"tok/s": rate, f"of {setting.n_parallel // 2} alone": rate / alone}


async def _answer(session: ModelClient, prompt: str, n_predict: int) -> Figures:
    chat = session.as_chat()
    record = await chat.stream(chat.body([prompt], n_predict))
    return {"tok/s": figures.decode_rate(record), **figures.of_first_tokens([record])}


async def _edit(session: ModelClient, setting: Setting) -> Figures:
    source = f"#{setting.words('edit').text(4)}\n{FILE}"
    asked = "Change the port of the server to 9090 and write the whole file again."
    return await _answer(session, f"```toml\n{source}```\n\n{asked}", setting.count(192, 2))


async def _quote(session: ModelClient, setting: Setting) -> Figures:
    asked = "Repeat the following text word for word."
    return await _answer(session, f"{asked}\n\n{setting.words('quote').text(4)[1:]}. {PROSE}", setting.count(192, 2))


async def _other(session: ModelClient, setting: Setting) -> Figures:
    chat = session.as_chat()
    prompts = [f"Write a short story about {hero}.{setting.words('other').text(4)}" for hero in ASKED]
    records = [await chat.stream(chat.body([prompt], setting.count(96, 2))) for prompt in prompts]
    n_tokens, took_s = sum(r.n_predicted - 1 for r in records), sum(r.events[-1] - r.events[0] for r in records)
    if took_s <= 0:  # all of each came in one piece
        n_tokens, took_s = sum(r.n_predicted for r in records), sum(r.done - r.sent for r in records)
    return {"tok/s": n_tokens / took_s}


async def _embeddings(session: ModelClient, setting: Setting) -> Figures:
    words = setting.words("embeddings")
    texts = [words.text(8) for _ in range(setting.count(TEXTS))]
    value, record = await session.post("/v1/embeddings", {"model": session.model, "input": texts})
    if len(value.get("data") or []) != len(texts):
        raise BenchError(f"{len(value.get('data') or [])} vectors for {len(texts)} texts")
    return {"texts/s": len(texts) / (record.done - record.sent), "total ms": 1e3 * (record.done - record.sent)}


async def _context(session: ModelClient, setting: Setting) -> Figures:
    n_words = 12_000 / 1.3 * min(1.0, setting.scale)
    record = await session.stream(session.body([setting.words("context").text(n_words)], setting.count(32, 2)))
    result = {**figures.of_first_tokens([record]), "tok/s": figures.decode_rate(record)}
    del result["TTFT max ms"]
    if record.n_prompt is not None:
        result["prompt tok/s"] = record.n_prompt / figures.first_s(record)
    return result


SCENARIOS = (
    Scenario("one", "one stream", _one),
    Scenario("slots", "a stream in every slot", _slots),
    Scenario("prefix", "cold requests in every slot that share 700 words", _prefix),
    Scenario("long", "a prompt of 1,500 words while 3 streams run", _long),
    Scenario("conversations", "32 conversations of 6 turns, interleaved", _conversations),
    Scenario("rate", "one token each, a client for every slot", _rate),
    Scenario("contended", "a stream in every slot beside a process that keeps one core busy", _contended, local=True),
    Scenario("constrained", "output held to a JSON schema", _constrained),
    Scenario("partial", "streams in some of the slots", _partial, extra=True),
    Scenario(
        "half", "streams in half of the slots, after every other stream of a full load was short", _half, extra=True
    ),
    Scenario("left", "streams that are left over between others that ended", _left, extra=True),
    Scenario("edit", "a file written again with an edit", _edit, extra=True),
    Scenario("quote", "a text repeated", _quote, extra=True),
    Scenario("other", "stories, which repeat nothing", _other, extra=True),
    Scenario("embeddings", "256 short texts to vectors", _embeddings, extra=True),
    Scenario("context", "one prompt of 12,000 tokens", _context, extra=True),
)


def named(names: str) -> list[Scenario]:
    """Return the named scenarios ("all" = every one) in the order of `SCENARIOS`. Raises `BenchError`."""
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    known = {scenario.name for scenario in SCENARIOS}
    if wanted == {"all"}:
        return list(SCENARIOS)
    if unknown := wanted - known:
        raise BenchError(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in SCENARIOS)}")
    return [scenario for scenario in SCENARIOS if scenario.name in wanted]


def run(scenario: Scenario, session: ModelClient, setting: Setting) -> Figures:
    """One scenario on an event loop of its own. Raises `BenchError`."""
    return asyncio.run(scenario.run(session, setting))
