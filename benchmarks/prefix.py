"""What it costs to look for a prefix: ``python -m benchmarks.prefix`` (see docs/adr/0002).

In every slot, by comparing; and among kept states, by comparing with each and by the index.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from server.engine.kv.ram_cache import KeptState
from server.engine.lora import BARE, NEVER
from server.engine.prefix.index import PrefixIndex
from server.engine.prefix.match import common_prefix, longest_match


@dataclass
class Cache:
    """A slot's tokens."""

    id: int
    tokens: list[int] = field(default_factory=list)

    def reusable(self, n: int, _: object) -> int:
        """All of them."""
        return n


def main() -> None:
    """Print both tables."""
    _slots()
    print()
    _kept_states()


def _slots() -> None:
    """Several numbers of slots and lengths; all shared is the worst case."""
    rng = random.Random(1)
    print("| slots | tokens | nothing shared | everything shared but the end |\n|---|---|---|---|")
    for n_slots, n_tokens in ((8, 2_000), (8, 32_000), (64, 2_000), (256, 2_000), (256, 32_000)):
        prompt = [rng.randrange(150_000) for _ in range(n_tokens)]
        # Fresh int objects in every slot, as tokens that were computed from different requests are.
        shared = [Cache(i, [int(str(t)) for t in prompt[:-1]] + [i]) for i in range(n_slots)]
        other = [Cache(i, [t + 1 for t in prompt]) for i in range(n_slots)]
        nothing = _us(partial(longest_match, prompt, other))
        everything = _us(partial(longest_match, prompt, shared))
        print(f"| {n_slots} | {n_tokens} | {nothing:,.0f} us | {everything:,.0f} us |")


def _kept_states() -> None:
    """States that share a system prompt of 1,000 tokens; the prompt goes on from one of them, or from none."""
    rng = random.Random(2)
    print("| states | tokens | compare each | index, one goes on | index, only the system prompt | add |")
    print("|---|---|---|---|---|---|")
    system = [rng.randrange(150_000) for _ in range(1_000)]
    for n_states, n_tokens in ((100, 2_000), (1_000, 2_000), (5_000, 2_000), (1_000, 16_000)):
        rest = n_tokens - len(system)
        entries = [
            KeptState(
                [int(str(t)) for t in system] + [rng.randrange(150_000) for _ in range(rest)], BARE, NEVER, 1, 0.0
            )
            for _ in range(n_states)
        ]
        index: PrefixIndex[KeptState] = PrefixIndex()
        started = time.perf_counter()
        for entry in entries:
            index.add(entry)
        add = (time.perf_counter() - started) / n_states * 1e6
        known = [*entries[n_states // 2].tokens, 1, 2, 3]
        new = [*system, *(rng.randrange(150_000) for _ in range(rest))]
        assert index.match(known, BARE, 0) == (entries[n_states // 2], n_tokens)
        each = _us(lambda: max(common_prefix(known, e.tokens) for e in entries))  # noqa: B023
        one = _us(lambda: index.match(known, BARE, 0))  # noqa: B023
        none = _us(lambda: index.match(new, BARE, 0))  # noqa: B023
        print(f"| {n_states} | {n_tokens} | {each:,.0f} us | {one:,.0f} us | {none:,.0f} us | {add:,.0f} us |")


def _us(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(10):
        work()
    return (time.perf_counter() - started) / 10 * 1e6


if __name__ == "__main__":
    main()
