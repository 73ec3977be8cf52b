"""What `make conformance` knows of llama.cpp's tests (tests/conformance): each is one that llama-server passes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.conformance.run import compare

FOLDER = Path(__file__).parents[1] / "conformance"


def test_every_known_failure_is_a_test_that_counts() -> None:
    baseline = json.loads((FOLDER / "baseline.json").read_text())["tests"]
    known = json.loads((FOLDER / "known.json").read_text())
    names = Counter([*known["on_purpose"], *(name for them in known["not_there_yet"].values() for name in them)])
    assert [name for name, n in names.items() if n > 1] == []
    counted = {name for name, test in baseline.items() if test["outcome"] == "passed" and not test.get("passes_null")}
    assert names.keys() - counted == set()
    assert len(counted) == 363


def test_a_test_that_did_not_run_is_a_failure() -> None:
    baseline = {f"unit/test_basic.py::test_{name}": {"outcome": "passed"} for name in "ab"}
    known: dict[str, Any] = {"on_purpose": {}, "not_there_yet": {}}
    for part in (False, True):
        assert compare(baseline, dict([*baseline.items()][:1]), known, ["basic"], part=part) is part
