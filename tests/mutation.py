"""Measure which faults the tests find: change one expression of a package at a time, and run the tests that reach it.

``python -m tests.mutation server/engine --tests tests/unit/engine --sample 100`` prints the survivors and one row of
the table in benchmarks/experiments.md. The tests are collected and run once with line coverage. Then each mutant gets
a forked copy of that process, in which the code of its function is replaced. Nothing is imported again.
Only expressions inside functions are changed: the others have run before the fork.
"""

import argparse
import ast
import ctypes
import gc
import math
import os
import pickle
import random
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

N_TESTS = 40
"""Tests that run against one mutant at most: half of them those that reach the fewest lines, the rest spread over all
that reach its line."""
PR_SET_PDEATHSIG = 1
TIMEOUT_S = 20
"""A mutant whose tests take longer counts as killed: it never ends."""
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
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


class _Mutator(ast.NodeTransformer):
    """Number every possible change in the order of the tree, and make the one whose number is `chosen`."""

    def __init__(self, chosen: int = -1) -> None:
        self.chosen = chosen
        self.found: list[tuple[int, str]] = []

    def _chosen(self, node: Any, what: str) -> bool:
        self.found.append((node.lineno, what))
        return len(self.found) - 1 == self.chosen

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
        elif isinstance(node.value, int) and self._chosen(node, f"{node.value} becomes {node.value + 1}"):
            node.value += 1
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
        for number, (line, what) in enumerate(mutator.found):
            if line in bodies:
                yield Mutant(path, number, line, what)


def replace_function(mutant: Mutant) -> bool:
    """Give the functions of this process that contain `mutant` its code. Return whether any function does."""
    tree = _Mutator(mutant.number).visit(ast.parse(mutant.path.read_text(encoding="utf-8")))
    module = compile(ast.fix_missing_locations(tree), str(mutant.path.resolve()), "exec")
    changed = {(code.co_qualname, code.co_firstlineno): code for code in _functions(module)}
    found = False
    for function in [each for each in gc.get_objects() if isinstance(each, FunctionType)]:
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


def chosen_tests(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return at most `N_TESTS` of `items`, of which the first reach the fewest lines."""
    first, rest = list(items[: N_TESTS // 2]), items[N_TESTS // 2 :]
    return first + list(rest[:: -(-len(rest) // (N_TESTS - len(first))) or 1])


@dataclass
class Mutation:
    """Pytest plugin: run the collected tests once, then those that reach a mutant against each of `chosen`."""

    chosen: list[Mutant]
    include: list[str]
    deadline: float = math.inf
    """`time.monotonic`; mutants that are not measured by then are left out."""
    killed: list[Mutant] = field(default_factory=list)
    survived: list[Mutant] = field(default_factory=list)
    unreached: list[Mutant] = field(default_factory=list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do everything; the usual loop does not run."""
        reached = self._run_once(session)
        for mutant in self.chosen:
            if time.monotonic() > self.deadline:
                break
            items = reached[str(mutant.path.resolve()), mutant.line]
            if not items:
                self.unreached.append(mutant)
            elif self._kills(chosen_tests(items), mutant):
                self.killed.append(mutant)
            else:
                self.survived.append(mutant)
        return True

    def _run_once(self, session: pytest.Session) -> dict[tuple[str, int], list[pytest.Item]]:
        """Return the tests that reach each line. Tests that fail without a mutant are left out.

        They run in a forked process: threads that they start here would be missing in the processes of the mutants.
        """
        reading, writing = os.pipe()
        if fork() == 0:
            try:
                with os.fdopen(writing, "wb") as pipe:
                    pickle.dump(self._reached(session), pipe)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            passed, lines = pickle.load(pipe)
        os.wait()
        print(f"{len(passed)} of {len(session.items)} tests pass without a mutant", flush=True)
        items = {item.nodeid: item for item in session.items}
        n_lines = Counter(name for names in lines.values() for name in names)
        narrowest = {line: sorted(names, key=n_lines.__getitem__) for line, names in lines.items()}
        return defaultdict(list, {line: [items[name] for name in names] for line, names in narrowest.items()})

    def _reached(self, session: pytest.Session) -> tuple[set[str], dict[tuple[str, int], set[str]]]:
        measured = coverage.Coverage(data_file=None, include=self.include, config_file=False)
        passed = set()
        measured.start()
        for item in session.items:
            measured.switch_context(item.nodeid)
            if all(report.outcome == "passed" for report in runtestprotocol(item, log=False, nextitem=None)):
                passed.add(item.nodeid)
        measured.stop()
        data = measured.get_data()
        return passed, {
            (file, line): passed.intersection(contexts)
            for file in data.measured_files()
            for line, contexts in data.contexts_by_lineno(file).items()
        }

    def _kills(self, items: Sequence[pytest.Item], mutant: Mutant) -> bool:
        """Whether one of `items` fails in a forked process with `mutant`, or the process does not end."""
        child = fork()
        if child == 0:
            status = 2
            try:
                os.setpgid(0, 0)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(1, 2)
                if replace_function(mutant):
                    status = int(
                        any(r.failed for item in items for r in runtestprotocol(item, log=False, nextitem=None))
                    )
            finally:
                os._exit(status)
        until = time.monotonic() + TIMEOUT_S
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < until:
            time.sleep(0.005)
        if ended[0] == 0:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            print(f"did not end: {mutant}", flush=True)
            return True
        status = os.waitstatus_to_exitcode(ended[1])
        if status == 2:
            print(f"not replaced: {mutant}", flush=True)
        return status not in (0, 2)


def main() -> None:
    """Print the survivors among sampled mutants, and a table row: package, mutants, killed, unreached, score, seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="packages or files of server/")
    parser.add_argument("--tests", nargs="+", required=True, help="test folders or files")
    parser.add_argument("--sample", type=int, default=100, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="measure no further mutant after this time")
    given = parser.parse_args()
    every = list(mutants(given.paths))
    chosen = random.Random(given.seed).sample(every, min(given.sample, len(every)))
    include = [str(path.resolve() / "*") if path.is_dir() else str(path.resolve()) for path in given.paths]
    run = Mutation(chosen, include, time.monotonic() + given.seconds)
    status = pytest.main(["-q", "-p", "no:cacheprovider", *given.tests], plugins=[run])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"pytest ended with {status!r}")
    for what, each in (("no test reaches", run.unreached), ("survived", run.survived)):
        for mutant in sorted(each, key=str):
            print(f"{what}: {mutant}")
    names, n_killed = ", ".join(f"`{path}`" for path in given.paths), len(run.killed)
    n = n_killed + len(run.survived) + len(run.unreached)
    score = f"{n_killed / max(n, 1):.0%}"
    print(f"| {names} | {len(every)} | {n} | {n_killed} | {len(run.unreached)} | {score} | {given.seed} |")


if __name__ == "__main__":
    main()
