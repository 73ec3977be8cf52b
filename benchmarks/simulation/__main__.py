"""Run the comparison (two minutes) and print each result; with ``--json`` also append it to a file."""

import argparse
import gc
import json
import signal
from pathlib import Path

from benchmarks.simulation.policy import SHARED, SLOT_LOCAL, WHOLE_BATCHES, Policy, with_disk, with_ram
from benchmarks.simulation.run import PEOPLE, Seen, Simulation


def policies(n_slots: int) -> dict[str, Policy]:
    return {
        "batches": WHOLE_BATCHES,
        "local": SLOT_LOCAL,
        "shared": SHARED,
        "ram": with_ram(n_slots),
        "pinned": with_ram(n_slots, is_pinned=True),
        "disk": with_disk(n_slots),
    }


def figures(policy: Policy, n_slots: int, seen: Seen) -> dict[str, float | int | str]:
    """What is reported of one simulation."""
    n = len(seen.first_token)
    return {
        "policy": policy.name,
        "slots": n_slots,
        "requests": n,
        "hit_rate": seen.hit_rate,
        "first_token_p50_s": seen.first_token_s(0.5),
        "first_token_p99_s": seen.first_token_s(0.99),
        "gap_p50_ms": seen.gap_s(0.5) * 1e3,
        "gap_p99_ms": seen.gap_s(0.99) * 1e3,
        "gap_max_ms": seen.gap_s(1.0) * 1e3,
        "requests_per_s": n / seen.simulated_s,
        "prompt_tokens": seen.n_prompt / n,
        "output_tokens": seen.n_output / n,
        "evaluations_a_step": seen.n_evaluations / max(seen.n_steps, 1),
        "tokens_a_step": seen.n_batch / max(seen.n_steps, 1),
        "saves": seen.n_saves,
        "loads": seen.n_loads,
        "relocations": seen.n_relocations,
        "disk_reads": seen.n_disk_reads,
        "disk_hits": seen.n_disk_hits,
        "moved_share": seen.moved_s / seen.simulated_s,
        "cpu_s": seen.real_s,
    }


def main() -> None:
    """Every policy at every number of slots, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--slots", default="64,256,512", help="numbers of slots, separated by commas")
    parser.add_argument("--requests", type=int, default=4000, help="replies of each simulation (1000000: hours)")
    parser.add_argument("--policies", default="local,shared,ram", help="of batches, local, shared, ram, pinned, disk")
    parser.add_argument("--people", type=int, default=PEOPLE, help="clients for each slot")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file to which results are added, a line each")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # the first one ends a simulation with the figures so far
        signal.signal(number, signal.default_int_handler)
    gc.disable()  # nothing here forms cycles that matter, and every full collection walks through all token lists
    for n_slots in map(int, arguments.slots.split(",")):
        for name in arguments.policies.split(","):
            policy = policies(n_slots)[name]
            simulation = Simulation(policy, n_slots, arguments.seed, people=arguments.people)
            found = figures(policy, n_slots, simulation.run(arguments.requests))
            short = json.dumps({key: _short(value) for key, value in found.items()})
            print(f"{policy.name}, {n_slots} slots: {short}", flush=True)
            if arguments.json is not None:
                with arguments.json.open("a") as file:
                    file.write(json.dumps(found) + "\n")


def _short(value: float | int | str) -> float | int | str:
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
