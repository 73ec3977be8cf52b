"""What ``make serve`` installs, over a script in place of pip, and what `.ci/run` makes, over one in place of make."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.real_server import ROOT
from tests.support.terminal import Terminal

PLAIN = {"MAKEFLAGS": "", "PREBUILT": ""}  # the tests may run under a make of their own
PIP = """#!/bin/sh
echo "$@" > {folder}/asked
echo "Collecting llama-cpp-python"
for i in 1 2 3; do
  echo "  [$i/3] Building CXX object x.o"
  until [ -e {folder}/go-$i ]; do sleep 0.05; done
done
exit {status}
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """With an interpreter and a pip that compiles three files, each until it may go on."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    write_pip(tmp_path)
    return tmp_path


def write_pip(folder: Path, status: int = 0) -> None:
    pip = folder / "bin" / "pip"
    pip.write_text(PIP.format(folder=folder, status=status))
    pip.chmod(0o755)


def may_go_on(folder: Path, *numbers: int) -> None:
    for number in numbers:
        (folder / f"go-{number}").touch()


def install(venv: Path, *words: str) -> list[str]:
    return ["make", "--no-print-directory", f"VENV={venv}", str(venv / ".installed"), *words]


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **PLAIN}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)


def test_a_terminal_counts_what_is_compiled_as_it_happens(venv: Path) -> None:
    with Terminal(install(venv), PLAIN) as terminal:
        terminal.wait_for("Installing; the first time llama-cpp-python is compiled")
        for number in (1, 2, 3):
            terminal.wait_for(f"\rcompiling llama.cpp: {number} of 3 ")
            assert f"compiling llama.cpp: {number + 1}" not in terminal.shown
            may_go_on(venv, number)
        assert terminal.status() == 0
    assert "Collecting" not in terminal.shown
    assert "Collecting llama-cpp-python" in (venv / "install.log").read_text()


@pytest.mark.parametrize("index", ["", "cpu", "cu124"])
def test_another_index_is_asked_only_where_it_is_named(index: str, venv: Path) -> None:
    may_go_on(venv, 1, 2, 3)
    words = [f"PREBUILT={index}"] * bool(index)
    done = run(install(venv, *words))
    assert done.returncode == 0
    assert ("where no wheel of" in done.stdout) == bool(index)
    assert done.stderr.splitlines() == ["compiling llama.cpp: 1 of 3", "compiling llama.cpp: 3 of 3"]
    asked = (venv / "asked").read_text().split()
    assert asked[0] == "install"
    assert any(word.endswith(f"/whl/{index}") for word in asked) == bool(index)
    assert ("--extra-index-url" in asked) == bool(index)


def test_what_pip_said_last_is_shown_where_it_fails(venv: Path) -> None:
    write_pip(venv, status=1)
    may_go_on(venv, 1, 2, 3)
    done = run(install(venv))
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


def ran(folder: Path, n_commits: int, **variables: str) -> tuple[int, list[str], str]:
    """Return the status of `.ci/run` after `n_commits`, the targets made after the types, and the errors."""
    parts = {"NIGHTLY_PARTS": "chaos kinds conformance", "FAILING": "", "ENDLESS": ""}
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", **parts, **variables}
    environment |= {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
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
def test_the_number_of_commits_selects_a_part_of_nightly(tmp_path: Path, n_commits: int, part: str) -> None:
    assert ran(tmp_path, n_commits)[:2] == (0, [f"ready-{part}", part, "test"])


@pytest.mark.parametrize(
    ("variables", "status", "made", "said"),
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
def test_what_becomes_of_a_part(variables: dict[str, str], status: int, made: str, said: str, tmp_path: Path) -> None:
    found = ran(tmp_path, 1, **variables)
    assert found[:2] == (status, made.split())
    assert said in found[2]


def test_every_part_says_what_it_downloads() -> None:
    """make -n resolves both targets of each part in the rotation."""
    parts = (ROOT / ".ci/run").read_text().split("NIGHTLY_PARTS-")[1].split("}")[0].split()
    targets = [target for part in parts for target in (f"ready-{part}", part)]
    assert run(["make", "--dry-run", *targets]).returncode == 0
