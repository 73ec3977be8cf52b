"""Fuzz the server's constraints with mutated MaskBench schemas.

``python -m benchmarks.schemas.fuzz --data DIR [--seconds 3600] [--seed 0]``

Each seed mutates a schema, or joins two. Findings are compilations beyond `MAX_S` or `MAX_MB`, failures in the middle
of a reply, exceptions other than `InvalidRequest`, and outputs that are invalid according to `jsonschema`, formats
included. Outputs are random tokens from the masks, or mutated instances that the constraint accepted. The schema of
each finding is written to ``build/fuzz-schemas``.
"""

import argparse
import copy
import itertools
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from benchmarks.schemas.instances import is_repetition, spellings, write
from benchmarks.schemas.maskbench import FIELD, MAX_MB, MAX_S, ready_compiler
from benchmarks.schemas.walk import BenchVocab, NoEndError, Walker, endings
from benchmarks.schemas.workers import Limits, measured, tree_cpu_s
from server.errors import InvalidRequest
from server.structured.grammar.schema.formats import FORMATS
from server.structured.response_format import ResponseFormat

Json = Any
FOUND = Path("build/fuzz-schemas")
_BOUNDS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
)
_VALUES = (0, 1, 2, -1, 0.5, 7, 63, 1000, 10**6, 2**31, 1e308)
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def mutated(schema: Json, other: Json, chance: Random) -> Json:
    """Return a mutated copy of `schema`, with keywords of `other` or joined with it."""
    whole = {"root": copy.deepcopy(schema)}
    for _ in range(chance.randint(1, 6)):
        holder, key = chance.choice(list(_places(whole)))
        node = holder[key]
        donor_holder, donor_key = chance.choice(list(_places({"root": other})))
        chance.choice(_MUTATIONS)(holder, key, node, donor_holder[donor_key], whole, chance)
    if chance.random() < 0.2 and isinstance(other, dict):
        whole["root"] = {chance.choice(["allOf", "anyOf", "oneOf"]): [whole["root"], copy.deepcopy(other)]}
    return whole["root"]


