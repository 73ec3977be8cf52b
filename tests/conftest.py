"""Pytest configuration of all tests: hypothesis profiles, ``--quick``, skips in CI, durations by file."""

import os
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from server.hub import cache
from server.hub import process as download_process
from server.pool.worker import parent as model_process
from server.sandbox import process as sandbox_process
from tests.support import downloads, forked_python, real_server
from tests.support.sampling import EXAMPLES_SHARE, EXHAUSTIVE

# A busy machine makes an example slow, so there is no deadline. The gate's examples are the same in every run, so a
# failure is due to the change. An exhaustive run searches for new examples.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("tests", settings.get_profile("search"), derandomize=True)
settings.load_profile("search" if EXHAUSTIVE else "tests")

QUICK_CASES = 3
"""The number of parameter sets of a test in `make quick`: the first, the last, and one between."""
QUICK_EXAMPLES = 10
"""The most hypothesis examples in `make quick`, and the fewest to which the gate reduces a property."""
N_SLOWEST = 20
"""Files that `--durations=N` prints with the sum of their tests' durations."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make quick`."""
    parser.addoption("--quick", action="store_true", help="every test that is not marked slow, each with few cases")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reduce hypothesis examples, and with ``--quick`` the parameter sets of each test."""
    if not config.getoption("--quick"):
        _limit_examples(items, lambda n: max(n // EXAMPLES_SHARE, min(n, QUICK_EXAMPLES)))
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    few = {item for each in cases.values() for item in _few(each)}
    config.hook.pytest_deselected(items=[item for item in items if item not in few])
    items[:] = [item for item in items if item in few]
    _limit_examples(items, lambda n: min(n, QUICK_EXAMPLES))


def _few(cases: list[pytest.Item]) -> list[pytest.Item]:
    if len(cases) <= QUICK_CASES:
        return cases
    return [cases[i * (len(cases) - 1) // (QUICK_CASES - 1)] for i in range(QUICK_CASES)]


def _limit_examples(items: list[pytest.Item], limit: Callable[[int], int]) -> None:
    """Apply `limit` once to the ``max_examples`` of each property and state machine."""
    seen = set()
    for item in items:
        for holder, name in (
            (getattr(item, "function", None), "_hypothesis_internal_use_settings"),
            (getattr(item, "cls", None), "settings"),
        ):
            own = getattr(holder, name, None)
            if isinstance(own, settings) and id(holder) not in seen:
                seen.add(id(holder))
                setattr(holder, name, settings(own, max_examples=limit(own.max_examples)))


def pytest_configure() -> None:
    """Hide the user's models, hub and state from the tests. In CI, fail if a download that tests need is missing."""
    cache.home = lambda: Path("no such folder")
    os.environ |= {"LLAMA_CACHE": "no such folder", "HF_ENDPOINT": "http://127.0.0.1:1", "HF_TOKEN": ""}
    os.environ["LLAMAPOOL_SERVER__STATE"] = "memory"  # servers that tests start must not write to the user's home
    downloads.check_ci()
    forked_python.install(download_process, model_process, sandbox_process, real_server)


MAY_BE_SKIPPED = {"needs two CPUs", "no clone with the whole history", "the clone has another history"}
"""Reasons for skips that are allowed in CI. Any other skip fails the run there."""
_skipped: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record why tests are skipped. With several workers, the controller process receives all reports."""
    if report.skipped and isinstance(report.longrepr, tuple) and not hasattr(report, "wasxfail"):
        _skipped.add(report.longrepr[2].removeprefix("Skipped: "))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record why whole files are skipped during collection."""
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped.add(report.longrepr[2].removeprefix("Skipped: "))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the files whose tests take longest, if ``--durations=N`` is given."""
    if not terminalreporter.config.getoption("durations"):
        return
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    print(f"\n| file | seconds of {sum(seconds.values()):.0f} |\n|---|--:|")
    for file, spent_s in sorted(seconds.items(), key=lambda item: -item[1])[:N_SLOWEST]:
        print(f"| `{file}` | {spent_s:.0f} |")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in CI whose skips are not all in `MAY_BE_SKIPPED`."""
    unnamed = sorted(_skipped - MAY_BE_SKIPPED)
    if unnamed and downloads.in_ci() and not hasattr(session.config, "workerinput"):
        print(
            "\nCI is set, and tests were skipped for reasons that tests/conftest.py does not name:",
            *unnamed,
            sep="\n  ",
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure() -> None:
    """Close files that llama_cpp opens on import. Otherwise ResourceWarnings follow the summary."""
    module = sys.modules.get("llama_cpp._utils")
    if module is not None:
        module.outnull_file.close()
        module.errnull_file.close()
