"""Run MaskBench, 11,305 real-world JSON Schemas with valid and invalid instances, through the server's constraints.

``python -m benchmarks.schemas.maskbench --data DIR --model GGUF [--json new.json] [--diff old.json]``

The suite is guidance-ai/jsonschemabench, folder ``maskbench/data``; `make maskbench` downloads it. Each schema is
compiled like a ``response_format``, in a worker process whose time and memory are measured. The exit status is 1 if a
target is missed: no schema may take more than `MAX_S` or `MAX_MB`, fail in the middle of a reply, or accept an invalid
instance.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.schemas.instances import spellings, tokens_of, write
from benchmarks.schemas.workers import Limits, Outcome, measured, tree_cpu_s
from server.errors import InvalidRequest
from server.llama.loader import FileVocabulary
from server.pool.spec import ModelSpec
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.grammar.sandbox import Sandbox
from server.structured.response_format import ResponseFormat
from server.vocab import Vocab

MAX_S = 2.0
MAX_MB = 500.0
FIELD = "response_format.json_schema.schema"

PASSED = "passing"
REFUSED = "compile error"
REJECTED = "valid rejected"
ACCEPTED = "invalid accepted"
FAILED = "failed mid-reply"
CRASHED = "internal error"
KILLED = "killed"
VERDICTS = (PASSED, REFUSED, REJECTED, ACCEPTED, FAILED, CRASHED, KILLED)
ALLOWED = (PASSED, REFUSED, REJECTED)

PUBLISHED = {  # guidance-ai/jsonschemabench, maskbench/README.md
    "LLGuidance 0.7.10": ("8,909", "2,377", "20", "0", "64"),
    "XGrammar 0.1.17": ("8,122", "90", "1,408", "1,368", "728"),
    "llama.cpp (llama-cpp-python 0.3.8)": ("6,505", "1,301", "2,850", "649", "16,565"),
}


@dataclass(slots=True)
class Judged:
    """The result of one schema. ``why``: the error, or the first instance with a wrong result."""

    verdict: str = PASSED
    why: str = ""
    compile_us: int = 0
    compile_cpu_s: float = 0.0
    mask_us: "array[int]" = field(default_factory=lambda: array("I"))

    def note(self, verdict: str, why: str) -> None:
        if VERDICTS.index(verdict) > VERDICTS.index(self.verdict):
            self.verdict, self.why = verdict, why


def ready_compiler(vocab: Vocab) -> GrammarCompiler:
    """Return a compiler as in the server, whose sandbox has started and has loaded the vocabulary."""
    compiler = GrammarCompiler(vocab, Sandbox())
    compiler.json_schema({"type": "string", "pattern": "^a"})
    return compiler


class Judge:
    """Tests the files of the suite with a model's vocabulary."""

    def __init__(self, model: Path) -> None:
        self._file = FileVocabulary(ModelSpec("maskbench", model))
        self._vocab = self._file.vocab
        self._compiler = ready_compiler(self._vocab)

    def __call__(self, path: Path) -> Judged:
        """Compile the schema of a file, then feed all its instances."""
        suite = json.loads(path.read_text())
        judged, response_format = Judged(), ResponseFormat("schema", suite["schema"], FIELD)
        own, start = os.getpid(), time.perf_counter()
        cpu_before = tree_cpu_s(own)
        try:
            response_format.constraint(self._compiler)
        except InvalidRequest as error:
            judged.note(REFUSED, error.message)
        except Exception as error:  # noqa: BLE001 (any exception is a finding)
            judged.note(CRASHED, repr(error))
        judged.compile_us = int((time.perf_counter() - start) * 1e6)
        judged.compile_cpu_s = tree_cpu_s(own) - cpu_before
        if judged.verdict == PASSED:
            for number, test in enumerate(suite["tests"]):
                self._write(judged, response_format, number, test)
        return judged

    def _write(self, judged: Judged, response_format: ResponseFormat, number: int, test: dict[str, Any]) -> None:
        """Feed the JSON texts of an instance until one is accepted."""
        accepted = False
        for text in spellings(response_format.value, test["data"]):
            try:
                reply = write(response_format.constraint(self._compiler), tokens_of(self._vocab, text))
            except Exception as error:  # noqa: BLE001 (any exception is a finding)
                judged.note(CRASHED, f"test {number}: {error!r}")
                return
            judged.mask_us.extend(reply.mask_us)
            if reply.failure:
                judged.note(FAILED, f"test {number}: {reply.failure}")
            accepted = reply.accepted
            if accepted:
                break
        if accepted and not test["valid"]:
            judged.note(ACCEPTED, f"test {number}: {test.get('rust_error', '')}"[:200])
        elif test["valid"] and not accepted:
            judged.note(REJECTED, f"test {number}")


