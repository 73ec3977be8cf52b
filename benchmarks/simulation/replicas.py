"""Several replicas behind a router, simulated: ``python -m benchmarks.simulation.replicas``.

Each replica is a machine and an engine of its own, as in `run`; people ask, and the router says which replica answers:
``random``, ``least`` (the fewest requests), ``prefix`` (as the front of `llamapool.ray`, four characters a token). The
replica that is furthest behind makes the next step, so that no clock runs ahead of a request that it could get.
"""

import argparse
import heapq
import json
import random
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import count
from pathlib import Path

import numpy as np

from benchmarks.simulation.policy import Policy, with_ram
from benchmarks.simulation.run import PEOPLE, Asking, Simulation
from benchmarks.simulation.trace import Session, Trace, pause_s
from llamapool.ray.placement import Aim, Candidate, Placement

_LETTERS = 1 << 20  # characters that stand for tokens


Router = Callable[[Seq[int], Seq[int]], int]
"""Says which replica gets a prompt, by how many requests each has."""


def routers(n_slots: int, seed: int) -> dict[str, Router]:
    draw, placement = random.Random(seed), Placement()

    def least(_prompt: Seq[int], n_requests: Seq[int]) -> int:
        return min(range(len(n_requests)), key=lambda i: (n_requests[i], draw.random()))  # of equals any

    def by_prefix(prompt: Seq[int], n_requests: Seq[int]) -> int:
        aim = Aim(text="".join([chr(token % _LETTERS) * 4 for token in prompt]))
        candidates = [Candidate(str(i), n, n_slots) for i, n in enumerate(n_requests)]
        chosen = placement.order(aim, candidates)[0]
        placement.sent(aim, chosen)
        return int(chosen)

    return {"random": lambda _prompt, n_requests: draw.randrange(len(n_requests)), "least": least, "prefix": by_prefix}


class Fleet:
    """`n_replicas` of `n_slots` each, behind `router`."""

    def __init__(self, policy: Policy, n_replicas: int, n_slots: int, router: Router, seed: int = 1) -> None:
        self._asking: Asking = []
        replies = count(1 << 30)  # no two say the same
        self.replicas = [Simulation(policy, n_slots, asking=self._asking, replies=replies) for _ in range(n_replicas)]
        self._router = router
        self._trace = Trace(seed, self.replicas[0].machine.info.n_ctx_seq)
        for i in range(PEOPLE * n_slots * n_replicas):
            session = self._trace.session()
            heapq.heappush(self._asking, (pause_s(session), i, session))

    @property
    def n_done(self) -> int:
        """Requests that had their first token."""
        return sum(len(replica.seen.first_token) for replica in self.replicas)

    def run(self, n_requests: int) -> None:
        """Go on until so many requests had their first token."""
        while self.n_done < n_requests:
            for _ in range(100):
                busy = [replica for replica in self.replicas if replica.n_requests]
                behind = min(busy, key=lambda replica: replica.machine.now) if busy else None
                if self._asking and (behind is None or self._asking[0][0] <= behind.machine.now):
                    self._route(*heapq.heappop(self._asking))
                elif behind is not None:
                    behind.step()

    def _route(self, at: float, number: int, session: Session) -> None:
        session = self._trace.next_of(session)
        chosen = self._router(session.history, [replica.n_requests for replica in self.replicas])
        replica = self.replicas[chosen]
        if not replica.n_requests:
            replica.rest_until(at)
        replica.take(at, number, session)

    def figures(self) -> dict[str, float]:
        """What clients saw, of all replicas together."""
        seen = [replica.seen for replica in self.replicas]
        times = np.concatenate([np.frombuffer(one.first_token) for one in seen])
        simulated_s = max(replica.machine.now for replica in self.replicas)
        each = Counter({i: len(one.first_token) for i, one in enumerate(seen)})
        return {
            "requests": len(times),
            "hit_rate": sum(one.n_cached for one in seen) / sum(one.n_prompt for one in seen),
            "first_token_p50_s": float(np.quantile(times, 0.5)),
            "first_token_p99_s": float(np.quantile(times, 0.99)),
            "requests_per_s": len(times) / simulated_s,
            "most_at_one": max(each.values()) / len(times),
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation.replicas", description=__doc__)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--slots", type=int, default=64, help="of each")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--routers", default="random,least,prefix")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="results are added to this file, a line each")
    arguments = parser.parse_args()
    for name in arguments.routers.split(","):
        router = routers(arguments.slots, arguments.seed)[name]
        fleet = Fleet(with_ram(arguments.slots), arguments.replicas, arguments.slots, router, arguments.seed)
        fleet.run(arguments.requests)
        found = {"router": name, "replicas": arguments.replicas, "slots": arguments.slots, **fleet.figures()}
        print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}), flush=True)
        if arguments.json is not None:
            with arguments.json.open("a") as file:
                file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
