"""Measure ``n_cache_reuse`` with the prompts of an editor, which drop their oldest chunk and append a new one.

``python -m benchmarks.cache_reuse --model MODEL.gguf`` sends three such prompts to a server with and without it. It
prints the computed tokens of each prompt, their seconds, and its cached tokens. Prefix reuse ends at the first chunk.
"""

import argparse
from pathlib import Path

from benchmarks.environment import DEMO
from tests.support.real_server import llamapool

TEXT = Path(__file__).parents[1] / "docs" / "architecture.md"
N_WORDS, N_CHUNKS, N_PROMPTS = 150, 7, 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache_reuse", description=__doc__)
    parser.add_argument("--model", type=Path, default=DEMO)
    model = parser.parse_args().model
    words = TEXT.read_text().split()
    chunks = [" ".join(words[at : at + N_WORDS]) for at in range(0, len(words), N_WORDS)]
    for smallest in (0, 256):
        with llamapool(model, "-t", "2", "-np", "1", "-c", "8192", "--cache-reuse", str(smallest)) as server:
            for first in range(N_PROMPTS):
                prompt = "\n".join(["Files of the project:", *chunks[first : first + N_CHUNKS], "def main():"])
                reply = server.post("/completion", {"prompt": prompt, "n_predict": 1, "temperature": 0})
                timings = reply["timings"]
                seconds = timings["prompt_ms"] / 1e3
                print(f"{smallest:>4}{timings['prompt_n']:>8}{seconds:>8.2f} s{timings['cache_n']:>8}", flush=True)


if __name__ == "__main__":
    main()