def _places(value: Json) -> Iterator[tuple[Json, Any]]:
    """Yield all objects below a value, each as its container and its key there."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in pairs:
        if isinstance(child, dict):
            yield value, key
        yield from _places(child)


def _swap(_: Json, __: Any, node: Json, donor: Json, ___: Json, chance: Random) -> None:
    if donor:
        keyword = chance.choice(list(donor))
        node[keyword] = copy.deepcopy(donor[keyword])


def _nest(holder: Json, key: Any, node: Json, donor: Json, _: Json, chance: Random) -> None:
    keyword = chance.choice(["allOf", "anyOf", "oneOf", "not", "if"])
    if keyword == "not":
        holder[key] = {"not": node} if chance.random() < 0.5 else {"allOf": [node], "not": copy.deepcopy(donor)}
    elif keyword == "if":
        holder[key] = {"if": copy.deepcopy(donor), "then": node, "else": {"type": chance.choice(_TYPES)}}
    else:
        holder[key] = {keyword: [node, copy.deepcopy(donor)]}


def _bound(_: Json, __: Any, node: Json, ___: Json, ____: Json, chance: Random) -> None:
    node[chance.choice(_BOUNDS)] = chance.choice(_VALUES)


def _duplicate(_: Json, __: Any, node: Json, donor: Json, ___: Json, chance: Random) -> None:
    listed = node.get("properties")
    if isinstance(listed, dict) and listed:
        name = chance.choice(list(listed))
        for n in range(chance.choice([1, 2, 30])):
            listed[f"{name}{n}"] = copy.deepcopy(listed[name])
        node["required"] = [each for each in listed if chance.random() < 0.5]
    else:
        node["properties"] = {"a": copy.deepcopy(donor)}


def _deepen(holder: Json, key: Any, node: Json, _: Json, whole: Json, chance: Random) -> None:
    root = whole["root"]
    if not isinstance(root, dict) or holder is whole:
        return
    defs = root.setdefault("$defs", {})
    if not isinstance(defs, dict):
        return
    first = len(defs)
    length = chance.choice([1, 2, 20])
    for n in range(length):
        defs[f"fuzz{first + n}"] = {"allOf": [{"$ref": f"#/$defs/fuzz{first + n + 1}"}]}
    last = {"type": "object", "properties": {"again": {"$ref": f"#/$defs/fuzz{first}"}}}
    defs[f"fuzz{first + length}"] = last if chance.random() < 0.3 else node
    holder[key] = {"$ref": f"#/$defs/fuzz{first}"}


def _format(_: Json, __: Any, node: Json, ___: Json, ____: Json, chance: Random) -> None:
    node.update({"type": "string", "format": chance.choice(sorted(FORMATS))})


def _close(_: Json, __: Any, node: Json, ___: Json, ____: Json, chance: Random) -> None:
    keyword = chance.choice(["additionalProperties", "unevaluatedProperties", "items", "uniqueItems"])
    node[keyword] = chance.choice([True, False, {"type": chance.choice(_TYPES)}])


def _drop(_: Json, __: Any, node: Json, ___: Json, ____: Json, chance: Random) -> None:
    if node:
        del node[chance.choice(list(node))]


_MUTATIONS: tuple[Callable[[Json, Any, Json, Json, Json, Random], None], ...] = (
    *(_swap, _swap, _nest, _nest, _bound, _duplicate, _deepen, _format, _close, _drop),
)


@dataclass(slots=True)
class Verdict:
    """``kind``: refused, held, unsure (`jsonschema` failed), or a finding, which ``why`` explains."""

    kind: str
    why: str
    compile_cpu_s: float
    schema: Json


class Fuzzer:
    def __init__(self, files: list[Path]) -> None:
        self._files = files
        self._vocab = BenchVocab(4000)
        self._compiler = ready_compiler(self._vocab)
        self._walker = Walker(self._vocab)
        warnings.simplefilter("ignore")  # Python's `re` and `jsonschema` warn about unusual schemas

    def __call__(self, job: tuple[int, bool]) -> Verdict:
        """Test a seed. With True, only compile its schema."""
        seed, compile_only = job
        chance = Random(seed)
        one, other = (json.loads(chance.choice(self._files).read_text()) for _ in range(2))
        schema = mutated(one["schema"], other["schema"], chance)
        response_format = ResponseFormat("schema", schema, FIELD)
        before = tree_cpu_s(os.getpid())
        try:
            constraint = response_format.constraint(self._compiler)
        except InvalidRequest as error:
            return Verdict("refused", error.message, tree_cpu_s(os.getpid()) - before, schema)
        except Exception as error:  # noqa: BLE001 (any exception is a finding)
            return Verdict("exception", repr(error), tree_cpu_s(os.getpid()) - before, schema)
        verdict = Verdict("held", "", tree_cpu_s(os.getpid()) - before, schema)
        if compile_only:
            return verdict
        draft = validator_for(schema, default=Draft202012Validator)
        validator = draft(schema, format_checker=draft.FORMAT_CHECKER)
        try:
            verdict.kind, verdict.why = self._check_generated(constraint, schema, validator, chance) or ("held", "")
            for test in one["tests"] if verdict.kind == "held" else ():
                found = self._check_instance(constraint, schema, _mutated_instance(test["data"], chance), validator)
                verdict.kind, verdict.why = found or (verdict.kind, verdict.why)
        except Exception as error:  # noqa: BLE001 (any exception is a finding)
            verdict.kind, verdict.why = "exception", repr(error)
        return verdict

    def _check_generated(self, constraint: Any, schema: Json, validator: Any, chance: Random) -> tuple[str, str] | None:
        """Generate outputs with random tokens. Returns the first problem and its explanation."""
        ends = endings(schema)
        for free in (5, 20, 60):
            try:
                tokens = self._walker.walk(constraint.fork(), chance, free=free, at_most=600, endings=ends)
            except NoEndError:
                continue
            except InvalidRequest as error:
                if is_repetition(error):
                    continue
                return "failed mid-reply", error.message
            text = b"".join(self._vocab.pieces[token] for token in tokens).decode("utf-8", "replace")
            if (refused := _refused(validator, json.loads(text))) is not None:
                return refused[0], f"{text[:300]}: {refused[1]}"
        return None

    def _check_instance(self, constraint: Any, schema: Json, instance: Json, validator: Any) -> tuple[str, str] | None:
        """Feed an instance to the constraint. Returns the first problem and its explanation."""
        for text in spellings(schema, instance):
            reply = write(constraint.fork(), list(text.encode("utf-8", "surrogatepass")))
            if reply.failure:
                return "failed mid-reply", reply.failure
            if reply.accepted and (refused := _refused(validator, instance)) is not None:
                return refused[0], f"{text[:300]}: {refused[1]}"
        return None


def _refused(validator: Any, instance: Json) -> tuple[str, str] | None:
    try:
        error = next(validator.iter_errors(instance), None)
    except Exception as problem:  # noqa: BLE001 (`jsonschema` raises any exception for an invalid schema)
        return "unsure", repr(problem)[:200]
    return None if error is None else ("invalid accepted", f"{error.json_path}: {error.message[:200]}")


def _mutated_instance(instance: Json, chance: Random) -> Json:
    """Return a copy with one value replaced."""
    whole = {"root": copy.deepcopy(instance)}
    places: list[tuple[Any, Any]] = []
    waiting: list[Any] = [whole]
    while waiting:
        each = waiting.pop()
        pairs = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
        for key, child in pairs:
            places.append((each, key))
            waiting.append(child)
    holder, key = chance.choice(places)
    holder[key] = chance.choice([None, True, -1, 0.5, 10**6, "", "x", "a b", [], {}, [holder[key]] * 2])
    return whole["root"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutated MaskBench schemas through the server's constraints.")
    parser.add_argument("--data", type=Path, required=True, help="the suite's folder of JSON files")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", type=int, help="run only this seed")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    files = sorted(options.data.glob("*.json"))
    if not files:
        parser.error(f"{options.data} has no JSON files")
    until = time.monotonic() + options.seconds
    seeds = [options.only] if options.only is not None else itertools.count(options.seed * 10**6)
    jobs = ((seed, False) for seed in itertools.takewhile(lambda _: time.monotonic() < until, seeds))
    counts: Counter[str] = Counter()
    findings = 0
    killed: list[tuple[int, bool]] = []
    most_s = most_mb = 0.0
    # A killed worker may have hung in `jsonschema`, so its seed is only compiled in a second pass.
    for again in (False, True):
        for outcome in measured(partial(Fuzzer, files), killed if again else jobs, options.workers, Limits()):
            seed = outcome.item[0]
            if outcome.result is None and not again:
                killed.append((seed, True))
                continue
            verdict = outcome.result or Verdict("killed", outcome.died, outcome.cpu_s, None)
            counts[verdict.kind] += 1
            most_s = max(most_s, verdict.compile_cpu_s)
            most_mb = max(most_mb, outcome.mb)
            costly = verdict.compile_cpu_s > MAX_S or outcome.mb > MAX_MB
            if costly or verdict.kind not in ("held", "refused", "unsure"):
                findings += 1
                FOUND.mkdir(parents=True, exist_ok=True)
                (FOUND / f"{seed}.json").write_text(json.dumps(verdict.schema, indent=1))
                cost = f"{verdict.compile_cpu_s:.2f} s, {outcome.mb:.0f} MB"
                print(f"seed {seed}: {verdict.kind}, {cost}: {verdict.why[:500]}", file=sys.stderr, flush=True)
    print(f"{dict(counts)}, {findings} findings; the most that one takes: {most_s:.2f} s of CPU, {most_mb:.0f} MB")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
