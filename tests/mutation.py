"""Measure which faults the tests find: change one expression of a package at a time, and run the tests that reach it.

``python -m tests.mutation server/engine --tests tests/unit/engine --sample 100`` prints the survivors and one row of
the table in benchmarks/experiments.md. The tests are collected and run once with line coverage. Then each mutant gets
a forked copy of that process, in which the code of its function is replaced. Nothing is imported again.
Only expressions inside functions are changed: the others have run before the fork.

``--matrix FILE`` runs tests until two functions fail, and lists those that kill no mutant alone. It adds to the results
in FILE, so a run that ``--seconds`` ended can continue. A mutant is measured again when its killer is deleted. Delete
FILE when the package changes: it has line numbers.
"""

import argparse
import ast
import ctypes
import gc
import json
import math
import os
import pickle
import random
import select
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import pytest
from _pytest.runner import runtestprotocol

PR_SET_PDEATHSIG = 1
TEST_S = 0.5
"""Longest test that runs against mutants, measured with coverage."""
MUTANT_S = 6.0
"""The sum of the durations, with coverage, of the tests that run against one mutant: first those that reach the fewest
lines."""
TIMEOUT_S = 5
"""A test that takes longer kills its mutant: it never ends."""
N_KILLERS = 2
"""Test functions that must fail before a matrix leaves a mutant: none kills it alone then."""
N_JUDGED = 15
"""Measured mutants that a test function must reach before a matrix judges it."""
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the `number`-th possible one of a file."""

    path: Path
    number: int
    line: int
    statement: int
    """The first line of the statement."""
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


class _Mutator(ast.NodeTransformer):
    """Number every possible change in the order of the tree, and make the one whose number is `chosen`."""

    def __init__(self, chosen: int = -1) -> None:
        self.chosen = chosen
        self.found: list[tuple[int, int, str]] = []
        self.statement = 0

    def _chosen(self, node: Any, what: str) -> bool:
        self.found.append((node.lineno, self.statement, what))
        return len(self.found) - 1 == self.chosen

    def visit(self, node: ast.AST) -> Any:
        outer = self.statement
        self.statement = node.lineno if isinstance(node, ast.stmt) else outer
        visited = super().visit(node)
        self.statement = outer
        return visited

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for i, operator in enumerate(node.ops):
            other = COMPARISONS[type(operator)]
            if self._chosen(node, f"{type(operator).__name__} becomes {other.__name__}"):
                node.ops[i] = other()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if self._chosen(node, "and becomes or" if isinstance(node.op, ast.And) else "or becomes and"):
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        other = ARITHMETIC.get(type(node.op))
        if other and self._chosen(node, f"{type(node.op).__name__} becomes {other.__name__}"):
            node.op = other()
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        other = ARITHMETIC.get(type(node.op))
        if other and self._chosen(node, f"augmented {type(node.op).__name__} becomes {other.__name__}"):
            node.op = other()
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if isinstance(node.op, ast.Not) and self._chosen(node, "not is removed") else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            if self._chosen(node, f"{node.value} becomes {not node.value}"):
                node.value = not node.value
        elif isinstance(node.value, str | int | float):
            other = node.value + ("x" if isinstance(node.value, str) else 1)  # type: ignore[operator]
            if self._chosen(node, f"{node.value!r} becomes {other!r}"):
                node.value = other
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        node.value = self.visit(node.value)  # not its format
        return node

    def _visit_test(self, node: Any) -> Any:
        self.generic_visit(node)
        if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp) and self._chosen(
            node.test, "the condition is negated"
        ):
            node.test = ast.UnaryOp(ast.Not(), node.test)
        return node

    visit_If = visit_IfExp = visit_While = _visit_test  # noqa: N815 (the names that ast calls)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None and not isinstance(node.value, ast.Constant) and self._chosen(node, "returns None"):
            node.value = ast.Constant(None)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if not isinstance(node.value, ast.Call):
            return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)  # keeps docstrings
        self.generic_visit(node)
        return ast.Pass() if self._chosen(node, "the call is removed") else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value is not None else None  # not the annotation
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node  # not its annotation

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node  # a wrong assertion fails by itself


def mutants(paths: Sequence[Path]) -> Iterator[Mutant]:
    """Yield every mutant inside a function of the Python files at and below `paths`."""
    for path in (each for top in paths for each in (sorted(top.rglob("*.py")) if top.is_dir() else [top])):
        tree, mutator = ast.parse(path.read_text(encoding="utf-8")), _Mutator()
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        bodies = {line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}
        mutator.visit(tree)
        for number, (line, statement, what) in enumerate(mutator.found):
            if line in bodies:
                yield Mutant(path, number, line, statement, what)


def replace_function(mutant: Mutant, functions: Sequence[FunctionType]) -> bool:
    """Give those of `functions` that contain `mutant` its code. Return whether any does."""
    tree = _Mutator(mutant.number).visit(ast.parse(mutant.path.read_text(encoding="utf-8")))
    module = compile(ast.fix_missing_locations(tree), str(mutant.path.resolve()), "exec")
    changed = {(code.co_qualname, code.co_firstlineno): code for code in _functions(module)}
    found = False
    for function in functions:
        code = function.__code__
        other = changed.get((code.co_qualname, code.co_firstlineno))
        if other is not None and other.co_freevars == code.co_freevars and code.co_filename == other.co_filename:
            function.__code__ = other
            found = True
    return found


def _functions(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _functions(each)


def fork() -> int:
    """Fork as `os.fork`. On Linux the new process ends with this one: a mutant may never end by itself."""
    parent = os.getpid()
    child = os.fork()
    if child == 0 and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            os._exit(2)
    return child


def function_name(item: pytest.Item) -> str:
    """Return the node id without the parameters."""
    return item.nodeid.partition("[")[0]


@dataclass
class Covered:
    """What one run with coverage showed about a test."""

    passed: bool
    seconds: float
    lines: dict[str, list[int]]
    """By file."""


@dataclass
class Result:
    """The test functions that failed with a mutant, and those that reach it and did not run."""

    killers: list[str]
    left_out: list[str]


@dataclass
class Mutation:
    """Pytest plugin: run the collected tests once, then those that reach a mutant against each of `chosen`."""

    chosen: list[Mutant]
    include: list[str]
    deadline: float = math.inf
    """`time.monotonic`; mutants that are not measured by then are left out."""
    n_killers: int = 1
    """Test functions that must fail before a mutant is left."""
    narrow: int | None = None
    """Only mutants that at most so many test functions reach, one of which kills none alone so far."""
    tests: dict[str, Covered] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    """By `key`."""
    reached: dict[tuple[str, int], list[pytest.Item]] = field(default_factory=dict)
    """The passing tests of each line, those first that reach the fewest lines."""
    functions: dict[str, list[FunctionType]] = field(default_factory=lambda: defaultdict(list))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do everything; the usual loop does not run."""
        if unknown := [item for item in session.items if item.nodeid not in self.tests]:
            self._run_once(unknown)
        items = [item for item in session.items if item.nodeid in self.tests and self.tests[item.nodeid].passed]
        print(f"{len(items)} of {len(session.items)} tests pass without a mutant", flush=True)
        reached = defaultdict(list)
        n_lines = {item: sum(map(len, self.tests[item.nodeid].lines.values())) for item in items}
        for item in sorted(items, key=n_lines.__getitem__):
            for file, lines in self.tests[item.nodeid].lines.items():
                for line in lines:
                    reached[file, line].append(item)
        self.reached = reached
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                self.functions[each.__code__.co_filename].append(each)
        gc.freeze()
        names = {function_name(item) for item in session.items}
        alone = {name for result in self.results.values() for name in result.killers[:1] if len(result.killers) == 1}
        for mutant in self.chosen:
            if time.monotonic() > self.deadline:
                break
            reaching = {function_name(item) for item in self.tests_of(mutant)}
            if self.narrow is not None and (len(reaching) > self.narrow or reaching <= alone):
                continue
            known = self.results.get(key(mutant))
            if known is None or not names.issuperset(known.killers):
                self.results[key(mutant)] = result = self._result(mutant)
                alone.update(result.killers if len(result.killers) == 1 else ())
        return True

    def _run_once(self, items: Sequence[pytest.Item]) -> None:
        """Run `items` with coverage.

        They run in a forked process: threads that they start here would be missing in the processes of the mutants.
        """
        reading, writing = os.pipe()
        if fork() == 0:
            try:
                with os.fdopen(writing, "wb") as pipe:
                    pickle.dump(self._covered(items), pipe)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            self.tests |= pickle.load(pipe)
        os.wait()

    def _covered(self, items: Sequence[pytest.Item]) -> dict[str, Covered]:
        measured = coverage.Coverage(data_file=None, include=self.include, config_file=False)
        tests = {}
        measured.start()
        for item in items:
            if time.monotonic() > self.deadline:
                break
            measured.switch_context(item.nodeid)
            started = time.monotonic()
            reports = runtestprotocol(item, log=False, nextitem=None)
            passed = all(report.outcome == "passed" for report in reports)
            tests[item.nodeid] = Covered(passed, time.monotonic() - started, defaultdict(list))
        measured.stop()
        data = measured.get_data()
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                for name in tests.keys() & set(contexts):
                    tests[name].lines[file].append(line)
        return tests

    def tests_of(self, mutant: Mutant) -> list[pytest.Item]:
        """Return the tests that reach `mutant`. The line of a constant need not have code of its own."""
        file = str(mutant.path.resolve())
        return self.reached.get((file, mutant.line)) or self.reached.get((file, mutant.statement)) or []

    def _result(self, mutant: Mutant) -> Result:
        chosen, left_out, spent_s = [], set(), 0.0
        for item in self.tests_of(mutant):
            seconds = self.tests[item.nodeid].seconds
            if seconds < TEST_S and spent_s < MUTANT_S:
                chosen.append(item)
                spent_s += seconds
            else:
                left_out.add(function_name(item))
        killers = self._killers(chosen, mutant)
        return Result(killers, sorted(left_out) if len(killers) < N_KILLERS else [])

    def _killers(self, items: Sequence[pytest.Item], mutant: Mutant) -> list[str]:
        """Return up to `n_killers` test functions that fail with `mutant` in a forked process, end it or never end."""
        killers: list[str] = []
        while items and len(killers) < self.n_killers:
            reading, writing = os.pipe()
            child = fork()
            if child == 0:
                try:
                    self._run_mutant(items, mutant, killers, writing)
                finally:
                    os._exit(0)
            os.setpgid(child, child)
            os.close(writing)
            outcomes = b""
            while (
                outcomes[-1:] not in (b"e", b"n")
                and select.select([reading], [], [], TIMEOUT_S)[0]
                and (more := os.read(reading, 4096))
            ):
                outcomes += more
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            killers += [
                function_name(item) for item, outcome in zip(items, outcomes.decode(), strict=False) if outcome == "f"
            ]
            if outcomes[-1:] == b"n":
                print(f"not replaced: {mutant}", flush=True)
            if outcomes[-1:] in (b"e", b"n"):
                break
            print(f"did not end: {mutant}", flush=True)
            killers.append(function_name(items[len(outcomes)]))
            items = items[len(outcomes) + 1 :]
        return killers

    def _run_mutant(self, items: Sequence[pytest.Item], mutant: Mutant, killers: Sequence[str], writing: int) -> None:
        """Write one byte per item: failed, or passed or needless. Then "e" for the end, or only "n": not replaced."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        failed = set(killers)
        if not replace_function(mutant, self.functions[str(mutant.path.resolve())]):
            os.write(writing, b"n")
            return
        for item in items:
            if len(failed) == self.n_killers:
                break
            name = function_name(item)
            fails = name not in failed and any(r.failed for r in runtestprotocol(item, log=False, nextitem=None))
            if fails:
                failed.add(name)
            os.write(writing, b"f" if fails else b".")
        os.write(writing, b"e")

    def report_matrix(self, measured: Sequence[Mutant]) -> None:
        """Print how many mutants each test function kills alone, and those that kill none with their fellow killers."""
        reached: Counter[str] = Counter()
        alone: Counter[str] = Counter()
        fellows: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for mutant in measured:
            result = self.results[key(mutant)]
            names = {function_name(item) for item in self.tests_of(mutant)}
            reached.update(names.difference(result.left_out))
            alone.update(result.killers if len(result.killers) == 1 else ())
            for killer in result.killers:
                fellows[killer].update(name for name in result.killers if name != killer)
        slow = {name.partition("[")[0] for name, test in self.tests.items() if test.seconds >= TEST_S}
        judged = {name for name, n in reached.items() if n >= N_JUDGED or alone[name]} - slow
        for name, n in alone.most_common():
            print(f"kills {n} of {reached[name]} alone: {name}")
        for name in sorted(judged - alone.keys()):
            print(f"kills none of {reached[name]} alone: {name}", *fellows[name], sep="\n    with ")
        n_without = len(judged - alone.keys())
        print(f"{len(judged)} functions judged, {n_without} kill none alone; not judged: {len(slow)} slow", end=", ")
        print(f"{len(reached.keys() - slow - judged)} reach fewer than {N_JUDGED} of the measured mutants")


def key(mutant: Mutant) -> str:
    """Return the name of `mutant` in a matrix file."""
    return f"{mutant.number} {mutant}"


def main() -> None:
    """Print the survivors among sampled mutants, and a table row: package, mutants, killed, unreached, score, seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="packages or files of server/")
    parser.add_argument("--tests", nargs="+", required=True, help="test folders or files")
    parser.add_argument("--sample", type=int, default=100, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="measure no further mutant after this time")
    parser.add_argument("--matrix", type=Path, help="file of the tests that kill each mutant")
    parser.add_argument("--narrow", type=int, help="only mutants that so many test functions reach, one without a kill")
    given = parser.parse_args()
    every = list(mutants(given.paths))
    chosen = random.Random(given.seed).sample(every, len(every))[: given.sample]  # a larger sample has a smaller one
    include = [str(path.resolve() / "*") if path.is_dir() else str(path.resolve()) for path in given.paths]
    run = Mutation(chosen, include, time.monotonic() + given.seconds, N_KILLERS if given.matrix else 1, given.narrow)
    if given.matrix and given.matrix.exists():
        known = json.loads(given.matrix.read_text(encoding="utf-8"))
        run.tests = {name: Covered(**test) for name, test in known["tests"].items()}
        run.results = {name: Result(**result) for name, result in known["results"].items()}
    status = pytest.main(["-q", "-p", "no:cacheprovider", *given.tests], plugins=[run])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"pytest ended with {status!r}")
    if given.matrix:
        given.matrix.write_text(
            json.dumps({"tests": run.tests, "results": run.results}, default=vars), encoding="utf-8"
        )
    measured = [mutant for mutant in chosen if key(mutant) in run.results]
    unreached = [mutant for mutant in measured if not run.tests_of(mutant)]
    killed = [mutant for mutant in measured if run.results[key(mutant)].killers]
    for mutant in sorted(set(measured).difference(killed), key=str):
        print(f"{'survived' if run.tests_of(mutant) else 'no test reaches'}: {mutant}")
    if given.matrix:
        run.report_matrix(measured)
    names, n = ", ".join(f"`{path}`" for path in given.paths), len(measured)
    score = f"{len(killed) / max(n, 1):.0%}"
    print(f"| {names} | {len(every)} | {n} | {len(killed)} | {len(unreached)} | {score} | {given.seed} |")


if __name__ == "__main__":
    main()
