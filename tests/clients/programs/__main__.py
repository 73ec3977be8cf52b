"""``python -m tests.clients.programs``: install the programs, go through each one's loop, write what was seen.

    --only NAME     programs whose name begins so (repeat)
    --family NAME   instead of those that a program has
    --real FILE     the same on a real model: only status codes are looked at (repeat)
    --install       install the programs, and run nothing
    --write         docs/clients.md and the recorded shapes; programs that were left out stay as they were

Everything it makes is in build/clients. The status is 0 when every loop was done.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.clients.programs.agents import AGENTS
from tests.clients.programs.harness import LIMIT_S, Server, Workplace, real, scripted, workplace
from tests.clients.programs.libraries import EDITORS, LIBRARIES
from tests.clients.programs.page import page
from tests.clients.programs.program import Program, Run, Step
from tests.clients.programs.scripted_model import Line
from tests.clients.programs.shapes import write_shapes
from tests.support.real_server import ROOT, ServerEndError

BUILD = ROOT / "build" / "clients"
PINS = Path(__file__).parent / "pins"
UV = "uv==0.13.9"
SERVER_ENDS = "the server ends as it should"
PROGRAMS = (*AGENTS, *LIBRARIES, *EDITORS)
EXPECTED = (
    *("exceed_context_size_error", "prompt is too long", "available context size"),
    *("does not support thinking", "Infill is not supported by this model"),
)
"""Errors that loops ask for: a prompt that is too long, and, on real models, what that model has not."""


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server and the client at work end, too
    # A shell's background jobs ignore Ctrl-C, and so would clients that they start: a stream could not be cancelled.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", action="append", default=[])
    options.add_argument("--family", action="append", default=[])
    options.add_argument("--real", action="append", default=[], type=Path)
    options.add_argument("--install", action="store_true")
    options.add_argument("--write", action="store_true")
    asked = options.parse_args()
    templates = Path(os.environ.get("LLAMA_CPP_TEMPLATES") or ROOT / ".venv" / "templates")
    wanted = [one for one in PROGRAMS if not asked.only or one.name.lower().startswith(tuple(asked.only))]
    for folder in dict.fromkeys(one.folder for one in wanted):
        install(folder, [one for one in PROGRAMS if one.folder == folder])
    if asked.install:
        return 0
    results: list[dict[str, Any]] = []
    for program in wanted:
        for family in asked.family or program.families:
            results.append(told(program, family, go(program, family, templates)))
        for model in asked.real:
            results.append(told(program, model.stem, go_real(program, model)))
    seen = _with_earlier(results)
    if asked.write:
        (ROOT / "docs" / "clients.md").write_text(page(PROGRAMS, seen), encoding="utf-8")
        write_shapes(BUILD / "run")
    n_open = sum(not step["done"] for one in results for step in one["steps"])
    print(f"{len(results)} loops, {n_open} steps not done")
    return 1 if n_open else 0


def _with_earlier(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was seen now, and before of programs that were left out now; kept for the next time."""
    file = BUILD / "report.json"
    earlier = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    kept = {(one["program"], one["family"]): one for one in [*earlier, *results]}
    file.write_text(json.dumps(list(kept.values()), indent=1), encoding="utf-8")
    return list(kept.values())


def install(folder: str, programs: Sequence[Program]) -> None:
    """Pinned packages into a folder of their own; nothing is done where they are."""
    place, kind = BUILD / folder, folder.partition("/")[0]
    pins = PINS / f"{folder}.txt"
    wanted = [f"{one.package}@{one.version}" for one in programs] if kind == "npm" else [pins.read_text("utf-8")]
    mark = place / ".installed"
    if mark.exists() and mark.read_text("utf-8") == "\n".join(wanted):
        return
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if kind == "npm":
        run("npm", "install", "--prefix", place, "--ignore-scripts", "--no-audit", "--no-fund", "--silent", *wanted)
    else:
        uv = BUILD / "uv" / "bin" / "uv"
        if not uv.exists():
            run(sys.executable, "-m", "venv", BUILD / "uv")
            run(BUILD / "uv" / "bin" / "pip", "install", "--quiet", UV)
        run(uv, "venv", "--quiet", "--python", sys.executable, place, "--clear")
        run(uv, "pip", "install", "--quiet", "--python", place / "bin" / "python", "-r", pins)
    mark.write_text("\n".join(wanted), encoding="utf-8")


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True)


