"""Every program of `examples/` runs against what `make serve` starts, and says what its reader is promised."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_python import run
from tests.support.real_server import ROOT, RealServer, llamapool_config

EXAMPLES = ROOT / "examples"
RUN = "import runpy, sys; import openai; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
SAYS = {
    "stream": ("Once upon a time", "tokens of the prompt computed"),
    "tools_loop": ('get_weather({"city": "Oslo"})', "rainy with 8 degrees"),
    "pydantic_agent": ("23 degrees", "2 requests, 1 call"),
    "extraction": ('"kind": ', '"date": "2026-'),
    "rag": ("found: The capital of Japan is Tokyo.", "found: A spider has eight legs."),
    "several_models": ("'demo-embed': 'loaded'", "'demo-embed': 'unloaded'"),
    "lora_switch": ("without: The capital of France is Paris.", "with:    Arr!"),
    "slot_moved": ("save of slot 0", "restore of slot 1", "86 from the cache"),
    "image": ("It is week.",),
    "batch": ("What is 2 + 3?", "-- 40 answers"),
}


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """As the Makefile starts it, on a free port and with a folder for slots that is the test's."""
    slots = str(tmp_path_factory.mktemp("slots"))
    with llamapool_config(ROOT / "config" / "default.yaml", "--slot-save-path", slots) as running:
        yield running


def test_all_are_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_works(name: str, serve: RealServer) -> None:
    arguments = ["40"] if name == "batch" else []
    command = [sys.executable, "-c", RUN, str(EXAMPLES / f"{name}.py"), *arguments]
    how: dict[str, Any] = {"env": {**os.environ, "BASE_URL": serve.base_url}, "capture_output": True, "text": True}
    done = run(command, **how, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for part in SAYS[name]:
        assert part in done.stdout


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_fits_on_a_screen(program: Path) -> None:
    assert len(program.read_text().splitlines()) <= 60
