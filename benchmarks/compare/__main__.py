"""Measure Llamapool against llama-server: the same model, threads, context and slots, in turn.

``python -m benchmarks.compare [--rounds 3] [--scenario one,slots] [--json results.json]``

Each unit of a round starts a server of every arm (`units.ARMS`). Each scenario runs on one after the other, because a
processor's clock may differ by a tenth from one minute to the next; every second round takes the arms in reverse. The
JSON is written after each scenario. A run that was cut off continues from it; a complete one, and one of another
commit, is measured again from the start. A run in which other processes took too much of the CPU is not complete: the
next one measures those figures again. See ``benchmarks/README.md``.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.compare.units import ARMS, NAMES, ONCE, REGULAR, UNITS, Kind, Machine, Measured, Unit, measure
from benchmarks.make_gguf import SHAPES, write_gguf
from benchmarks.media import projector_for
from benchmarks.noise import CALM
from benchmarks.report import tables
from server.bench.client import BenchError
from server.llama.files.gguf_header import read_header
from tests.support.peer import PeerError, build
from tests.support.real_server import ServerStartError

MODELS = Path(__file__).parents[1] / "models"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare Llamapool with llama-server.")
    parser.add_argument("--model", type=Path, help="a GGUF; by default one with random weights is made")
    parser.add_argument("--size", choices=SHAPES, default="135m", help="of the one that is made (%(default)s)")
    parser.add_argument("--large-vocabulary", type=Path, help="for constrained output; one of 150k tokens is made")
    parser.add_argument("--real-model", type=Path, help="a trained one, for what begins with real-")
    parser.add_argument("--peer", type=Path, help="llama-server; tests.support.peer builds it by default")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--ctx", type=int, default=16384, help="tokens of all slots together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenario", default="", help="comma-separated, of " + ",".join(NAMES))
    parser.add_argument("--scale", type=float, default=1.0, help="of lengths and counts")
    parser.add_argument("--budget-s", type=float, default=1500.0, help="start nothing that would end after this")
    parser.add_argument("--only", choices=ARMS, help="one arm alone")
    parser.add_argument("--flags", default="", help="more flags for both, separated by spaces, as --flags='-ngl 99'")
    parser.add_argument("--llamapool-flags", default="", help="more flags for Llamapool")
    parser.add_argument("--json", type=Path, help="keep everything here: a run that is cut off goes on from it")
    chosen = parser.parse_args(argv)
    names = chosen.scenario.split(",") if chosen.scenario else list(REGULAR)
    if unknown := set(names) - set(NAMES):
        parser.error(f"unknown scenario: {', '.join(sorted(unknown))}")
    chosen.names = tuple(name for name in NAMES if name in names)
    chosen.servers = (chosen.only,) if chosen.only else tuple(ARMS)
    return chosen


class Comparison:
    """Results so far, and what is left to do."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._chosen = chosen
        self._machine = machine_of(chosen)
        self._began = time.monotonic()
        self._longest: dict[str, float] = {}  # seconds that a unit took
        options = {"threads": chosen.threads, "slots": chosen.slots, "ctx": chosen.ctx, "scale": chosen.scale}
        options |= {name: self._machine.models[name].name for name in self._machine.models}
        options |= {"flags": chosen.flags, "llamapool flags": chosen.llamapool_flags}
        self.result: dict[str, Any] = {
            "environment": environment.describe("benchmarks.compare")
            | {
                "models": {
                    kind: environment.model(path) for kind, path in sorted(self._machine.models.items(), key=_order)
                }
            }
            | {"arms": {name: " ".join(arm.flags) for name, arm in ARMS.items() if name in chosen.servers}},
            "options": options,
            "scenarios": [
                name
                for unit in UNITS
                for name in unit.names
                if name in chosen.names and unit.model in self._machine.models
            ],
            "runs": [],
            "failures": [],
            "complete": False,
        }
        self._continue()

    def _continue(self) -> None:
        """Take over what an earlier run that was cut off has measured. Exits when that was something else."""
        file = self._chosen.json
        if file is None or not file.exists():
            return
        earlier = json.loads(file.read_text())
        if earlier["complete"]:
            return
        if earlier["environment"]["commit"] != self.result["environment"]["commit"]:
            print(f"{file} is of commit {earlier['environment']['commit']}: measuring everything", file=sys.stderr)
            return
        if earlier["options"] != self.result["options"]:
            raise SystemExit(f"{file} was measured with other options: {earlier['options']}; remove it or name another")
        calm = [run for run in earlier["runs"] if not _disturbed(run)]
        scenarios = [name for name in NAMES if name in {*earlier["scenarios"], *self.result["scenarios"]}]
        self.result = {**earlier, "runs": calm, "failures": [], "scenarios": scenarios}
        again = f", {n} were disturbed" if (n := len(earlier["runs"]) - len(calm)) else ""
        print(f"going on with {file}: {len(calm)} figures are there{again}", file=sys.stderr)

    def run(self) -> None:
        """Everything that fits the budget."""
        fitted = True
        units = [unit for unit in UNITS if unit.model in self._machine.models]
        for number in range(1, self._chosen.rounds + 1):
            for unit in units:
                if not unit.once:
                    fitted &= self._unit(unit, number)
        for unit in units:  # these take long: last, for what the budget leaves
            if unit.once:
                fitted &= self._unit(unit, 1)
        disturbed = any(map(_disturbed, self.result["runs"]))
        self.result["complete"] = fitted and not disturbed and not self.result["failures"]
        self._save()

    def _unit(self, unit: Unit, number: int) -> bool:
        """Measure what is missing of it; False when that would not fit the budget."""
        done = {(run["server"], run["scenario"]) for run in self.result["runs"] if run["round"] == number}
        wanted = {
            server: [
                name for name in unit.measured_by(server) if name in self._chosen.names and (server, name) not in done
            ]
            for server in (unit.arms if number % 2 else reversed(unit.arms))
            if server in self._chosen.servers
        }
        if not any(wanted.values()):
            return True
        began = time.monotonic()
        if began - self._began + self._longest.get(unit.name, 0.0) > self._chosen.budget_s:
            print(f"round {number} {unit.name} would not fit the budget", file=sys.stderr)
            return False
        try:
            for server, measured in measure(unit, wanted, number, self._machine):
                self._keep(server, number, measured)
        except (BenchError, ServerStartError) as error:
            print(f"round {number} {unit.name} failed: {error}", file=sys.stderr)
            self.result["failures"].append({"round": number, "unit": unit.name, "why": str(error)})
        took = time.monotonic() - began
        self._longest[unit.name] = max(took, self._longest.get(unit.name, 0.0))
        return True

    def _keep(self, server: str, number: int, measured: Measured) -> None:
        shown = ", ".join(f"{figure} {value:.4g}" for figure, value in measured.figures.items())
        at = f"{time.monotonic() - self._began:5.0f} s  round {number} {server:15} {measured.name:16}"
        print(f"{at} {shown} (others {measured.others:.0%})", file=sys.stderr, flush=True)
        run = {"round": number, "server": server, "scenario": measured.name, "metrics": measured.figures}
        self.result["runs"].append({**run, "others": measured.others})
        self._save()

    def _save(self) -> None:
        """Never half of it, whenever this process is ended."""
        file = self._chosen.json
        if file is None:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(file.name + ".part")
        part.write_text(json.dumps(self.result, indent=1))
        part.replace(file)


