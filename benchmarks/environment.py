"""Describe what a measurement depends on: commit, CPU, library and command, as every raw JSON file records it."""

import compileall
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "models" / "demo.gguf"
RESULTS = Path(__file__).with_name("results")
_WRITTEN = (":!benchmarks/results", ":!benchmarks/plots", ":!*.md")
"""What measuring writes into a checkout by itself: it does not make the measured code another one."""


def describe(module: str) -> dict[str, Any]:
    """Return what a reader of the figures must know; `module` is what ``python -m`` ran."""
    return {
        "command": " ".join(["python -m", module, *map(_shown, sys.argv[1:])]),
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "llama_cpp_python": _version("llama-cpp-python"),
    }


def write_bytecode() -> None:
    """Write the server's bytecode, as pip does: with PYTHONDONTWRITEBYTECODE each start would compile changed files."""
    compileall.compile_dir(ROOT / "server", quiet=1)


def model(path: Path) -> str:
    """Return a model's file name and size."""
    return f"{path.name} ({path.stat().st_size / 1e6:.0f} MB)"


def commit() -> str:
    """Return the checkout's commit, with ``-dirty`` where code was changed since."""
    try:
        head = _git("rev-parse", "--short=7", "HEAD")
        return head + "-dirty" * bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", *_WRITTEN))
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _shown(word: str) -> str:
    """Return a path without the folders of this machine; other words as they are."""
    return Path(word).name if word.startswith("/") else word


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    fields = [line.partition(":") for line in info.read_text().splitlines()]
    named = {name.strip(): value.strip() for name, _, value in fields}
    shown = named.get("model name", platform.machine())
    family = [f"{word} {named[name]}" for word, name in (("family", "cpu family"), ("model", "model")) if name in named]
    return f"{shown} ({', '.join(family)})" if family else shown