@dataclass(slots=True)
class Row:
    """One schema in the report. ``cpu_s``: of the compilation; ``mb``: peak memory beyond that of a new worker."""

    verdict: str
    why: str
    cpu_s: float
    mb: float

    @property
    def breaks(self) -> bool:
        """Whether a target is missed. The sandbox may try a schema twice before it is refused."""
        limit_s = 2 * MAX_S if self.verdict == REFUSED else MAX_S
        return self.verdict not in ALLOWED or self.cpu_s > limit_s or self.mb > MAX_MB


class Report:
    """Collects outcomes and writes the table."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self._mask_us: Counter[int] = Counter()
        self._compile_us: list[int] = []

    def add(self, outcome: Outcome[Path, Judged]) -> Row:
        judged = outcome.result or Judged(KILLED, outcome.died, compile_cpu_s=outcome.cpu_s)
        row = Row(judged.verdict, judged.why, round(judged.compile_cpu_s, 2), round(outcome.mb))
        self.rows[outcome.item.stem] = row
        if judged.verdict not in (REFUSED, CRASHED, KILLED):
            self._compile_us.append(judged.compile_us)
        self._mask_us.update(judged.mask_us)
        return row

    def counts(self) -> dict[str, int]:
        found = Counter(row.verdict for row in self.rows.values())
        return {verdict: found[verdict] for verdict in VERDICTS}

    def figures(self) -> dict[str, float]:
        """Return times in microseconds, the largest costs, and the number of masks."""
        masks = sorted(self._mask_us.items())
        total = sum(n for _, n in masks)
        compiled = sorted(self._compile_us) or [0]
        mean = sum(us * n for us, n in masks) / max(1, total)
        return {
            "masks": total,
            "mask_us_mean": round(mean, 1),
            **{f"mask_us_p{100 * share:g}": _quantile(masks, total, share) for share in (0.5, 0.9, 0.99, 0.999, 1.0)},
            "compile_us_mean": round(sum(compiled) / len(compiled)),
            **{
                f"compile_us_p{100 * share:g}": compiled[min(len(compiled) - 1, int(share * len(compiled)))]
                for share in (0.5, 0.9, 0.99, 0.999, 1.0)
            },
            "largest_compile_cpu_s": max(row.cpu_s for row in self.rows.values()),
            "largest_mb": max(row.mb for row in self.rows.values()),
        }

    def table(self) -> str:
        """Return a Markdown table of this run and the published ones."""
        counts, figures = self.counts(), self.figures()
        lines = [
            "| engine | passing | compile error | valid rejected | invalid accepted | failed mid-reply | µs a mask |",
            "|---|--:|--:|--:|--:|--:|--:|",
            f"| Llamapool | {counts[PASSED]:,} | {counts[REFUSED]:,} | {counts[REJECTED]:,} | {counts[ACCEPTED]:,}"
            f" | {counts[FAILED] + counts[CRASHED] + counts[KILLED]:,} | {figures['mask_us_mean']:.0f} |",
        ]
        for engine, (passing, refused, rejected, accepted, mask_us) in PUBLISHED.items():
            lines.append(f"| {engine}, published | {passing} | {refused} | {rejected} | {accepted} | | {mask_us} |")
        lines += ["", "| | mean | p50 | p90 | p99 | p99.9 | most |", "|---|--:|--:|--:|--:|--:|--:|"]
        for name, key in (("µs a mask", "mask_us"), ("µs to compile, with the first mask", "compile_us")):
            values = [figures[f"{key}_{part}"] for part in ("mean", "p50", "p90", "p99", "p99.9", "p100")]
            lines.append(f"| {name} | {' | '.join(f'{value:,.0f}' for value in values)} |")
        costs = f"{figures['largest_compile_cpu_s']:.2f} s of CPU to compile, {figures['largest_mb']:.0f} MB"
        return "\n".join([*lines, "", f"{len(self.rows):,} schemas; the most that one takes: {costs}."])

    def broken(self) -> list[str]:
        """Return a line for each schema that misses a target."""
        return [
            f"{name}: {row.verdict}, {row.cpu_s:.2f} s, {row.mb:.0f} MB: {row.why[:200]}"
            for name, row in sorted(self.rows.items())
            if row.breaks
        ]

    def document(self, model: Path) -> dict[str, Any]:
        """Return the run as JSON. Schemas of the suite that are not in ``schemas`` pass."""
        return {
            "commit": _output("git", "describe", "--always", "--dirty"),
            "cpu": _cpu(),
            "model": model.name,
            "versions": {name: version(name) for name in ("llguidance", "llama-cpp-python")},
            "counts": self.counts(),
            "figures": self.figures(),
            "costly": {
                name: [row.cpu_s, row.mb]
                for name, row in sorted(self.rows.items())
                if row.cpu_s > MAX_S / 4 or row.mb > MAX_MB / 4
            },
            "schemas": {
                name: [row.verdict, row.why[:200]] for name, row in sorted(self.rows.items()) if row.verdict != PASSED
            },
        }


def differences(old: dict[str, Any], rows: dict[str, Row]) -> list[str]:
    """Return a line for each schema whose verdict has changed since the JSON of an earlier run."""
    before = {name: each[0] for name, each in old["schemas"].items()}
    return [
        f"{name}: {before.get(name, PASSED)} -> {row.verdict} {row.why[:160]}"
        for name, row in sorted(rows.items())
        if before.get(name, PASSED) != row.verdict
    ]


def _quantile(counted: list[tuple[int, int]], total: int, share: float) -> int:
    n_lower = 0
    for value, n in counted:
        n_lower += n
        if n_lower >= share * total:
            return value
    return 0


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip()


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> int:
    parser = argparse.ArgumentParser(description="MaskBench through the server's own constraints.")
    parser.add_argument("--data", type=Path, required=True, help="the suite's folder of JSON files")
    parser.add_argument("--model", type=Path, required=True, help="a GGUF; only its vocabulary is read")
    parser.add_argument("--only", default="", help="files whose names contain this")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the run here")
    parser.add_argument("--diff", type=Path, help="the JSON of an earlier run: print the verdicts that have changed")
    options = parser.parse_args()
    files = [path for path in sorted(options.data.glob("*.json")) if options.only in path.name]
    if not files:
        parser.error(f"{options.data} has no JSON files{f' with {options.only!r} in their names' * bool(options.only)}")
    report = Report()
    for outcome in measured(partial(Judge, options.model), files, options.workers, Limits()):
        row = report.add(outcome)
        if row.breaks:
            print(f"{outcome.item.stem}: {row.verdict}, {row.cpu_s} s, {row.mb} MB: {row.why}", file=sys.stderr)
        if len(report.rows) % 500 == 0:
            print(f"{len(report.rows)} of {len(files)}", file=sys.stderr, flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report.document(options.model), indent=0, ensure_ascii=False) + "\n")
    print(report.table())
    if options.diff:
        changed = differences(json.loads(options.diff.read_text()), report.rows)
        print("\n".join([f"\n{len(changed)} verdicts have changed since {options.diff}:", *changed]))
    broken = report.broken()
    if broken:
        print("\n".join([f"\n{len(broken)} schemas miss a target:", *broken]))
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
