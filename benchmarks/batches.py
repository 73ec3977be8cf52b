"""Measure how much a batch slows live clients, and how much the server's order of its requests saves.

``python -m benchmarks.batches [--model F] [--turns 4] [--seconds 20] [--questions 1000] [--only live] [--json F]``

``live``: clients send one request after the other with pauses, so that the server has spare capacity. They run in turns
of equal length, with and without a batch of 10,000 requests. The table compares the times to first token of both, and
shows the tokens of the batch, with live clients and alone. All prompts differ.

``order``: a batch has questions about 20 documents, each request about another document than the one before. Servers
run the requests in the order of the file or in the server's order, with a RAM cache for all documents and without.
"""

import argparse
import json
import random
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.environment import DEMO, describe, model
from tests.support.real_server import RealServer, free_port, llamapool

N_BATCH = 10_000
N_DOCUMENTS = 20
WORDS = [
    "one",
    "river",
    "stone",
    "bridge",
    "green",
    "seven",
    "walks",
    "under",
    "light",
    "again",
    "because",
    "winter",
    "house",
    "small",
    "letter",
    "market",
]
FILE_ORDER = """
import runpy, sys
from server.serving import batch_runner
batch_runner._prefix = lambda body: ("", b"")
sys.argv[0] = "server"
runpy.run_module("server", run_name="__main__")
"""
"""Starts a server that runs a batch's requests in the order of the file."""
_PATH = "/v1/chat/completions"
_BOUNDARY = "bench-boundary"


@dataclass(frozen=True, slots=True)
class Load:
    """Live clients: their number, words per prompt, tokens per reply, and the pause after a reply in seconds."""

    clients: int = 2
    words: int = 60
    tokens: int = 24
    pause_s: float = 0.4


class Text:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def words(self, n: int) -> str:
        return " ".join(self._random.choices(WORDS, k=n))


def chat(text: str, n_tokens: int, **fields: object) -> dict[str, Any]:
    """Return the body of a chat that generates exactly `n_tokens` tokens."""
    messages = [{"role": "user", "content": text}]
    return {"model": "bench", "messages": messages, "max_tokens": n_tokens, "ignore_eos": True, "seed": 1, **fields}


def upload(server: RealServer, bodies: Sequence[dict[str, Any]]) -> str:
    """Upload a batch's input file. Return its id."""
    lines = (
        json.dumps({"custom_id": str(number), "method": "POST", "url": _PATH, "body": body})
        for number, body in enumerate(bodies)
    )
    parts = [
        *(f"--{_BOUNDARY}", 'Content-Disposition: form-data; name="purpose"', "", "batch", f"--{_BOUNDARY}"),
        *('Content-Disposition: form-data; name="file"; filename="in.jsonl"', "", "\n".join(lines)),
        f"--{_BOUNDARY}--",
    ]
    headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
    return str(server.request("POST", "/v1/files", "\r\n".join(parts).encode(), headers=headers).json()["id"])


def start(server: RealServer, file_id: str) -> str:
    body = {"input_file_id": file_id, "endpoint": _PATH, "completion_window": "24h"}
    return str(server.post("/v1/batches", body)["id"])


def wait(server: RealServer, batch_id: str, *, n_completed: int = 0, interval_s: float = 0.1) -> dict[str, Any]:
    """Wait until `n_completed` requests of a batch have succeeded, or it ends. Return the batch."""
    while True:
        batch: dict[str, Any] = server.get(f"/v1/batches/{batch_id}")
        if batch["status"] not in ("in_progress", "cancelling", "finalizing"):
            return batch
        if n_completed and batch["request_counts"]["completed"] >= n_completed:
            return batch
        time.sleep(interval_s)


