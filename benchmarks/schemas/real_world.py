"""How many real-world JSON Schemas compile, and whether everything that may be written under them validates.

``python -m benchmarks.schemas.real_world [--walks 3] [--source Kubernetes,...] [--json results.json]``

Each schema is compiled for a vocabulary of 151,936 tokens; each that compiles is walked several times (`walk`),
and each output is held against the schema by `jsonschema`, formats included. See ``benchmarks/experiments.md``.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for

from benchmarks.schemas.sources import Found, schemas
from benchmarks.schemas.walk import BenchVocab, NoEndError, Walker, endings
from server.errors import InvalidRequest
from server.structured.grammar.compiler import GrammarCompiler

SLOW_S = 5.0  # schemas that take longer are named


@dataclass(slots=True)
class Result:
    """Of one schema. ``outcomes``: one for each walk: valid, or what was wrong."""

    source: str
    name: str
    compile_ms: float
    refused: str = ""
    outcomes: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        """Whether it compiled and every output validated."""
        return not self.refused and all(outcome == "valid" for outcome in self.outcomes)


def measure(found: Found, compiler: GrammarCompiler, walker: Walker, n_walks: int) -> Result:
    """Compile, walk, validate."""
    started = time.thread_time()
    try:
        constraint = compiler.json_schema(found.schema)
    except InvalidRequest as error:
        return Result(found.source, found.name, (time.thread_time() - started) * 1e3, error.message)
    result = Result(found.source, found.name, (time.thread_time() - started) * 1e3)
    draft = validator_for(found.schema, default=Draft202012Validator)
    validator = draft(found.schema, format_checker=draft.FORMAT_CHECKER)
    ends = endings(found.schema)
    for seed in range(n_walks):
        try:
            tokens = walker.walk(constraint.fork(), Random(seed), free=(20, 60, 150)[seed % 3], endings=ends)
        except InvalidRequest as error:
            result.outcomes.append(f"gave up: {error.message}")
            continue
        except NoEndError:
            result.outcomes.append("no end")
            continue
        text = b"".join(walker.vocab.pieces[token] for token in tokens).decode("utf-8", "replace")
        result.outcomes.append(_judged(validator, text))
        result.outputs.append(text[:400])
    return result


def _judged(validator: Any, text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    try:
        worst = best_match(validator.iter_errors(value))
    except (re.error, RecursionError) as problem:
        return f"jsonschema cannot say: {problem!r}"[:200]
    if worst is None:
        return "valid"
    place = "/".join(map(str, worst.absolute_schema_path))
    return f"invalid: {worst.validator} at {place}: {worst.message[:200]}"


def keyword(refused: str) -> str:
    """What a refusal names."""
    if "regex" in refused:
        return "pattern"
    found = re.search(r"keyword '([^']+)'|('oneOf' whose branches)|(\$ref)", refused)
    if found:
        return next(part for part in found.groups() if part).strip("'")
    return re.sub(r"/[^ ]*/|'[^']*'|\"[^\"]*\"|\d+", "…", refused.removeprefix("json_schema: "))[:80]


def report(results: list[Result]) -> str:
    """Markdown tables."""
    lines = [
        "| source | schemas | compiled | all outputs valid | compile ms, median / worst |",
        "|---|--:|--:|--:|--:|",
    ]
    for source in [*dict.fromkeys(result.source for result in results), ""]:
        some = [result for result in results if source in ("", result.source)]
        compiled = [result for result in some if not result.refused]
        times = sorted(result.compile_ms for result in some)
        lines.append(
            f"| {source or 'all'} | {len(some)} | {len(compiled)} ({len(compiled) / len(some):.0%})"
            f" | {sum(result.valid for result in compiled)} | {times[len(times) // 2]:.0f} / {times[-1]:.0f} |"
        )
    lines += ["", "| refused because of | schemas |", "|---|--:|"]
    lines += _counts(keyword(result.refused) for result in results if result.refused)
    lines += ["", "| outcome of a walk | walks |", "|---|--:|"]
    lines += _counts(outcome.partition(":")[0] for result in results for outcome in result.outcomes)
    return "\n".join(lines)


def _counts(names: Iterable[str]) -> list[str]:
    return [f"| {name} | {n} |" for name, n in Counter(names).most_common()]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Share of real-world JSON Schemas that compile and hold.")
    parser.add_argument("--walks", type=int, default=3)
    parser.add_argument("--source", default="", help="comma-separated names of sources")
    parser.add_argument("--json", type=Path, help="write every result here")
    arguments = parser.parse_args()
    vocab = BenchVocab()
    compiler, walker = GrammarCompiler(vocab), Walker(vocab)
    compiler.json_schema({"type": "object"})  # the vocabulary is read once, not by the first schema
    wanted = set(arguments.source.split(",")) - {""}
    results = []
    for found in schemas():
        if not wanted or found.source in wanted:
            started = time.thread_time()
            results.append(measure(found, compiler, walker, arguments.walks))
            if time.thread_time() - started > SLOW_S:
                print(f"slow: {found.source} {found.name}: {results[-1].outcomes}", file=sys.stderr, flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=1, ensure_ascii=False))
    print(report(results))


if __name__ == "__main__":
    main()
