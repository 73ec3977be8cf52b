"""How OpenMP's threads should wait at a barrier: both servers under the same policies, in turn.

``python -m benchmarks.compare.waiting [--policies "default;GOMP_SPINCOUNT=2000;OMP_WAIT_POLICY=passive"] [--rounds 3]``

A policy is variables of the environment, separated by spaces; ``default`` sets none, so that each server does what it
does by itself. Prints a table of medians: tokens per second, and requests per second.
"""

import argparse
import statistics
import sys
from dataclasses import replace

from benchmarks.compare.__main__ import machine_of, parse
from benchmarks.compare.units import SERVERS, Unit, measure

POLICIES = "default;GOMP_SPINCOUNT=2000;GOMP_SPINCOUNT=infinity;OMP_WAIT_POLICY=passive"
SCENARIOS = ("one", "slots", "rate", "contended")
FIGURES = ("tok/s", "requests/s")


def main() -> None:
    """Command line: what `compare` takes, and the policies."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare.waiting", description=__doc__.splitlines()[0])
    parser.add_argument("--policies", default=POLICIES)
    own, rest = parser.parse_known_args()
    chosen = parse(rest)
    machine = machine_of(chosen)
    names = tuple(name for name in chosen.names if name in SCENARIOS)
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for number in range(1, chosen.rounds + 1):
        for policy in own.policies.split(";"):
            variables = dict(word.split("=") for word in policy.split() if "=" in word)
            wanted = dict.fromkeys(SERVERS if number % 2 else reversed(SERVERS), names)
            under = replace(machine, environment=variables)
            for server, one in measure(Unit("waiting", names), wanted, number, under):
                value = next(one.figures[figure] for figure in FIGURES if figure in one.figures)
                found.setdefault((policy, server), {}).setdefault(one.name, []).append(value)
                said = f"{number} {policy} {server} {one.name} {value:.1f}, others {one.others:.1%}"
                print(said, file=sys.stderr, flush=True)
    print(f"| waiting | server | {' | '.join(names)} |\n|---|---|{'--:|' * len(names)}")
    for (policy, server), rates in found.items():
        print(f"| `{policy}` | {server} | {' | '.join(f'{statistics.median(rates[name]):.1f}' for name in names)} |")


if __name__ == "__main__":
    main()