def _disturbed(run: dict[str, Any]) -> bool:
    """Whether others had so much of the machine that the next run is to measure it again."""
    return bool(run["others"] > CALM and run["scenario"] not in ONCE)


def machine_of(chosen: argparse.Namespace) -> Machine:
    """What the command line says; the peer and the models are made where they are missing."""
    models: dict[Kind, Path] = {
        "random": chosen.model.resolve() if chosen.model else _made(chosen.size),
    }
    if "constrained" in chosen.names:
        models["large"] = chosen.large_vocabulary.resolve() if chosen.large_vocabulary else _made("135m-150k")
    if chosen.real_model:
        models["trained"] = chosen.real_model.resolve()
    try:
        peer = chosen.peer or (build() if "peer" in chosen.servers else Path())
    except PeerError as error:
        raise SystemExit(str(error)) from None
    return Machine(
        peer=peer,
        models=models,
        threads=chosen.threads,
        slots=chosen.slots,
        ctx=chosen.ctx,
        scale=chosen.scale,
        flags=tuple(chosen.flags.split()),
        llamapool_flags=tuple(chosen.llamapool_flags.split()),
        projector=projector_for(MODELS, _n_embd(models["random"])) if "media" in chosen.names else Path(),
    )


def _n_embd(model: Path) -> int:
    header = read_header(model)
    return header.integer(f"{header.metadata['general.architecture']}.embedding_length")


def _made(size: str) -> Path:
    """The model of that size, written the first time."""
    shape = SHAPES[size]
    path = MODELS / f"bench-{size}-{shape.n_layer}x{shape.n_vocab}.gguf"
    if not path.exists():
        print(f"writing {path}", file=sys.stderr)
        MODELS.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        write_gguf(part, shape)
        part.replace(path)
    return path


def _order(item: tuple[Kind, Path]) -> int:
    return ("trained", "random", "large").index(item[0])


def main() -> None:
    comparison = Comparison(parse())
    environment.write_bytecode()
    comparison.run()
    print(tables(comparison.result))
    if not comparison.result["complete"]:
        raise SystemExit("not complete: run the same command again, on a quiet machine")


if __name__ == "__main__":
    main()
