"""Measure which faults the tests find: change one expression of a package at a time, and run the tests that reach it.

``python -m tests.mutation server/engine/kv --tests tests/unit/engine --sample 20`` prints the survivors and one
row of the table in docs/testing.md. A mutant is compiled in the test process; no file is changed.
"""

import argparse
import ast
import importlib.machinery
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

TIMEOUT_S = 300
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


def mutants(paths: list[Path]) -> Iterator[Mutant]:
    """Yield every mutant of the Python files at and below `paths`."""
    for path in (each for top in paths for each in (sorted(top.rglob("*.py")) if top.is_dir() else [top])):
        mutator = _Mutator()
        mutator.visit(ast.parse(path.read_text(encoding="utf-8")))
        for number, (line, what) in enumerate(mutator.found):
            yield Mutant(path, number, line, what)


def pytest_load_initial_conftests() -> None:
    """Pytest plugin (``-p tests.mutation``): compile the mutant that the environment names instead of its file."""
    path, _, number = os.environ["MUTANT"].rpartition(":")
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        if not os.path.samefile(self.path, path):
            return original(self, fullname)
        tree = _Mutator(int(number)).visit(ast.parse(Path(path).read_text(encoding="utf-8")))
        return compile(ast.fix_missing_locations(tree), self.path, "exec")

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]


def pytest(*arguments: str, mutant: Mutant | None = None) -> int:
    """Run pytest quietly and return its status; 1 as well if the tests do not end."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    if mutant is not None:
        environment["MUTANT"] = f"{mutant.path}:{mutant.number}"
        arguments = ("-p", "tests.mutation", *arguments)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False, text=True)
    except subprocess.TimeoutExpired:
        return 1
    if done.returncode and mutant is None:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
    return done.returncode


def covering(tests: list[str], paths: list[Path]) -> dict[tuple[str, int], list[str]]:
    """Run `tests` once and return those that reach each line, by file and line: their ids, or `tests` at import."""
    from coverage import CoverageData

    with tempfile.TemporaryDirectory() as folder:
        config, data = Path(folder) / "rc", Path(folder) / "data"
        include = ",".join(f"{path}/*" if path.is_dir() else str(path) for path in paths)
        config.write_text(f"[run]\ninclude = {include}\ndata_file = {data}\n")
        status = pytest("--cov", "--cov-report=", "--cov-context=test", f"--cov-config={config}", *tests)
        if status:
            raise SystemExit(f"the tests fail without a mutant (status {status})")
        found = CoverageData(str(data))
        found.read()
        return {
            (str(Path(file).relative_to(Path.cwd())), line): sorted({c.partition("|")[0] for c in contexts if c})
            or tests
            for file in found.measured_files()
            for line, contexts in found.contexts_by_lineno(file).items()
        }


def main() -> None:
    """Print the survivors among sampled mutants, and a table row: package, mutants, killed, unreached, score, seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="packages or files of server/")
    parser.add_argument("--tests", nargs="+", required=True, help="test folders or files")
    parser.add_argument("--sample", type=int, default=20, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    every = list(mutants(given.paths))
    chosen = random.Random(given.seed).sample(every, min(given.sample, len(every)))
    reached = covering(given.tests, given.paths)
    n_killed = n_unreached = 0
    for mutant in chosen:
        tests = reached.get((str(mutant.path), mutant.line), [])
        if not tests:
            n_unreached += 1
            print(f"no test reaches it: {mutant}", flush=True)
        elif pytest(*tests, mutant=mutant):
            n_killed += 1
        else:
            print(f"survived {len(tests)} tests: {mutant}", flush=True)
    names = ", ".join(f"`{path}`" for path in given.paths)
    score = f"{n_killed / len(chosen):.0%}"
    print(
        f"| {names} | {len(every)} | {len(chosen)} | {n_killed} | {n_unreached} | {score} | {given.seed} |", flush=True
    )


if __name__ == "__main__":
    main()
