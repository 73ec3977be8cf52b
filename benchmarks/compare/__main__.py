"""Compare Llamapool with llama-server, with the same model, threads, context and slots.

``python -m benchmarks.compare [--rounds 3] [--scenario one,slots] [--json results.json]``

Each unit of a round starts a server of every arm (`units.ARMS`). Each scenario runs on one server after the other,
because a CPU's clock may change by 10% within a minute; every second round takes the arms in reverse order. The JSON is
written after each scenario. An interrupted run continues from it. A complete run, or one of another commit, starts
again. A run in which other processes used too much of the CPU is not complete, and the next run measures those figures
again. See ``benchmarks/README.md``.
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
    parser.add_argument("--model", type=Path, help="a GGUF file (default: generated with random weights)")
    parser.add_argument("--size", choices=SHAPES, default="135m", help="of the generated model (%(default)s)")
    parser.add_argument(
        "--large-vocabulary", type=Path, help="for constrained output (default: generated, 150k tokens)"
    )
    parser.add_argument("--real-model", type=Path, help="a trained model, for the scenarios real-*")
    parser.add_argument("--peer", type=Path, help="path of llama-server (default: built by tests.support.peer)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--ctx", type=int, default=16384, help="context tokens of all slots")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenario", default="", help="comma-separated: " + ",".join(NAMES))
    parser.add_argument("--scale", type=float, default=1.0, help="factor for lengths and counts")
    parser.add_argument("--budget-s", type=float, default=1500.0, help="start no unit that would end later")
    parser.add_argument("--only", choices=ARMS, help="measure only this arm")
    parser.add_argument("--flags", default="", help="more flags for both servers, as --flags='-ngl 99'")
    parser.add_argument("--llamapool-flags", default="", help="more flags for Llamapool")
    parser.add_argument("--json", type=Path, help="store results here; an interrupted run continues from it")
    options = parser.parse_args(argv)
    names = options.scenario.split(",") if options.scenario else list(REGULAR)
    if unknown := set(names) - set(NAMES):
        parser.error(f"unknown scenario: {', '.join(sorted(unknown))}")
    options.names = tuple(name for name in NAMES if name in names)
    options.servers = (options.only,) if options.only else tuple(ARMS)
    return options


class Comparison:
    """A run of the comparison, with its results so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._machine = machine_of(options)
        self._started = time.monotonic()
        self._longest: dict[str, float] = {}  # seconds by unit
        described: dict[str, Any] = {
            "threads": options.threads,
            "slots": options.slots,
            "ctx": options.ctx,
            "scale": options.scale,
        }
        described |= {name: self._machine.models[name].name for name in self._machine.models}
        described |= {"flags": options.flags, "llamapool flags": options.llamapool_flags}
        self.result: dict[str, Any] = {
            "environment": environment.describe("benchmarks.compare")
            | {
                "models": {
                    kind: environment.model(path) for kind, path in sorted(self._machine.models.items(), key=_order)
                }
            }
            | {"arms": {name: " ".join(arm.flags) for name, arm in ARMS.items() if name in options.servers}},
            "options": described,
            "scenarios": [
                name
                for unit in UNITS
                for name in unit.names
                if name in options.names and unit.model in self._machine.models
            ],
            "runs": [],
            "failures": [],
            "complete": False,
        }
        self._continue()

    def _continue(self) -> None:
        """Load the results of an interrupted run. Exits if its options differ."""
        file = self._options.json
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
        print(f"continuing {file} with {len(calm)} results{again}", file=sys.stderr)

    def run(self) -> None:
        """Measure everything that fits into the time budget."""
        fitted = True
        units = [unit for unit in UNITS if unit.model in self._machine.models]
        for number in range(1, self._options.rounds + 1):
            for unit in units:
                if not unit.once:
                    fitted &= self._unit(unit, number)
        for unit in units:  # these take long, so they run last
            if unit.once:
                fitted &= self._unit(unit, 1)
        disturbed = any(map(_disturbed, self.result["runs"]))
        self.result["complete"] = fitted and not disturbed and not self.result["failures"]
        self._save()

    def _unit(self, unit: Unit, number: int) -> bool:
        """Measure the missing scenarios of a unit. Returns False if they do not fit into the time budget."""
        done = {(run["server"], run["scenario"]) for run in self.result["runs"] if run["round"] == number}
        missing = {
            server: [
                name for name in unit.measured_by(server) if name in self._options.names and (server, name) not in done
            ]
            for server in (unit.arms if number % 2 else reversed(unit.arms))
            if server in self._options.servers
        }
        if not any(missing.values()):
            return True
        started = time.monotonic()
        if started - self._started + self._longest.get(unit.name, 0.0) > self._options.budget_s:
            print(f"round {number} {unit.name} would not fit the budget", file=sys.stderr)
            return False
        try:
            for server, measured in measure(unit, missing, number, self._machine):
                self._store(server, number, measured)
        except (BenchError, ServerStartError) as error:
            print(f"round {number} {unit.name} failed: {error}", file=sys.stderr)
            self.result["failures"].append({"round": number, "unit": unit.name, "why": str(error)})
        seconds = time.monotonic() - started
        self._longest[unit.name] = max(seconds, self._longest.get(unit.name, 0.0))
        return True

    def _store(self, server: str, number: int, measured: Measured) -> None:
        figures = ", ".join(f"{figure} {value:.4g}" for figure, value in measured.figures.items())
        prefix = f"{time.monotonic() - self._started:5.0f} s  round {number} {server:15} {measured.name:16}"
        print(f"{prefix} {figures} (others {measured.others:.0%})", file=sys.stderr, flush=True)
        run = {"round": number, "server": server, "scenario": measured.name, "metrics": measured.figures}
        self.result["runs"].append({**run, "others": measured.others})
        self._save()

    def _save(self) -> None:
        """Write the results atomically."""
        file = self._options.json
        if file is None:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(file.name + ".part")
        part.write_text(json.dumps(self.result, indent=1))
        part.replace(file)


def _disturbed(run: dict[str, Any]) -> bool:
    """Return whether other processes used so much CPU time that the next run must measure it again."""
    return bool(run["others"] > CALM and run["scenario"] not in ONCE)


def machine_of(options: argparse.Namespace) -> Machine:
    """Return the machine for `options`. Builds the peer and generates models if they are missing."""
    models: dict[Kind, Path] = {
        "random": options.model.resolve() if options.model else _generated(options.size),
    }
    if "constrained" in options.names:
        models["large"] = options.large_vocabulary.resolve() if options.large_vocabulary else _generated("135m-150k")
    if options.real_model:
        models["trained"] = options.real_model.resolve()
    try:
        peer = options.peer or (build() if "peer" in options.servers else Path())
    except PeerError as error:
        raise SystemExit(str(error)) from None
    return Machine(
        peer=peer,
        models=models,
        threads=options.threads,
        slots=options.slots,
        ctx=options.ctx,
        scale=options.scale,
        flags=tuple(options.flags.split()),
        llamapool_flags=tuple(options.llamapool_flags.split()),
        projector=projector_for(MODELS, _n_embd(models["random"])) if "media" in options.names else Path(),
    )


def _n_embd(model: Path) -> int:
    header = read_header(model)
    return header.integer(f"{header.metadata['general.architecture']}.embedding_length")


def _generated(size: str) -> Path:
    """Return the path of the model with random weights of this size. Writes it if it does not exist."""
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
        raise SystemExit("not complete: run the same command again, on an idle machine")


if __name__ == "__main__":
    main()
