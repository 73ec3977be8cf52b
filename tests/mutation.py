"""Measure which faults the tests find: change one expression of a package at a time, and run the tests that reach it.

``python -m tests.mutation server/engine --tests tests/unit/engine --sample 100`` prints the survivors and one row of
the table in benchmarks/experiments.md. The tests are collected and run once with line coverage. Then each mutant gets
a forked copy of that process, in which the code of its function is replaced. Nothing is imported again.
Only expressions inside functions are changed: the others have run before the fork.

``python -m tests.mutation server --tests tests/unit tests/api --judge tests/unit/pool`` lists the test functions below
`tests/unit/pool` that kill no mutant alone. Of each it tries the mutants that the fewest functions reach, until one
survives all other tests. Mutate all of `server`: a test of one package may alone notice what another does.
"""

import argparse
import ast
import ctypes
import gc
import math
import os
import pickle
import random
import select
import signal
import sys
import time
from collections import defaultdict
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
N_TRIED = 30
"""Mutants that are tried for a test function: a judgement."""
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
class Mutation:
    """Pytest plugin: run the collected tests once, then those that reach a mutant against each of `chosen`."""

    chosen: list[Mutant]
    include: list[str]
    deadline: float = math.inf
    """`time.monotonic`; mutants that are not measured by then are left out."""
    judged: str | None = None
    """The beginning of the names of the test functions to judge, instead of `chosen`."""
    tests: dict[str, Covered] = field(default_factory=dict)
    killers: dict[Mutant, str] = field(default_factory=dict)
    """The test function that failed, or ""."""
    reached: dict[tuple[str, int], list[pytest.Item]] = field(default_factory=dict)
    """The passing tests of each line, those first that reach the fewest lines."""
    functions: dict[str, list[FunctionType]] = field(default_factory=lambda: defaultdict(list))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do everything; the usual loop does not run."""
        self._run_once(session.items)
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
        if self.judged is not None:
            self._judge(self.judged)
            return True
        for mutant in self.chosen:
            if time.monotonic() > self.deadline:
                break
            self.killers[mutant] = self._killer(affordable(self.tests_of(mutant), self.tests), mutant)
        return True

    def _judge(self, prefix: str) -> None:
        """Print whether each test function below `prefix` kills a mutant that no other kills."""
        mutants_of: defaultdict[str, list[tuple[int, Mutant]]] = defaultdict(list)
        for mutant in self.chosen:
            names = {function_name(item) for item in self.tests_of(mutant)}
            for name in names:
                if name.startswith(prefix):
                    mutants_of[name].append((len(names), mutant))
        for name, found in sorted(mutants_of.items()):
            if time.monotonic() > self.deadline:
                break
            others: set[str] = set()
            for _, mutant in sorted(found, key=lambda each: each[0])[:N_TRIED]:
                items = self.tests_of(mutant)
                own = [item for item in items if function_name(item) == name]
                if self._killer(affordable(own, self.tests), mutant):
                    other = self._killer(affordable([item for item in items if item not in own], self.tests), mutant)
                    if not other:
                        print(f"kills {mutant} alone: {name}", flush=True)
                        break
                    others.add(other)
            else:
                print(f"kills none alone: {name}", *sorted(others), sep="\n    with ", flush=True)

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
            self.tests = pickle.load(pipe)
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

    def _killer(self, items: Sequence[pytest.Item], mutant: Mutant) -> str:
        """Return the function of the first of `items` that fails with `mutant` in a forked process or never ends."""
        if not items:
            return ""
        reading, writing = os.pipe()
        child = fork()
        if child == 0:
            try:
                self._run_mutant(items, mutant, writing)
            finally:
                os._exit(0)
        os.setpgid(child, child)
        os.close(writing)
        outcomes = b""
        while (
            outcomes[-1:] not in (b"e", b"f", b"n")
            and select.select([reading], [], [], TIMEOUT_S)[0]
            and (more := os.read(reading, 4096))
        ):
            outcomes += more
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        match outcomes[-1:]:
            case b"n":
                print(f"not replaced: {mutant}", flush=True)
                return ""
            case b"e":
                return ""
            case b"f":
                return function_name(items[len(outcomes) - 1])
        print(f"did not end: {mutant}", flush=True)
        return function_name(items[len(outcomes)])

    def _run_mutant(self, items: Sequence[pytest.Item], mutant: Mutant, writing: int) -> None:
        """Write one byte per item: passed, or failed and the last. Then "e" for the end, or only "n": not replaced."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        if not replace_function(mutant, self.functions[str(mutant.path.resolve())]):
            os.write(writing, b"n")
            return
        for item in items:
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=None)):
                os.write(writing, b"f")
                return
            os.write(writing, b".")
        os.write(writing, b"e")


def affordable(items: Sequence[pytest.Item], tests: dict[str, Covered]) -> list[pytest.Item]:
    """Return the first of `items` that are short, and together not too long."""
    found, spent_s = [], 0.0
    for item in items:
        seconds = tests[item.nodeid].seconds
        if seconds < TEST_S and spent_s < MUTANT_S:
            found.append(item)
            spent_s += seconds
    return found


def main() -> None:
    """Print the survivors among sampled mutants, and a table row: package, mutants, killed, unreached, score, seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="packages or files of server/")
    parser.add_argument("--tests", nargs="+", required=True, help="test folders or files")
    parser.add_argument("--sample", type=int, default=100, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="measure no further mutant after this time")
    parser.add_argument("--judge", help="test functions whose mutants are tried, by the beginning of their names")
    given = parser.parse_args()
    every = list(mutants(given.paths))
    shuffled = random.Random(given.seed).sample(every, len(every))
    chosen = shuffled if given.judge else shuffled[: given.sample]  # a larger sample has a smaller one
    include = [str(path.resolve() / "*") if path.is_dir() else str(path.resolve()) for path in given.paths]
    run = Mutation(chosen, include, time.monotonic() + given.seconds, given.judge)
    status = pytest.main(["-q", "-p", "no:cacheprovider", *given.tests], plugins=[run])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"pytest ended with {status!r}")
    if given.judge:
        return
    measured = [mutant for mutant in chosen if mutant in run.killers]
    unreached = [mutant for mutant in measured if not run.tests_of(mutant)]
    killed = [mutant for mutant in measured if run.killers[mutant]]
    for mutant in sorted(set(measured).difference(killed), key=str):
        print(f"{'survived' if run.tests_of(mutant) else 'no test reaches'}: {mutant}")
    names, n = ", ".join(f"`{path}`" for path in given.paths), len(measured)
    score = f"{len(killed) / max(n, 1):.0%}"
    print(f"| {names} | {len(every)} | {n} | {len(killed)} | {len(unreached)} | {score} | {given.seed} |")


if __name__ == "__main__":
    main()
