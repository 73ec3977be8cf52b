"""The first ``make serve``: which wheels it takes, what it shows while llama.cpp is compiled. pip is a script here."""

import os
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
