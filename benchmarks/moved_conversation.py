"""A conversation that goes on in another process: the time that a shared place for prompt states saves.

``python -m benchmarks.moved_conversation --model MODEL.gguf [--place s3://bucket/folder]``: two servers that both run
and share a folder (or an address) of states. The first computes a conversation's prompt; once the second one has seen
the state, it gets the next turn, and then the next turn of a conversation that nobody has computed. For S3 at another
address: FSSPEC_S3_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
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
SETTLE_S, SETTLE_ADDRESS_S = 4.0, 25.0  # until both know what either has written


def ask(server: RealServer, messages: list[dict[str, str]]) -> tuple[float, dict[str, Any]]:
    """Seconds until the reply's only token, and its usage; the reply is put behind the messages."""
    began = time.monotonic()
    reply = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "temperature": 0})
    seconds = time.monotonic() - began
    messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"] or "."})
    return seconds, reply["usage"]


def conversation(number: int, n_words: int) -> list[dict[str, str]]:
    """Its first turn, which no other begins with."""
    chosen = random.Random(number)
    text = " ".join(chosen.choice(WORDS) for _ in range(n_words))
    return [{"role": "system", "content": f"Case {number}. {text}"}, {"role": "user", "content": "What is it about?"}]


def n_states(server: RealServer) -> int:
    """States that it knows on disk."""
    (found,) = re.findall(rb"^llamapool_cache_disk_states\{[^}]*\} (\d+)", server.request("GET", "/metrics").body, re.M)
    return int(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moved_conversation", description=__doc__)
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--place", help="a folder or an address; by default a new folder")
    parser.add_argument("--words", default="200,800")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flags", default="-t 2 -np 2 -c 8192")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = arguments.place or stack.enter_context(tempfile.TemporaryDirectory())
        flags = (*arguments.flags.split(), "--metrics", "--cache-disk", "4000", "--cache-disk-shared")
        start = (llamapool(arguments.model, *flags, "--cache-disk-path", place) for _ in range(2))
        first, second = (stack.enter_context(server) for server in start)
        number = 0
        for n_words in map(int, arguments.words.split(",")):
            moved_s: list[float] = []
            cold_s: list[float] = []
            seen_s: list[float] = []
            counts: list[tuple[int, int]] = []
            for _ in range(arguments.rounds):
                number += 1
                time.sleep(SETTLE_ADDRESS_S if "://" in place else SETTLE_S)
                before, talk = n_states(second), conversation(number, n_words)
                ask(first, talk)
                ended = time.monotonic()
                while n_states(second) == before:
                    assert time.monotonic() < ended + DEADLINE_S, "the second server has not seen the state"
                    time.sleep(0.05)
                seen_s.append(time.monotonic() - ended)
                other = conversation(-number, n_words)
                other += [{"role": "assistant", "content": "."}]
                for messages, times in ((talk, moved_s), (other, cold_s)):
                    messages.append({"role": "user", "content": "And then?"})
                    seconds, usage = ask(second, messages)
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
