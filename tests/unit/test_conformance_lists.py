"""How `make conformance` compares a run with its baseline. `test_docs` checks its lists of known failures."""

from typing import Any

from tests.conformance.run import compare


def test_missing_tests_fail_a_complete_run_but_not_a_partial_one() -> None:
    baseline = {f"unit/test_basic.py::test_{name}": {"outcome": "passed"} for name in "ab"}
    known: dict[str, Any] = {"on_purpose": {}, "not_there_yet": {}}
    for part in (False, True):
        assert compare(baseline, dict([*baseline.items()][:1]), known, ["basic"], part=part) is part
