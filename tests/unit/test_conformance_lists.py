"""What `make conformance` says of a run. `test_docs` checks its lists."""

from typing import Any

from tests.conformance.run import compare


def test_a_test_that_did_not_run_is_a_failure() -> None:
    baseline = {f"unit/test_basic.py::test_{name}": {"outcome": "passed"} for name in "ab"}
    known: dict[str, Any] = {"on_purpose": {}, "not_there_yet": {}}
    for part in (False, True):
        assert compare(baseline, dict([*baseline.items()][:1]), known, ["basic"], part=part) is part