def go(program: Program, family: str, templates: Path) -> Run:
    """One loop over a script."""
    root, place = _empty(program, family)
    lines = [_placed(line, place) for line in program.lines]
    serving = scripted(root / "server", family, templates, lines, *program.flags, context=program.context)
    return _served(serving, program, family, place)


def go_real(program: Program, model: Path) -> Run:
    """One loop on a real model. It says what it likes, so only the status codes count."""
    root, place = _empty(program, model.stem)
    context = ("-c", str(program.context), "--override-kv", f"llama.context_length=int:{program.context}")
    flags = (
        *context,
        "-np",
        "4",
        "--kv-unified",
        "-n",
        "32",
        *program.flags,
    )  # an agent's first prompt is longer than these know
    place.step_s = LIMIT_S
    done = _served(real(root / "server", model, *flags), program, model.stem, place)
    answered = any(one["status"] == 200 for one in done.server.asked() if one["method"] == "POST")
    ended = [step for step in done.steps if step.name == SERVER_ENDS]
    done.steps = [
        Step("requests are answered", answered, "no request, or none with status 200"),
        *_refusals(done),
        *ended,
    ]
    return done


def _served(serving: AbstractContextManager[Server], program: Program, family: str, place: Workplace) -> Run:
    """The loop; a server that does not end well, as on a machine too busy for a long prompt, is a step not done."""
    done: Run | None = None
    try:
        with serving as server:
            done = _gone_through(program, family, server, place)
    except ServerEndError as error:
        if done is None:
            raise
        done.steps.append(Step(SERVER_ENDS, False, str(error)))
    return done


def _empty(program: Program, run_name: str) -> tuple[Path, Workplace]:
    root = BUILD / "run" / f"{program.name.lower().replace(chr(32), chr(45))}.{run_name}"
    shutil.rmtree(root, ignore_errors=True)
    # Outside of the checkout: programs look for a repository above the folder that they work in.
    return root, workplace(Path(tempfile.mkdtemp(prefix="llamapool-client-")), time.monotonic() + LIMIT_S)


def _gone_through(program: Program, family: str, server: Server, place: Workplace) -> Run:
    done = Run(program, family, server, place, BUILD / program.folder)
    try:
        program.loop(done)
    except Exception as error:  # noqa: BLE001 (a loop that breaks is a loop that is not done; the others go on)
        done.steps.append(Step("the loop itself", False, repr(error)))
    finally:
        shutil.rmtree(place.root, ignore_errors=True)
    if not any(step.name == "the loop itself" for step in done.steps):
        done.steps += _refusals(done)
    return done


def _refusals(done: Run) -> list[Step]:
    """Errors that nobody asked for, each once."""
    unasked = [one for one in dict.fromkeys(done.refused()) if not any(part in one for part in EXPECTED)]
    return [Step("no other request is rejected", not unasked, "\n".join(unasked)[:3000])]


def _placed(line: Line, place: Workplace) -> Line:
    """With the working folder's own path."""
    return replace(line, say=json.loads(json.dumps(line.say).replace("{work}", str(place.work))))


def told(program: Program, family: str, done: Run) -> dict[str, Any]:
    open_steps = [step for step in done.steps if not step.done]
    print(f"{program.name} {program.version} on {family}: {len(done.steps) - len(open_steps)} of {len(done.steps)}")
    for step in open_steps:
        print(f"  not done: {step.name}\n    " + step.detail.replace("\n", "\n    "))
    sys.stdout.flush()
    warnings = sorted({part for one in done.server.asked() for part in (one["warning"] or "").split("; ") if part})
    paths = sorted({f"{one['method']} {one['path']}" for one in done.server.asked()})
    return {
        "program": program.name,
        "family": family,
        "steps": [asdict(step) for step in done.steps],
        "notes": done.notes,
        "warnings": warnings,
        "paths": paths,
    }


if __name__ == "__main__":
    sys.exit(main())
