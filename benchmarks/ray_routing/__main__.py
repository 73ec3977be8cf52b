"""Measure hit rate and time to first token of two replicas on a Ray cluster by router.

``python -m benchmarks.ray_routing --model MODEL.gguf`` (needs ``llamapool[ray]``) runs conversations with different
long system prompts, turn by turn, several in parallel, with each router: Llamapool's (`prefix`), Ray Serve's (`queue`:
the shorter queue of two), and `random`. Each router has its own replicas, whose caches start empty.
"""

import argparse
import http.client
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.ray_cluster import RayCluster
from tests.support.real_server import ROOT

ROUTERS = {
    "prefix": "llamapool.ray.router.PrefixRouter",
    "queue": "ray.serve._private.request_router.pow_2_router.PowerOfTwoChoicesRequestRouter",
    "random": "benchmarks.ray_routing.random_router.RandomRouter",
}
WORDS = ("river", "stone", "morning", "paper", "window", "garden", "letter", "number", "silver", "market", "doctor")
REPLICA = "x-llamapool-replica"


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply: seconds to its first token, and its prompt tokens and cached tokens."""

    conversation: int
    nth: int
    first_token_s: float
    n_prompt: int
    n_cached: int
    replica: str


class Conversation:
    """A conversation with a unique system prompt, and its messages so far."""

    def __init__(self, number: int, n_words: int, seed: int) -> None:
        self.number = number
        self._random = random.Random(f"{seed} {number}")
        self.messages = [{"role": "system", "content": f"Case {number}. " + self._words(n_words)}]

    def _words(self, n: int) -> str:
        return " ".join(self._random.choice(WORDS) for _ in range(n))

    def next_turn(self, cluster: RayCluster, path: str, nth: int) -> Turn:
        """Stream the next turn."""
        self.messages.append({"role": "user", "content": self._words(20)})
        body = {
            "messages": self.messages,
            **{"stream": True, "stream_options": {"include_usage": True}},
            **{"max_tokens": 16, "ignore_eos": True, "temperature": 0},
        }
        connection = http.client.HTTPConnection(cluster.host, cluster.port, timeout=300)
        start = time.monotonic()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        first, text = 0.0, ""
        usage: dict[str, Any] = {}
        for event in _events(response):
            for choice in event["choices"]:
                if content := choice["delta"].get("content"):
                    first = first or time.monotonic() - start
                    text += content
            usage = event.get("usage") or usage
        connection.close()
        self.messages.append({"role": "assistant", "content": text})
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Turn(self.number, nth, first, usage["prompt_tokens"], cached, response.getheader(REPLICA) or "")


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))


def measure(cluster: RayCluster, router: str, arguments: argparse.Namespace) -> list[Turn]:
    """Run all turns of all conversations, in the order of turns."""
    conversations = [Conversation(n, arguments.words, arguments.seed) for n in range(arguments.conversations)]
    path = f"/{router}/v1/chat/completions"
    turns: list[Turn] = []
    with ThreadPoolExecutor(arguments.parallel) as threads:
        for nth in range(arguments.turns):
            turns += threads.map(lambda each: each.next_turn(cluster, path, nth), conversations)  # noqa: B023
    return turns


def figures(router: str, turns: Sequence[Turn]) -> dict[str, float | int | str]:
    n_prompt = sum(turn.n_prompt for turn in turns)
    later = [turn for turn in turns if turn.nth]
    replicas = [turn.replica for turn in turns]
    return {
        "router": router,
        "hit_rate": sum(turn.n_cached for turn in turns) / n_prompt,
        "prompt_tokens": n_prompt,
        "first_turn_p50_s": statistics.median(turn.first_token_s for turn in turns if not turn.nth),
        "later_p50_s": statistics.median(turn.first_token_s for turn in later),
        "later_max_s": max(turn.first_token_s for turn in later),
        "most_at_one_replica": max(replicas.count(one) for one in set(replicas)) / len(replicas),
    }


def main() -> None:
    """Measure the routers one after the other on one cluster."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_routing", description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "demo.gguf")
    parser.add_argument("--flags", default="-t 1 -np 4 -c 16384", help="flags of each replica")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--routers", default=",".join(ROUTERS))
    parser.add_argument("--conversations", type=int, default=12)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--words", type=int, default=400, help="words per system prompt")
    parser.add_argument("--parallel", type=int, default=4, help="conversations at the same time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="append each result as a line to this file")
    arguments = parser.parse_args()
    flags = ["-m", str(arguments.model.resolve()), *arguments.flags.split()]
    routers = arguments.routers.split(",")
    applications: dict[str, dict[str, Any]] = {
        name: {"flags": flags, "replicas": arguments.replicas, "router": ROUTERS[name]} for name in routers
    }
    with RayCluster({**applications, "": {"flags": flags}}) as cluster:
        for name in routers:
            result = figures(name, measure(cluster, name, arguments))
            print(
                json.dumps({key: round(v, 3) if isinstance(v, float) else v for key, v in result.items()}), flush=True
            )
            if arguments.json is not None:
                with arguments.json.open("a") as file:
                    file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
