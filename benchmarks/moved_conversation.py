"""Measure how much a shared disk tier saves when a conversation continues on another server.

``python -m benchmarks.moved_conversation --model MODEL.gguf [--place s3://bucket/folder]`` runs two servers that share
a folder or URL of KV states. The first prefills a conversation. Once the second server lists its state, it gets the
next turn, and then the next turn of a conversation that neither has computed. For S3 at another URL, set
FSSPEC_S3_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
"""

import argparse
import contextlib
import json
import random
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.environment import DEMO
from tests.support.real_server import RealServer, llamapool

WORDS = ("river", "stone", "morning", "paper", "window", "garden", "letter", "number", "silver", "market", "doctor")
DEADLINE_S = 300.0
SETTLE_S, SETTLE_URL_S = 4.0, 25.0  # until both servers list the states of the other


def post_chat(server: RealServer, messages: list[dict[str, str]]) -> tuple[float, dict[str, Any]]:
    """Send a chat with one token. Appends the reply to `messages`, and returns its seconds and usage."""
    start = time.monotonic()
    reply = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "temperature": 0})
    seconds = time.monotonic() - start
    messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"] or "."})
    return seconds, reply["usage"]


def conversation(number: int, n_words: int) -> list[dict[str, str]]:
    """Return the first turn of a conversation with a unique prefix."""
    rng = random.Random(number)
    text = " ".join(rng.choice(WORDS) for _ in range(n_words))
    return [{"role": "system", "content": f"Case {number}. {text}"}, {"role": "user", "content": "What is it about?"}]


def n_states(server: RealServer) -> int:
    """Return the number of states that the server lists on disk."""
    (found,) = re.findall(rb"^llamapool_cache_disk_states\{[^}]*\} (\d+)", server.request("GET", "/metrics").body, re.M)
    return int(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moved_conversation", description=__doc__)
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--place", help="a folder or URL (default: a new folder)")
    parser.add_argument("--words", default="200,800")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flags", default="-t 2 -np 2 -c 8192")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = arguments.place or stack.enter_context(tempfile.TemporaryDirectory())
        flags = (*arguments.flags.split(), "--metrics", "--cache-disk", "4000", "--cache-disk-shared")
        servers = (llamapool(arguments.model, *flags, "--cache-disk-path", place) for _ in range(2))
        first, second = (stack.enter_context(server) for server in servers)
        number = 0
        for n_words in map(int, arguments.words.split(",")):
            moved_s: list[float] = []
            cold_s: list[float] = []
            seen_s: list[float] = []
            counts: list[tuple[int, int]] = []
            for _ in range(arguments.rounds):
                number += 1
                time.sleep(SETTLE_URL_S if "://" in place else SETTLE_S)
                before, moved = n_states(second), conversation(number, n_words)
                post_chat(first, moved)
                ended = time.monotonic()
                while n_states(second) == before:
                    assert time.monotonic() < ended + DEADLINE_S, "the second server does not list the state"
                    time.sleep(0.05)
                seen_s.append(time.monotonic() - ended)
                other = conversation(-number, n_words)
                other += [{"role": "assistant", "content": "."}]
                for messages, times in ((moved, moved_s), (other, cold_s)):
                    messages.append({"role": "user", "content": "And then?"})
                    seconds, usage = post_chat(second, messages)
                    times.append(seconds)
                    counts.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
            n_prompt, n_cached = counts[-2]
            found = {
                "words": n_words,
                "prompt_tokens": n_prompt,
                "cached_tokens": n_cached,
                "moved_s": round(statistics.median(moved_s), 3),
                "computed_s": round(statistics.median(cold_s), 3),
                "seen_after_s": round(statistics.median(seen_s), 2),
            }
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
