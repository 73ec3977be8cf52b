"""Whether compiling a huge JSON Schema holds anybody up: a stream and `GET /health` beside it.

``python -m benchmarks.schemas.load [--properties 4000] [--requests 6]``

Prints the latency of `/health`, which the event loop answers by itself, and the gaps of a running stream: first alone,
then while schemas with thousands of properties are sent, each a new one.
"""

import argparse
import http.client
import threading
import time
from statistics import median
from typing import Any

from benchmarks.make_gguf import write_gguf
from benchmarks.schemas.speed import MODEL, SHAPE
from tests.support.real_server import RealServer, llamapool


def huge(n_properties: int, seed: int) -> dict[str, Any]:
    """A schema that nobody has sent before."""
    kinds: list[dict[str, Any]] = [
        {"type": "string", "maxLength": 20},
        {"type": "integer", "minimum": 0, "maximum": 99},
        {"enum": [f"{seed}-{n}" for n in range(5)]},
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    ]
    properties = {f"p{seed}_{n}": kinds[n % len(kinds)] for n in range(n_properties)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


class Health:
    """Asks `/health` on one kept connection until it is stopped; ``latencies_ms``."""

    def __init__(self, server: RealServer) -> None:
        self.latencies_ms: list[float] = []
        self._stopping = threading.Event()
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stopping.wait(0.005):
            started = time.perf_counter()
            self._connection.request("GET", "/health")
            self._connection.getresponse().read()
            self.latencies_ms.append((time.perf_counter() - started) * 1e3)

    def __enter__(self) -> "Health":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._connection.close()


def gaps_ms(server: RealServer, n_tokens: int, found: list[float]) -> None:
    """The times between the events of a stream."""
    body = {"prompt": "A stream:", "n_predict": n_tokens, "ignore_eos": True, "temperature": 0.0}
    with server.open_stream("/completion", body) as response:
        last = time.perf_counter()
        while line := response.readline():
            if line.startswith(b"data: "):
                now = time.perf_counter()
                found.append((now - last) * 1e3)
                last = now


def watched(server: RealServer, name: str, schemas: list[dict[str, Any]], n_tokens: int) -> None:
    """Print what a stream and `/health` felt while the schemas were sent, one after the other."""
    gaps: list[float] = []
    stream = threading.Thread(target=gaps_ms, args=(server, n_tokens, gaps))
    times = []
    with Health(server) as health:
        stream.start()
        for schema in schemas:
            started = time.perf_counter()
            reply = server.request("POST", "/completion", {"prompt": "x", "n_predict": 1, "json_schema": schema})
            times.append((time.perf_counter() - started) * 1e3)
            assert reply.status in (200, 400), reply.status
        stream.join()
    for what, figures in (("/health", health.latencies_ms), ("gap of the stream", gaps), ("schema request", times)):
        if figures:
            ordered = sorted(figures)
            p99 = ordered[int(len(ordered) * 0.99)]
            print(
                f"| {name} | {what} | {len(ordered)} | {median(ordered):.1f} | {p99:.1f} | {ordered[-1]:.1f} |",
                flush=True,
            )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="A huge JSON Schema beside a running stream.")
    parser.add_argument("--properties", type=int, default=4000)
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=300)
    chosen = parser.parse_args()
    if not MODEL.exists():
        MODEL.parent.mkdir(exist_ok=True)
        write_gguf(MODEL, SHAPE)
    with llamapool(MODEL, "-c", "4096", "-np", "2", "-t", "1") as server:
        server.post("/completion", {"prompt": "x", "n_predict": 1, "json_schema": {"type": "null"}})
        print("| | ms | n | median | p99 | most |\n|---|---|--:|--:|--:|--:|")
        watched(server, "alone", [], chosen.tokens)
        watched(server, "schemas", [huge(chosen.properties, seed) for seed in range(chosen.requests)], chosen.tokens)


if __name__ == "__main__":
    main()
