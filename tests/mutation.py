"""Mutation testing: change one expression of a package at a time, and run the tests that reach it.

``python -m tests.mutation server/engine --tests tests/unit/engine --sample 100`` prints the surviving mutants and one
row of the table in benchmarks/experiments.md. The tests are collected and run once with line coverage. Then each mutant
runs in a fork of that process, in which the code of its function is replaced. Nothing is imported again. Only
expressions inside functions are changed, because all others were evaluated before the fork.

``python -m tests.mutation server --tests tests/unit tests/api --judge tests/unit/pool`` lists the test functions below
`tests/unit/pool` that kill no mutant alone. For each function it tries the mutants that the fewest functions reach,
until one survives all other tests. Mutate all of `server`: only a test of one package may detect a fault of another.
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
"""Tests that take longer with coverage do not run against mutants."""
MUTANT_S = 6.0
"""Tests of this total duration, with coverage, run against one mutant. Those that reach the fewest lines are first."""
TIMEOUT_S = 5
"""A test that takes longer counts as failed: the mutant does not end."""
MUTANTS_PER_FUNCTION = 30
"""Mutants that ``--judge`` tries for a test function."""
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
    """One changed expression. ``number``: its index among the possible changes of the file."""

    path: Path
    number: int
    line: int
    statement: int
    """The first line of the statement."""
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


class _Mutator(ast.NodeTransformer):
    """List all possible changes in the order of the tree, and make the one with the index `selected`."""

    def __init__(self, selected: int = -1) -> None:
        self.selected = selected
        self.changes: list[tuple[int, int, str]] = []  # line, first line of the statement, description
        self.statement = 0

    def _selects(self, node: Any, what: str) -> bool:
        self.changes.append((node.lineno, self.statement, what))
        return len(self.changes) - 1 == self.selected

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
            if self._selects(node, f"{type(operator).__name__} becomes {other.__name__}"):
                node.ops[i] = other()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if self._selects(node, "and becomes or" if isinstance(node.op, ast.And) else "or becomes and"):
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return node

    def _visit_arithmetic(self, node: Any) -> Any:
        self.generic_visit(node)
        other = ARITHMETIC.get(type(node.op))
        if other and self._selects(node, f"{type(node.op).__name__} becomes {other.__name__}"):
            node.op = other()
        return node

    visit_BinOp = visit_AugAssign = _visit_arithmetic  # noqa: N815 (names of `ast.NodeVisitor`)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if isinstance(node.op, ast.Not) and self._selects(node, "not is removed") else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            if self._selects(node, f"{node.value} becomes {not node.value}"):
                node.value = not node.value
        elif isinstance(node.value, str | int | float):
            other = node.value + ("x" if isinstance(node.value, str) else 1)  # type: ignore[operator]
            if self._selects(node, f"{node.value!r} becomes {other!r}"):
                node.value = other
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        node.value = self.visit(node.value)  # and not its format
        return node

    def _visit_test(self, node: Any) -> Any:
        self.generic_visit(node)
        if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp) and self._selects(
            node.test, "the condition is negated"
        ):
            node.test = ast.UnaryOp(ast.Not(), node.test)
        return node

    visit_If = visit_IfExp = visit_While = _visit_test  # noqa: N815 (names of `ast.NodeVisitor`)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None and not isinstance(node.value, ast.Constant) and self._selects(node, "returns None"):
            node.value = ast.Constant(None)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if not isinstance(node.value, ast.Call):
            return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)  # docstrings are kept
        self.generic_visit(node)
        return ast.Pass() if self._selects(node, "the call is removed") else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value is not None else None  # and not the annotation
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node  # without a visit of its annotation

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node  # a changed assertion would fail


def mutants(paths: Sequence[Path]) -> Iterator[Mutant]:
    """Yield every mutant inside a function of the Python files at and below `paths`."""
    for path in (each for top in paths for each in (sorted(top.rglob("*.py")) if top.is_dir() else [top])):
        tree, mutator = ast.parse(path.read_text(encoding="utf-8")), _Mutator()
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        bodies = {line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}
        mutator.visit(tree)
        for number, (line, statement, what) in enumerate(mutator.changes):
            if line in bodies:
                yield Mutant(path, number, line, statement, what)


def replace_function(mutant: Mutant, functions: Sequence[FunctionType]) -> bool:
    """Replace the code of those of `functions` that contain `mutant`. Return whether any does."""
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
    """Fork like `os.fork`. On Linux, the child is killed when this process ends, as a mutant may never end."""
    parent = os.getpid()
    child = os.fork()
    if child == 0 and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before prctl
            os._exit(2)
    return child


def function_name(item: pytest.Item) -> str:
    """Return the node id of a test without its parameters."""
    return item.nodeid.partition("[")[0]


@dataclass
class TestRun:
    """The result of a test that ran with coverage. ``lines``: reached lines by file."""

    passed: bool
    seconds: float
    lines: dict[str, list[int]]


@dataclass
class Mutation:
    """Pytest plugin: run the collected tests once, and then against each mutant of `selected` that they reach."""

    selected: list[Mutant]
    include: list[str]
    deadline: float = math.inf
    """Value of `time.monotonic` after which no further mutant is measured."""
    judged: str | None = None
    """Prefix of the names of the test functions to judge; None: measure the mutants."""
    tests: dict[str, TestRun] = field(default_factory=dict)
    killers: dict[Mutant, str] = field(default_factory=dict)
    """The test function that failed with each mutant; "" = it survived."""
    reached: dict[tuple[str, int], list[pytest.Item]] = field(default_factory=dict)
    """The passing tests of each line, sorted by the number of lines that they reach."""
    functions: dict[str, list[FunctionType]] = field(default_factory=lambda: defaultdict(list))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests and mutants instead of pytest's own loop."""
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
        for mutant in self.selected:
            if time.monotonic() > self.deadline:
                break
            self.killers[mutant] = self._killer(within_time(self.tests_of(mutant), self.tests), mutant)
        return True

    def _judge(self, prefix: str) -> None:
        """Print whether each test function below `prefix` kills a mutant that no other kills."""
        mutants_of: defaultdict[str, list[tuple[int, Mutant]]] = defaultdict(list)
        for mutant in self.selected:
            names = {function_name(item) for item in self.tests_of(mutant)}
            for name in names:
                if name.startswith(prefix):
                    mutants_of[name].append((len(names), mutant))
        for name, reached in sorted(mutants_of.items()):
            if time.monotonic() > self.deadline:
                break
            others: set[str] = set()
            for _, mutant in sorted(reached, key=lambda each: each[0])[:MUTANTS_PER_FUNCTION]:
                items = self.tests_of(mutant)
                own = [item for item in items if function_name(item) == name]
                if self._killer(within_time(own, self.tests), mutant):
                    rest = [item for item in items if item not in own]
                    other = self._killer(within_time(rest, self.tests), mutant)
                    if not other:
                        print(f"kills {mutant} alone: {name}", flush=True)
                        break
                    others.add(other)
            else:
                print(f"kills none alone: {name}", *sorted(others), sep="\n    with ", flush=True)

    def _run_once(self, items: Sequence[pytest.Item]) -> None:
        """Run `items` with coverage in a fork.

        Threads that the tests start in this process would be missing in the forks of the mutants.
        """
        read_fd, write_fd = os.pipe()
        if fork() == 0:
            try:
                with os.fdopen(write_fd, "wb") as pipe:
                    pickle.dump(self._run_with_coverage(items), pipe)
            finally:
                os._exit(0)
        os.close(write_fd)
        with os.fdopen(read_fd, "rb") as pipe:
            self.tests = pickle.load(pipe)
        os.wait()

    def _run_with_coverage(self, items: Sequence[pytest.Item]) -> dict[str, TestRun]:
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
            tests[item.nodeid] = TestRun(passed, time.monotonic() - started, defaultdict(list))
        measured.stop()
        data = measured.get_data()
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                for name in tests.keys() & set(contexts):
                    tests[name].lines[file].append(line)
        return tests

    def tests_of(self, mutant: Mutant) -> list[pytest.Item]:
        """Return the tests that reach the line of `mutant`, or the first line of its statement, as constants may have
        no code on their line.
        """
        file = str(mutant.path.resolve())
        return self.reached.get((file, mutant.line)) or self.reached.get((file, mutant.statement)) or []

    def _killer(self, items: Sequence[pytest.Item], mutant: Mutant) -> str:
        """Run `items` with `mutant` in a fork. Return the function of the first that fails or does not end, or ""."""
        if not items:
            return ""
        read_fd, write_fd = os.pipe()
        child = fork()
        if child == 0:
            try:
                self._run_mutant(items, mutant, write_fd)
            finally:
                os._exit(0)
        os.setpgid(child, child)
        os.close(write_fd)
        outcomes = b""
        while (
            outcomes[-1:] not in (b"e", b"f", b"n")
            and select.select([read_fd], [], [], TIMEOUT_S)[0]
            and (more := os.read(read_fd, 4096))
        ):
            outcomes += more
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read_fd)
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

    def _run_mutant(self, items: Sequence[pytest.Item], mutant: Mutant, write_fd: int) -> None:
        """Write "." for each item that passes, then "f" for one that fails or "e" at the end.

        If the function of the mutant is not in memory, write only "n".
        """
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        if not replace_function(mutant, self.functions[str(mutant.path.resolve())]):
            os.write(write_fd, b"n")
            return
        for item in items:
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=None)):
                os.write(write_fd, b"f")
                return
            os.write(write_fd, b".")
        os.write(write_fd, b"e")


