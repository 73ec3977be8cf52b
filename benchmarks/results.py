"""Read the rows of the raw JSON of `compare`. A missing row is an error that names it."""

import hashlib
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.units import SERVERS
from benchmarks.environment import RESULTS

COMPARE, OVERLOAD, SOAK, START, WRK = (
    RESULTS / f"{name}.json" for name in ("compare", "overload", "soak", "start", "wrk")
)
Key = tuple[str, str, str]
"""Arm, scenario, figure."""
Values = dict[Key, list[float]]
"""One value for each round."""


class MissingRowError(Exception):
    """A table needs figures that the JSON lacks."""


def load(file: Path) -> dict[str, Any] | None:
    """Return the JSON, or None if the file does not exist."""
    return json.loads(file.read_text()) if file.exists() else None


def sha256(file: Path) -> str:
    """Return the checksum that a plot of this JSON contains."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def collect(runs: Sequence[dict[str, Any]]) -> Values:
    """Return the values of each row by round. If both of `SERVERS` were measured, only rounds of both count."""
    rounds: dict[str, set[Key]] = {}
    for run in runs:
        rounds.setdefault(run["scenario"], set()).add((run["server"], run["scenario"], str(run["round"])))
    values: Values = {}
    for run in sorted(runs, key=lambda run: run["round"]):
        measured = rounds[run["scenario"]]
        paired = {server for server, *_ in measured} >= set(SERVERS)
        if paired and not all((server, run["scenario"], str(run["round"])) in measured for server in SERVERS):
            continue
        for figure, value in run["metrics"].items():
            values.setdefault((run["server"], run["scenario"], figure), []).append(value)
    return values


def require(values: Values, keys: Iterable[Key], file: Path = COMPARE) -> None:
    """Raise `MissingRowError` with the rows that `values` lacks."""
    missing = [
        f"{scenario} / {figure} of {arm}" for arm, scenario, figure in keys if not values.get((arm, scenario, figure))
    ]
    if missing:
        raise MissingRowError(f"{file.name} has no row {'; '.join(missing)}: run `make bench` again")


def ratios(values: Values, scenario: str, figure: str, arms: tuple[str, str] = SERVERS) -> list[float]:
    """Return the first arm's figure over the second's, round by round."""
    first, second = (values[arm, scenario, figure] for arm in arms)
    return [a / b for a, b in zip(first, second, strict=True) if b]


def spread(values: Sequence[float], digits: int | None = None) -> str:
    """Return the median with the minimum and the maximum."""
    if not values:
        return ""
    middle = median(values, digits)
    if len(values) == 1:
        return middle
    return f"{middle} ({_rounded(min(values), values, digits)} to {_rounded(max(values), values, digits)})"


def median(values: Sequence[float], digits: int | None = None) -> str:
    """Return the rounded median."""
    return _rounded(statistics.median(values), values, digits)


def _rounded(value: float, values: Sequence[float], digits: int | None) -> str:
    if digits is None:
        digits = 2 if max(values) < 10 else 1 if max(values) < 100 else 0
    return f"{value:.{digits}f}"


def provenance(environment: dict[str, Any]) -> str:
    """Return commit, date, CPU and library of a run, for the line below a table."""
    return (
        f"commit {environment['commit']}, {environment['date']}, {environment['cpu']}, {environment['cores']} cores, "
        f"llama-cpp-python {environment['llama_cpp_python']}"
    )
