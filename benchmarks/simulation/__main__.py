"""Run the comparison (two minutes) and print each result; with ``--json`` also append it to a file."""

import argparse
import gc
import json
import signal
from pathlib import Path

from benchmarks.simulation.policy import SHARED, SLOT_LOCAL, WHOLE_BATCHES, Policy, with_disk, with_ram
from benchmarks.simulation.run import PEOPLE, Results, Simulation


def policies(n_slots: int) -> dict[str, Policy]:
    return {
        "batches": WHOLE_BATCHES,
        "local": SLOT_LOCAL,
        "shared": SHARED,
        "ram": with_ram(n_slots),
        "pinned": with_ram(n_slots, is_pinned=True),
        "disk": with_disk(n_slots),
    }


def figures(policy: Policy, n_slots: int, results: Results) -> dict[str, float | int | str]:
    """Return the reported figures of one simulation."""
    n = len(results.first_token)
    return {
        "policy": policy.name,
        "slots": n_slots,
        "requests": n,
        "hit_rate": results.hit_rate,
        "first_token_p50_s": results.first_token_s(0.5),
        "first_token_p99_s": results.first_token_s(0.99),
        "gap_p50_ms": results.gap_s(0.5) * 1e3,
        "gap_p99_ms": results.gap_s(0.99) * 1e3,
        "gap_max_ms": results.gap_s(1.0) * 1e3,
        "requests_per_s": n / results.simulated_s,
        "prompt_tokens": results.n_prompt / n,
        "output_tokens": results.n_output / n,
        "evaluations_a_step": results.n_evaluations / max(results.n_steps, 1),
        "tokens_a_step": results.n_batch / max(results.n_steps, 1),
        "saves": results.n_saves,
        "loads": results.n_loads,
        "relocations": results.n_relocations,
        "disk_reads": results.n_disk_reads,
        "disk_hits": results.n_disk_hits,
        "moved_share": results.moved_s / results.simulated_s,
        "cpu_s": results.real_s,
    }


def main() -> None:
    """Simulate each policy with each number of slots."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--slots", default="64,256,512", help="comma-separated numbers of slots")
    parser.add_argument("--requests", type=int, default=4000, help="replies per simulation (1000000 take hours)")
    parser.add_argument(
        "--policies", default="local,shared,ram", help="comma-separated: batches, local, shared, ram, pinned, disk"
    )
    parser.add_argument("--people", type=int, default=PEOPLE, help="users per slot")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="append each result as a line to this file")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # the first signal ends a simulation; its figures so far count
        signal.signal(number, signal.default_int_handler)
    gc.disable()  # no important cycles here, and a full collection would traverse all token lists
    for n_slots in map(int, arguments.slots.split(",")):
        for name in arguments.policies.split(","):
            policy = policies(n_slots)[name]
            simulation = Simulation(policy, n_slots, arguments.seed, people=arguments.people)
            row = figures(policy, n_slots, simulation.run(arguments.requests))
            rounded = json.dumps({key: _rounded(value) for key, value in row.items()})
            print(f"{policy.name}, {n_slots} slots: {rounded}", flush=True)
            if arguments.json is not None:
                with arguments.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def _rounded(value: float | int | str) -> float | int | str:
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