def within_time(items: Sequence[pytest.Item], tests: dict[str, TestRun]) -> list[pytest.Item]:
    """Return the first of `items` that take less than `TEST_S` each and about `MUTANT_S` together."""
    chosen, total_s = [], 0.0
    for item in items:
        seconds = tests[item.nodeid].seconds
        if seconds < TEST_S and total_s < MUTANT_S:
            chosen.append(item)
            total_s += seconds
    return chosen


def main() -> None:
    """Print the survivors of a sample, and a table row: package, mutants, sample, killed, unreached, score, seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="packages or files of server/")
    parser.add_argument("--tests", nargs="+", required=True, help="test folders or files")
    parser.add_argument("--sample", type=int, default=100, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="measure no further mutant after this time")
    parser.add_argument("--judge", help="prefix of test functions; list those that kill no mutant alone")
    options = parser.parse_args()
    every = list(mutants(options.paths))
    shuffled = random.Random(options.seed).sample(every, len(every))
    selected = shuffled if options.judge else shuffled[: options.sample]  # a larger sample contains a smaller one
    include = [str(path.resolve() / "*") if path.is_dir() else str(path.resolve()) for path in options.paths]
    run = Mutation(selected, include, time.monotonic() + options.seconds, options.judge)
    status = pytest.main(["-q", "-p", "no:cacheprovider", *options.tests], plugins=[run])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"pytest ended with {status!r}")
    if options.judge:
        return
    measured = [mutant for mutant in selected if mutant in run.killers]
    unreached = [mutant for mutant in measured if not run.tests_of(mutant)]
    killed = [mutant for mutant in measured if run.killers[mutant]]
    for mutant in sorted(set(measured).difference(killed), key=str):
        print(f"{'survived' if run.tests_of(mutant) else 'no test reaches'}: {mutant}")
    names, n = ", ".join(f"`{path}`" for path in options.paths), len(measured)
    score = f"{len(killed) / max(n, 1):.0%}"
    print(f"| {names} | {len(every)} | {n} | {len(killed)} | {len(unreached)} | {score} | {options.seed} |")


if __name__ == "__main__":
    main()
