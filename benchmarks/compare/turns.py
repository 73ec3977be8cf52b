"""Throughput by turns: both servers are up, and each run of a scenario goes to one after the other.

``python -m benchmarks.compare.turns [--scenario one,slots,real-other] [--turns 10] [--also "--spec-type none"]``

A processor's clock differs by a tenth from one minute to the next, and `compare` measures its two servers minutes
apart: this tells what they differ by in less. ``--also`` is a Llamapool with more flags, as one more that takes turns.
Prints medians; the ratio to the peer of each turn, its median and quartiles; and that of the time that all turns took.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.compare.__main__ import machine_of, parse
from benchmarks.compare.units import TITLES, UNITS, Machine, Unit, named_scenario, started
from benchmarks.compare.waiting import FIGURES
from server.bench.client import ModelClient, Target
from server.bench.scenarios import Setting, run, words_per_word

SCENARIOS = (
    *("one", "slots", "rate", "constrained"),
    *("real-one", "real-slots", "real-constrained", "real-edit", "real-quote", "real-other"),
)
SEED = 500  # of the first turn: no round of `compare` has it
Rates = dict[str, list[float]]
"""Tokens or requests per second of each server, turn by turn."""


def measured(
    unit: Unit, names: Sequence[str], machine: Machine, turns: int, also: Sequence[str]
) -> Iterator[tuple[str, Rates]]:
    """One scenario of the unit after the other."""
    arms = {"llamapool": machine, "peer": machine}
    arms |= {f"llamapool {flags}": replace(machine, llamapool_flags=tuple(flags.split())) for flags in also}
    with ExitStack() as up:
        sessions = {}
        for arm, under in arms.items():
            running, _ = up.enter_context(started(arm.split()[0], unit, under))
            sessions[arm] = ModelClient(Target(running.host, running.port), "bench")
        fit = asyncio.run(words_per_word(sessions["peer"]))
        for name in names:
            rates: Rates = {arm: [] for arm in arms}
            for turn in range(-1, turns):  # what is done once, is done before the first
                for arm in list(arms) if turn % 2 else reversed(arms):
                    figures = run(
                        named_scenario(name), sessions[arm], Setting(SEED + turn, machine.slots, machine.scale, fit)
                    )
                    rate = next(figures[figure] for figure in FIGURES if figure in figures)
                    print(f"{name} {turn} {arm} {rate:.1f}", file=sys.stderr, flush=True)
                    if turn >= 0:
                        rates[arm].append(rate)
            yield name, rates


def rows(name: str, rates: Rates) -> list[str]:
    """Of the table, one for each server."""
    found, peer = [], rates["peer"]
    for arm, each in rates.items():
        low, middle, high = statistics.quantiles([ours / theirs for ours, theirs in zip(each, peer, strict=True)], n=4)
        took = sum(1 / theirs for theirs in peer) / sum(1 / ours for ours in each)
        ratio = f"{middle:.2f} ({low:.2f} to {high:.2f}) | {took:.2f}" if arm != "peer" else "| "
        found.append(f"| {TITLES[name]} | {arm} | {statistics.median(each):.1f} | {ratio} |")
    return found


def main() -> None:
    """Command line: what `compare` takes, and the number of turns."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare.turns", description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--also", action="append", default=[], help="flags of one more Llamapool")
    own, rest = parser.parse_known_args()
    chosen = parse(rest)
    machine = machine_of(chosen)
    print("| | server | a second | ratio of a turn | of all |\n|---|---|--:|--:|--:|")
    for unit in UNITS:
        names = [name for name in unit.names if name in chosen.names and name in SCENARIOS]
        if names and unit.model in machine.models:
            for name, rates in measured(unit, names, machine, own.turns, own.also):
                print("\n".join(rows(name, rates)), flush=True)


if __name__ == "__main__":
    main()
