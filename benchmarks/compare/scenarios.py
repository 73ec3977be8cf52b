"""Scenarios of the comparison in addition to those of `llamapool bench`."""

import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from server.bench.client import BenchError, ClientRecord, Connection, Fields, ModelClient, all_of
from server.bench.scenarios import SCENARIOS as BENCH
from server.bench.scenarios import (
    Figures,
    RandomText,
    Scenario,
    Setting,
    between_s,
    first_s,
    of_first_tokens,
    of_streams,
    percentile,
    span_s,
)

TEXTS = 256
WAVES = 3  # rounds of streams in half of the slots
SHORT, LONG = 24, 120  # tokens of streams that end early, and of the others
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
HEROES = ("an old clockmaker", "a lost letter", "a village without rain", "the last train", "a very small dragon")
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


def decode_rate(record: ClientRecord) -> float:
    """Return the tokens per second from the first to the last token, or over all if they arrived at once."""
    between = between_s(record)
    return (record.n_predicted - 1) / between if between > 0 else record.n_predicted / (record.done - record.sent)


async def send_requests(client: ModelClient, bodies: Sequence[Fields], n_parallel: int) -> list[ClientRecord]:
    """Send requests that are not streamed, over `n_parallel` connections that stay open."""
    payloads = [client.payload(body) for body in reversed(bodies)]
    records: list[ClientRecord] = []

    async def send_over_one_connection() -> None:
        async with Connection(client.target) as connection:
            while payloads:
                _, record = await client.within(connection.exchange("POST", client.path, payloads.pop()))
                records.append(record)

    await all_of(send_over_one_connection() for _ in range(n_parallel))
    return records


async def _one(client: ModelClient, setting: Setting) -> Figures:
    record = await client.stream(client.body([setting.words("one").text(12)], setting.count(128, 2)))
    return {**of_streams([record]), "tok/s": decode_rate(record)}


async def _slots(client: ModelClient, setting: Setting) -> Figures:
    return of_streams(await _run_streams(client, setting.words("slots"), setting.n_parallel, setting.count(64, 2)))


async def _rate(client: ModelClient, setting: Setting) -> Figures:
    words = setting.words("rate")
    bodies = [client.body([words.text(4)], 1, stream=False) for _ in range(setting.count(240, setting.n_parallel))]
    records = await send_requests(client, bodies, setting.n_parallel)
    durations = [record.done - record.sent for record in records]
    return {
        "requests/s": len(records) / span_s(records),
        "p50 ms": 1e3 * percentile(durations, 0.5),
        "p99 ms": 1e3 * percentile(durations, 0.99),
    }


async def _constrained(client: ModelClient, setting: Setting) -> Figures:
    prompt = f"Write an invoice as JSON.{setting.words('constrained').text(12)}"
    schema = {"type": "json_schema", "json_schema": {"name": "invoice", "strict": True, "schema": SCHEMA}}
    chat = replace(client, chat=True)
    record = await chat.stream(chat.body([prompt], setting.count(96, 2), response_format=schema))
    if not record.text.lstrip().startswith("{"):
        raise BenchError(f"the output does not match the schema: {json.dumps(record.text[:100])}")
    return {"tok/s": decode_rate(record), **of_first_tokens([record])}


async def _run_streams(client: ModelClient, words: RandomText, n_streams: int, n_predict: int) -> list[ClientRecord]:
    return await client.streams([client.body([words.text(12)], n_predict) for _ in range(n_streams)])


def _total_rate(records: Sequence[ClientRecord]) -> float:
    """Return the tokens per second of parallel streams, from first tokens to last ones."""
    return sum(decode_rate(record) for record in records)


async def _partial(client: ModelClient, setting: Setting) -> Figures:
    words, n, n_predict = setting.words("partial"), setting.n_parallel, setting.count(48, 2)
    rates = {k: _total_rate(await _run_streams(client, words, k, n_predict)) for k in range(1, n)}
    return {f"{k} of {n}: tok/s": rate for k, rate in rates.items()}


async def _short_and_long(
    client: ModelClient, setting: Setting, words: RandomText
) -> tuple[list[ClientRecord], list[ClientRecord]]:
    """Run a stream in every slot, every second of them short. Returns the short streams and the long ones."""
    lengths = [setting.count((LONG, SHORT)[i % 2], 2) for i in range(setting.n_parallel)]
    records = await client.streams([client.body([words.text(12)], length) for length in lengths])
    return records[1::2], records[::2]


