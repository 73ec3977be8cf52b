"""What `.ci/run` runs, with a `make` that only writes down its targets."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.real_server import ROOT

MAKE = """#!/bin/sh
echo "$@" >> {folder}/asked
case " $FAILING " in *" $1 "*) exit 2;; esac
"""


def ran(folder: Path, n_commits: int, failing: str = "") -> tuple[int, list[str]]:
    """Return the status of `.ci/run` after `n_commits`, and the targets that were made after the types."""
    environment = {
        **os.environ,
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "FAILING": failing,
        "NIGHTLY_PARTS": "chaos kinds conformance",
    }
    environment |= {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for name in ("make", "openssl", "curl", "cmake", "g++"):
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(MAKE.format(folder=folder) if name == "make" else "")
        program.chmod(0o755)
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    commit = ["git", "commit", "--quiet", "--allow-empty", "--message", "x"]
    for _ in range(n_commits):
        subprocess.run(commit, cwd=folder, env=environment, check=True)
    done = subprocess.run(["bash", ".ci/run"], cwd=folder, env=environment, capture_output=True, check=False)
    targets = (folder / "asked").read_text().split("\n")[:-1]
    return done.returncode, targets[2:]


def test_each_submission_runs_another_part_of_nightly(tmp_path: Path) -> None:
    found = []
    for number in range(1, 4):
        (tmp_path / str(number)).mkdir()
        found.append(ran(tmp_path / str(number), number))
    assert [status for status, _ in found] == [0, 0, 0]
    assert {targets[0] for _, targets in found} == {"test"}
    assert len({targets[1] for _, targets in found}) == 3


@pytest.mark.parametrize(("failing", "targets"), [("kinds", ["test", "kinds", "kinds"]), ("test", ["test"])])
def test_what_fails_twice_blocks(tmp_path: Path, failing: str, targets: list[str]) -> None:
    assert ran(tmp_path, 1, failing) == (1, targets)
