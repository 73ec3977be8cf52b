"""Simulate several replicas with a router: ``python -m benchmarks.simulation.replicas``.

Each replica has a machine and an engine, as in `run`. The router assigns each request to a replica: ``random``,
``least`` (fewest requests) or ``prefix`` (the routing of `llamapool.ray`, with four characters per token). The replica
whose clock is earliest makes the next step, so that it can still get a request that arrives then.
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
from benchmarks.simulation.run import PEOPLE, Arrivals, Simulation
from benchmarks.simulation.trace import Session, Trace, pause_s
from llamapool.ray.placement import Aim, Candidate, Placement

_LETTERS = 1 << 20  # characters that represent tokens


Router = Callable[[Seq[int], Seq[int]], int]
"""Returns the replica for a prompt, given the number of requests of each replica."""


def routers(n_slots: int, seed: int) -> dict[str, Router]:
    draw, placement = random.Random(seed), Placement()

    def least(_prompt: Seq[int], n_requests: Seq[int]) -> int:
        return min(range(len(n_requests)), key=lambda i: (n_requests[i], draw.random()))  # a random one of equals

    def by_prefix(prompt: Seq[int], n_requests: Seq[int]) -> int:
        aim = Aim(text="".join([chr(token % _LETTERS) * 4 for token in prompt]))
        candidates = [Candidate(str(i), n, n_slots) for i, n in enumerate(n_requests)]
        replica = placement.order(aim, candidates)[0]
        placement.sent(aim, replica)
        return int(replica)

    return {"random": lambda _prompt, n_requests: draw.randrange(len(n_requests)), "least": least, "prefix": by_prefix}


class Fleet:
    """`n_replicas` of `n_slots` each, with one `router`."""

    def __init__(self, policy: Policy, n_replicas: int, n_slots: int, router: Router, seed: int = 1) -> None:
        self._arrivals: Arrivals = []
        replies = count(1 << 30)  # unique tokens
        self.replicas = [
            Simulation(policy, n_slots, arrivals=self._arrivals, replies=replies) for _ in range(n_replicas)
        ]
        self._router = router
        self._trace = Trace(seed, self.replicas[0].machine.info.n_ctx_seq)
        for i in range(PEOPLE * n_slots * n_replicas):
            session = self._trace.session()
            heapq.heappush(self._arrivals, (pause_s(session), i, session))

    @property
    def n_done(self) -> int:
        """Requests that had their first token."""
        return sum(len(replica.results.first_token) for replica in self.replicas)

    def run(self, n_requests: int) -> None:
        """Run until `n_requests` had their first token."""
        while self.n_done < n_requests:
            for _ in range(100):
                busy = [replica for replica in self.replicas if replica.n_requests]
                slowest = min(busy, key=lambda replica: replica.machine.now) if busy else None
                if self._arrivals and (slowest is None or self._arrivals[0][0] <= slowest.machine.now):
                    self._route(*heapq.heappop(self._arrivals))
                elif slowest is not None:
                    slowest.step()

    def _route(self, at: float, number: int, session: Session) -> None:
        session = self._trace.next_of(session)
        replica = self.replicas[self._router(session.history, [each.n_requests for each in self.replicas])]
        if not replica.n_requests:
            replica.rest_until(at)
        replica.take(at, number, session)

    def figures(self) -> dict[str, float]:
        """Return the figures of all replicas."""
        results = [replica.results for replica in self.replicas]
        times = np.concatenate([np.frombuffer(one.first_token) for one in results])
        simulated_s = max(replica.machine.now for replica in self.replicas)
        each = Counter({i: len(one.first_token) for i, one in enumerate(results)})
        return {
            "requests": len(times),
            "hit_rate": sum(one.n_cached for one in results) / sum(one.n_prompt for one in results),
            "first_token_p50_s": float(np.quantile(times, 0.5)),
            "first_token_p99_s": float(np.quantile(times, 0.99)),
            "requests_per_s": len(times) / simulated_s,
            "most_at_one": max(each.values()) / len(times),
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation.replicas", description=__doc__)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--slots", type=int, default=64, help="slots per replica")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--routers", default="random,least,prefix")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="append each result as a line to this file")
    arguments = parser.parse_args()
    for name in arguments.routers.split(","):
        router = routers(arguments.slots, arguments.seed)[name]
        fleet = Fleet(with_ram(arguments.slots), arguments.replicas, arguments.slots, router, arguments.seed)
        fleet.run(arguments.requests)
        row = {"router": name, "replicas": arguments.replicas, "slots": arguments.slots, **fleet.figures()}
        print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
        if arguments.json is not None:
            with arguments.json.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
