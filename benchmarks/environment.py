"""Describe the environment of a measurement, as each raw JSON file records it: commit, CPU, library and command."""

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
_OUTPUTS = (":!benchmarks/results", ":!benchmarks/plots", ":!*.md")
"""Files that benchmarks write. Changes to them do not make a checkout dirty."""


def describe(module: str) -> dict[str, Any]:
    """Return the environment of a run of ``python -m MODULE``."""
    return {
        "command": " ".join(["python -m", module, *map(_without_folder, sys.argv[1:])]),
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "llama_cpp_python": _version("llama-cpp-python"),
    }


def write_bytecode() -> None:
    """Write the server's bytecode as pip does. With PYTHONDONTWRITEBYTECODE, each start would compile changed files."""
    compileall.compile_dir(ROOT / "server", quiet=1)


def model(path: Path) -> str:
    """Return a model's file name and size."""
    return f"{path.name} ({path.stat().st_size / 1e6:.0f} MB)"


def commit() -> str:
    """Return the checkout's commit, with ``-dirty`` if code has changed since."""
    try:
        head = _git("rev-parse", "--short=7", "HEAD")
        return head + "-dirty" * bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", *_OUTPUTS))
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _without_folder(argument: str) -> str:
    """Return the file name of an absolute path; other arguments unchanged."""
    return Path(argument).name if argument.startswith("/") else argument


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
    values = {name.strip(): value.strip() for name, _, value in fields}
    name = values.get("model name", platform.machine())
    labels = (("family", "cpu family"), ("model", "model"))
    family = [f"{label} {values[key]}" for label, key in labels if key in values]
    return f"{name} ({', '.join(family)})" if family else name