def first_token_s(connection: HTTPConnection, body: dict[str, Any]) -> float:
    """Stream a chat to its end. Return its time to first token in seconds."""
    start = time.perf_counter()
    connection.request("POST", _PATH, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    seconds = None
    while line := response.readline():
        if seconds is None and b'"delta":{"' in line and b'"role"' not in line:
            seconds = time.perf_counter() - start
    if seconds is None:
        raise RuntimeError(f"status {response.status}, and no token")
    return seconds


@contextmanager
def clients(server: RealServer, load: Load, times_s: list[float], seed: int) -> Iterator[None]:
    """Run live clients until the end of the block. Appends their times to first token to `times_s`."""
    is_over = threading.Event()
    failures: list[Exception] = []

    def run_client(number: int) -> None:
        text = Text(seed * 100 + number)
        connection = HTTPConnection(server.host, server.port, timeout=120)
        is_over.wait(number * load.pause_s / load.clients)
        try:
            while not is_over.is_set():
                body = chat(f"{uuid.uuid4()} {text.words(load.words)}", load.tokens, stream=True)
                times_s.append(first_token_s(connection, body))
                is_over.wait(load.pause_s)
        except Exception as error:  # noqa: BLE001 (raised by the thread that waits)
            failures.append(error)

    threads = [threading.Thread(target=run_client, args=(number,)) for number in range(load.clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


@contextmanager
def batch_of(server: RealServer, file_id: str) -> Iterator[str]:
    """Run a batch during the block, and cancel it at the end. Yields its id after its first two requests."""
    batch_id = start(server, file_id)
    wait(server, batch_id, n_completed=2)
    yield batch_id
    server.post(f"/v1/batches/{batch_id}/cancel", {})
    wait(server, batch_id)


def completed(server: RealServer, batch_id: str) -> int:
    """Return the number of requests of a batch that have succeeded."""
    return int(server.get(f"/v1/batches/{batch_id}")["request_counts"]["completed"])


def live(server: RealServer, turns: int, seconds: float, load: Load) -> dict[str, Any]:
    """Measure live clients alternately with and without a batch."""
    text = Text(7)
    n_tokens = 24
    file_id = upload(server, [chat(f"{number} {text.words(load.words)}", n_tokens) for number in range(N_BATCH)])
    with clients(server, load, [], 1):
        time.sleep(3)
    with batch_of(server, file_id) as batch_id:
        before = completed(server, batch_id)
        time.sleep(seconds / 2)
        alone = (completed(server, batch_id) - before) * n_tokens / (seconds / 2)
    rounds = []
    for turn in range(turns):
        times: dict[bool, list[float]] = {}
        rate = 0.0
        for has_batch in (False, True) if turn % 2 else (True, False):
            times_s: list[float] = []
            if has_batch:
                with batch_of(server, file_id) as batch_id, clients(server, load, times_s, turn + 2):
                    before = completed(server, batch_id)
                    time.sleep(seconds)
                    rate = (completed(server, batch_id) - before) * n_tokens / seconds
            else:
                with clients(server, load, times_s, turn + 2):
                    time.sleep(seconds)
            times[has_batch] = times_s
        medians = {name: statistics.median(times[name == "with"]) for name in ("without", "with")}
        live_rates = {name: len(times[name == "with"]) * load.tokens / seconds for name in ("without", "with")}
        rounds.append(
            {
                **{f"first_token_ms_{name}": 1000 * value for name, value in medians.items()},
                **{f"live_tokens_per_s_{name}": value for name, value in live_rates.items()},
                "ratio": medians["with"] / medians["without"],
                "batch_tokens_per_s": rate,
                "times_ms": {
                    name: [round(1000 * each, 1) for each in times[name == "with"]] for name in ("without", "with")
                },
            }
        )
        print(f"turn {turn}: {json.dumps({k: v for k, v in rounds[-1].items() if k != 'times_ms'})}", file=sys.stderr)
    return {"batch_alone_tokens_per_s": alone, "rounds": rounds}


def order(server: RealServer, questions: int, words: int) -> dict[str, Any]:
    """Measure a batch of questions about documents, where successive questions are about different ones."""
    text = Text(11)
    documents = [text.words(words) for _ in range(N_DOCUMENTS)]
    bodies = [
        chat(f"{documents[number % N_DOCUMENTS]}\n\nQuestion {number}: {text.words(8)}?", 4)
        for number in range(questions)
    ]
    file_id = upload(server, bodies)
    started = time.perf_counter()
    batch = wait(server, start(server, file_id))
    seconds = time.perf_counter() - started
    usage = batch["usage"]
    if batch["request_counts"]["completed"] != questions:
        raise RuntimeError(f"not every request succeeded: {batch['request_counts']}")
    return {
        "seconds": seconds,
        "prompt_tokens": usage["input_tokens"],
        "computed_tokens": usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"],
    }


def served(file: Path, slots: int, *more: str, file_order: bool = False) -> RealServer:
    """Start a server that stores state in memory, with further flags `more`."""
    flags = ["-c", str(slots * 2048), "-np", str(slots), "-a", "bench", "--no-ui", "--state", "memory", *more]
    if not file_order:
        return llamapool(file, *flags)
    port = free_port()
    command = [sys.executable, "-c", FILE_ORDER, "-m", str(file), "--host", "127.0.0.1", "--port", str(port)]
    return RealServer([*command, *flags], port)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batches", description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a turn")
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--words", type=int, default=200, help="words per document")
    parser.add_argument("--only", default="live,order")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {**describe("benchmarks.batches"), "model": model(options.model)}
    if "live" in options.only:
        with served(options.model, options.slots) as server:
            server.wait_until_ready()
            result["live"] = live(server, options.turns, options.seconds, Load())
        rounds = result["live"]["rounds"]
        middle = {name: statistics.median(each[name] for each in rounds) for name in rounds[0] if name != "times_ms"}
        result["live"]["medians"] = middle
        print("| live clients | first token, ms | tokens/s | the batch's tokens/s |\n|---|--:|--:|--:|")
        print(f"| alone | {middle['first_token_ms_without']:.1f} | {middle['live_tokens_per_s_without']:.0f} | |")
        print(
            f"| with a batch | {middle['first_token_ms_with']:.1f} ({middle['ratio']:.2f} times) |"
            f" {middle['live_tokens_per_s_with']:.0f} | {middle['batch_tokens_per_s']:.0f}"
            f" (alone {result['live']['batch_alone_tokens_per_s']:.0f}) |"
        )
    if "order" in options.only:
        print("| order of a batch | RAM cache | seconds | prompt tokens | computed |\n|---|---|--:|--:|--:|")
        for cache, flags in (("default", ()), ("none", ("--cache-ram", "0"))):
            for name in ("file", "server"):
                with served(options.model, options.slots, *flags, file_order=name == "file") as server:
                    server.wait_until_ready()
                    row = order(server, options.questions, options.words)
                result.setdefault("order", []).append({"order": name, "ram_cache": cache, **row})
                figures = f"{row['seconds']:.1f} | {row['prompt_tokens']} | {row['computed_tokens']}"
                print(f"| {name} | {cache} | {figures} |", flush=True)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
