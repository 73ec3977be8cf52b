"""What it costs to look for a prefix in every slot: ``python -m benchmarks.prefix`` (see docs/adr/0002)."""

import random
import time
from dataclasses import dataclass, field

from server.engine.prefix import longest_match


@dataclass
class Cache:
    """A slot's tokens."""

    id: int
    tokens: list[int] = field(default_factory=list)


def main() -> None:
    """Time one look-up for several numbers of slots and lengths; all shared is the worst case."""
    rng = random.Random(1)
    print("| slots | tokens | nothing shared | everything shared but the end |\n|---|---|---|---|")
    for n_slots, n_tokens in ((8, 2_000), (8, 32_000), (64, 2_000), (256, 2_000), (256, 32_000)):
        prompt = [rng.randrange(150_000) for _ in range(n_tokens)]
        # Fresh int objects in every slot, as tokens that were computed from different requests are.
        shared = [Cache(i, [int(str(t)) for t in prompt[:-1]] + [i]) for i in range(n_slots)]
        other = [Cache(i, [t + 1 for t in prompt]) for i in range(n_slots)]
        times = []
        for slots in (other, shared):
            start = time.perf_counter()
            for _ in range(10):
                longest_match(prompt, slots)
            times.append((time.perf_counter() - start) / 10 * 1e6)
        print(f"| {n_slots} | {n_tokens} | {times[0]:,.0f} us | {times[1]:,.0f} us |")


if __name__ == "__main__":
    main()
