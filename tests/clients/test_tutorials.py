"""Run the commands of every tutorial and how-to guide, and every program in `examples/`, against a real server.

The title of a fenced block is the name of a file to write, ``server`` (a command that runs until the tutorial ends) or
``install`` (not run here). Other ``sh`` blocks run in order. Each line of a ``text`` block must occur in the output of
the ``sh`` block before it.
"""

import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked_python
from tests.support.forked_python import run
from tests.support.real_server import ROOT, RealServer, free_port, llamapool_config

DOCS = ROOT / "docs"
TUTORIALS = [
    *sorted(DOCS.glob("tutorials/*.md")),
    *sorted(DOCS.glob("howto/*.md")),
    DOCS / "from-ollama.md",
    DOCS / "llama-server.md",
]
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_PORT = "8080"
_BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. ``title``: a file name, ``server``, ``install`` or None."""

    language: str
    title: str | None
    text: str


def blocks(page: Path, port: int) -> Iterator[Block]:
    for found in _FENCE.finditer(page.read_text()):
        yield Block(found[1], found[2], found[3].replace(_PORT, str(port)))


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_works_as_written(page: Path, tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(ROOT / "models")
    (tmp_path / "config").symlink_to(ROOT / "config")
    (tmp_path / "bin").mkdir()
    forked_python.write_command(tmp_path / "bin")
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{_BIN}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONPATH": str(ROOT),
    }
    output, port = "", free_port()
    n_run = 0
    with ExitStack() as servers:
        for block in blocks(page, port):
            if block.title == "install":
                continue
            if block.title == "server":
                servers.enter_context(_serve(block.text, port, tmp_path, environment))
            elif block.title:
                (tmp_path / block.title).write_text(block.text)
            elif block.language == "sh":
                options: dict[str, Any] = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
                done = subprocess.run(["bash", "-ec", block.text], **options, timeout=300, check=False)
                assert done.returncode == 0, f"{block.text}\n{done.stdout}{done.stderr}"
                output = done.stdout
                n_run += 1
            elif block.language == "text":
                _assert_contains(output, block.text)
    assert n_run


def _serve(command: str, port: int, folder: Path, environment: dict[str, str]) -> RealServer:
    """Start the server of a tutorial. Entering the returned context waits until the server is healthy."""
    assert command.startswith("llamapool ")
    server = RealServer(["bash", "-c", f"cd {folder} && exec {command}"], port, environment)
    if "--ssl-cert-file" in command:
        server.tls = ssl.create_default_context()
        server.tls.check_hostname = False
        server.tls.verify_mode = ssl.CERT_NONE  # only the health check: curl verifies the certificate
    return server


def _assert_contains(output: str, expected: str) -> None:
    """Assert that each line of `expected` occurs in `output`."""
    assert [line for line in expected.splitlines() if line not in output] == [], output


EXAMPLES = ROOT / "examples"
RUN = "import runpy, sys; import openai; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
OUTPUTS = {
    "stream": ("Once upon a time", "prompt tokens computed"),
    "tools_loop": ('get_weather({"city": "Oslo"})', "rainy with 8 degrees"),
    "pydantic_agent": ("23 degrees", "2 requests, 1 call"),
    "extraction": ('"kind": ', '"date": "2026-'),
    "rag": ("found: The capital of Japan is Tokyo.", "found: A spider has eight legs."),
    "several_models": ("'demo-embed': 'loaded'", "'demo-embed': 'unloaded'"),
    "lora_switch": ("without: The capital of France is Paris.", "with:    Arr!"),
    "slot_moved": ("save of slot 0", "restore of slot 1", "'n_restored': 86", "slot 1: 1 tokens computed"),
    "image": ("It is week.",),
    "batch": ("What is 2 + 3?", "-- 40 answers"),
}


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Start the server as ``make serve`` does, on a free port and with its own folder for saved slots."""
    slots = str(tmp_path_factory.mktemp("slots"))
    with llamapool_config(ROOT / "config" / "default.yaml", "--slot-save-path", slots) as running:
        yield running


def test_every_example_has_an_expected_output() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(OUTPUTS)


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_example_prints_its_expected_output(name: str, serve: RealServer) -> None:
    arguments = ["40"] if name == "batch" else []
    command = [sys.executable, "-c", RUN, str(EXAMPLES / f"{name}.py"), *arguments]
    options: dict[str, Any] = {"env": {**os.environ, "BASE_URL": serve.base_url}, "capture_output": True, "text": True}
    done = run(command, **options, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for part in OUTPUTS[name]:
        assert part in done.stdout


@pytest.mark.skipif(shutil.which("jq") is None, reason="docs/session.sh needs jq")
def test_the_recorded_session_is_equal_to_a_new_one(serve: RealServer) -> None:
    options: dict[str, Any] = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(["bash", "docs/session.sh", serve.base_url], **options, check=True)
    page = (DOCS / "session.md").read_text()
    assert _comparable(done.stdout) == _comparable(page)
    assert len(_comparable(page)) > 10


def _comparable(session: str) -> list[str]:
    """Return the JSON lines of `session` without ids, times, versions and more than two decimals."""
    varies = re.compile(r'"(?:id|system_fingerprint)":"[^"]*"|"created":\d+|"timings":.*|(?<=\.\d\d)\d+')
    return [varies.sub("", line) for line in session.splitlines() if line.startswith(("{", "[{", "data:"))]


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_has_at_most_60_lines(program: Path) -> None:
    assert len(program.read_text().splitlines()) <= 60