async def _half(client: ModelClient, setting: Setting) -> Figures:
    words = setting.words("half")
    await _short_and_long(client, setting, words)
    n_predict = setting.count(48, 2)
    waves = [await _run_streams(client, words, setting.n_parallel // 2, n_predict) for _ in range(WAVES)]
    return {"tok/s": median(_total_rate(wave) for wave in waves)}


def _after(record: ClientRecord, moment: float) -> ClientRecord:
    """Return the part of `record` after `moment`, with one token per event."""
    events = [time for time in record.events if time >= moment]
    return replace(record, events=events, n_predicted=len(events))


async def _left(client: ModelClient, setting: Setting) -> Figures:
    words = setting.words("left")
    alone = _total_rate(await _run_streams(client, words, setting.n_parallel // 2, setting.count(64, 2)))
    short, long = await _short_and_long(client, setting, words)
    short_end = max(record.done for record in short)
    later = [_after(record, short_end) for record in long]
    rate = sum(decode_rate(record) for record in later)
    return {"tok/s": rate, f"of {setting.n_parallel // 2} alone": rate / alone}


async def _answer(client: ModelClient, prompt: str, n_predict: int) -> Figures:
    chat = replace(client, chat=True)
    record = await chat.stream(chat.body([prompt], n_predict))
    return {"tok/s": decode_rate(record), **of_first_tokens([record])}


async def _edit(client: ModelClient, setting: Setting) -> Figures:
    source = f"#{setting.words('edit').text(4)}\n{FILE}"
    task = "Change the port of the server to 9090 and write the whole file again."
    return await _answer(client, f"```toml\n{source}```\n\n{task}", setting.count(192, 2))


async def _quote(client: ModelClient, setting: Setting) -> Figures:
    task = "Repeat the following text word for word."
    return await _answer(client, f"{task}\n\n{setting.words('quote').text(4)[1:]}. {PROSE}", setting.count(192, 2))


async def _other(client: ModelClient, setting: Setting) -> Figures:
    chat = replace(client, chat=True)
    prompts = [f"Write a short story about {hero}.{setting.words('other').text(4)}" for hero in HEROES]
    records = [await chat.stream(chat.body([prompt], setting.count(96, 2))) for prompt in prompts]
    n_tokens, seconds = sum(r.n_predicted - 1 for r in records), sum(r.events[-1] - r.events[0] for r in records)
    if seconds <= 0:  # each reply arrived at once
        n_tokens, seconds = sum(r.n_predicted for r in records), sum(r.done - r.sent for r in records)
    return {"tok/s": n_tokens / seconds}


async def _embeddings(client: ModelClient, setting: Setting) -> Figures:
    words = setting.words("embeddings")
    texts = [words.text(8) for _ in range(setting.count(TEXTS))]
    value, record = await client.exchange("POST", "/v1/embeddings", {"model": client.model, "input": texts})
    if len(value.get("data") or []) != len(texts):
        raise BenchError(f"{len(value.get('data') or [])} vectors for {len(texts)} texts")
    return {"texts/s": len(texts) / (record.done - record.sent), "total ms": 1e3 * (record.done - record.sent)}


async def _context(client: ModelClient, setting: Setting) -> Figures:
    n_words = 12_000 / 1.3 * min(1.0, setting.scale)
    record = await client.stream(client.body([setting.words("context").text(n_words)], setting.count(32, 2)))
    result = {**of_first_tokens([record]), "tok/s": decode_rate(record)}
    del result["TTFT max ms"]
    if record.n_prompt is not None:
        result["prompt tok/s"] = record.n_prompt / first_s(record)
    return result


SCENARIOS = (
    *BENCH,
    Scenario("one", "one stream", _one),
    Scenario("slots", "a stream in every slot", _slots),
    Scenario("rate", "one token each, a client for every slot", _rate),
    Scenario("constrained", "output held to a JSON schema", _constrained),
    Scenario("partial", "streams in some of the slots", _partial),
    Scenario("half", "streams in half of the slots, after every other stream of a full load was short", _half),
    Scenario("left", "streams that are left over between others that ended", _left),
    Scenario("edit", "a file written again with an edit", _edit),
    Scenario("quote", "a text repeated", _quote),
    Scenario("other", "stories, which repeat nothing", _other),
    Scenario("embeddings", "256 short texts to vectors", _embeddings),
    Scenario("context", "one prompt of 12,000 tokens", _context),
)
