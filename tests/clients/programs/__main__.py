"""``python -m tests.clients.programs``: install the programs, run their loops, and report the steps.

    --only NAME     programs whose name starts with NAME (repeatable)
    --family NAME   the chat template of this family instead of those of each program (repeatable)
    --real FILE     also run the loops with a real model, and check only status codes (repeatable)
    --install       only install the programs
    --write         write docs/clients.md and the recorded shapes, with earlier results of programs that did not run

All files are created in build/clients. The exit status is 0 if every step was done.
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
from tests.clients.programs.harness import (
    LOOP_LIMIT_S,
    Server,
    Workspace,
    create_workspace,
    real_server,
    scripted_server,
)
from tests.clients.programs.libraries import EDITORS, LIBRARIES
from tests.clients.programs.page import page
from tests.clients.programs.program import Program, Run, Step
from tests.clients.programs.scripted_model import ScriptLine
from tests.clients.programs.shapes import write_shapes
from tests.support.real_server import ROOT, ServerEndError

BUILD = ROOT / "build" / "clients"
PINS = Path(__file__).parent / "pins"
UV = "uv==0.13.9"
SERVER_ENDS = "the server stops cleanly"
PROGRAMS = (*AGENTS, *LIBRARIES, *EDITORS)
EXPECTED = (
    *("exceed_context_size_error", "prompt is too long", "available context size"),
    *("does not support thinking", "Infill is not supported by this model"),
)
"""Errors that loops provoke: prompts that are too long, and features that a real model lacks."""


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also stops the server and the running client
    # Background jobs of a shell ignore SIGINT, and their children inherit that: no stream could be cancelled.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", action="append", default=[])
    options.add_argument("--family", action="append", default=[])
    options.add_argument("--real", action="append", default=[], type=Path)
    options.add_argument("--install", action="store_true")
    options.add_argument("--write", action="store_true")
    args = options.parse_args()
    templates = Path(os.environ.get("LLAMA_CPP_TEMPLATES") or ROOT / ".venv" / "templates")
    programs = [each for each in PROGRAMS if not args.only or each.name.lower().startswith(tuple(args.only))]
    for folder in dict.fromkeys(each.folder for each in programs):
        install(folder, [each for each in PROGRAMS if each.folder == folder])
    if args.install:
        return 0
    results: list[dict[str, Any]] = []
    for program in programs:
        for family in args.family or program.families:
            results.append(report(program, family, run_scripted(program, family, templates)))
        for model in args.real:
            results.append(report(program, model.stem, run_real(program, model)))
    all_results = _with_earlier(results)
    if args.write:
        (ROOT / "docs" / "clients.md").write_text(page(PROGRAMS, all_results), encoding="utf-8")
        write_shapes(BUILD / "run")
    n_failed = sum(not step["done"] for each in results for step in each["steps"])
    print(f"{len(results)} loops, {n_failed} steps not done")
    return 1 if n_failed else 0


def _with_earlier(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge `results` into the results of earlier runs. Store and return all."""
    file = BUILD / "report.json"
    earlier = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    newest = {(each["program"], each["family"]): each for each in [*earlier, *results]}
    file.write_text(json.dumps(list(newest.values()), indent=1), encoding="utf-8")
    return list(newest.values())


def install(folder: str, programs: Sequence[Program]) -> None:
    """Install the pinned packages of `programs` into `folder`, unless they are installed already."""
    path, kind = BUILD / folder, folder.partition("/")[0]
    pins = PINS / f"{folder}.txt"
    packages = [f"{each.package}@{each.version}" for each in programs] if kind == "npm" else [pins.read_text("utf-8")]
    marker = path / ".installed"
    if marker.exists() and marker.read_text("utf-8") == "\n".join(packages):
        return
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    if kind == "npm":
        run_command(
            "npm", "install", "--prefix", path, "--ignore-scripts", "--no-audit", "--no-fund", "--silent", *packages
        )
    else:
        uv = BUILD / "uv" / "bin" / "uv"
        if not uv.exists():
            run_command(sys.executable, "-m", "venv", BUILD / "uv")
            run_command(BUILD / "uv" / "bin" / "pip", "install", "--quiet", UV)
        run_command(uv, "venv", "--quiet", "--python", sys.executable, path, "--clear")
        run_command(uv, "pip", "install", "--quiet", "--python", path / "bin" / "python", "-r", pins)
    marker.write_text("\n".join(packages), encoding="utf-8")


def run_command(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True)


def run_scripted(program: Program, family: str, templates: Path) -> Run:
    """Run a program's loop with its script."""
    root, workspace = _empty_folders(program, family)
    script = [_in_workspace(line, workspace) for line in program.script]
    context = scripted_server(root / "server", family, templates, script, *program.flags, context=program.context)
    return _run(context, program, family, workspace)


def run_real(program: Program, model: Path) -> Run:
    """Run a program's loop with a real model. Its replies are unpredictable, so only status codes are checked."""
    root, workspace = _empty_folders(program, model.stem)
    # The first prompt of an agent exceeds the trained context of small models.
    context = ("-c", str(program.context), "--override-kv", f"llama.context_length=int:{program.context}")
    flags = (*context, "-np", "4", "--kv-unified", "-n", "32", *program.flags)
    workspace.step_limit_s = LOOP_LIMIT_S
    run = _run(real_server(root / "server", model, *flags), program, model.stem, workspace)
    answered = any(request["status"] == 200 for request in run.server.requests() if request["method"] == "POST")
    run.steps = [
        Step("requests are answered", answered, "no request, or none with status 200"),
        _no_other_errors(run),
        *(step for step in run.steps if step.name == SERVER_ENDS),
    ]
    return run


def _run(context: AbstractContextManager[Server], program: Program, family: str, workspace: Workspace) -> Run:
    """Run the loop. If the server does not stop cleanly, as on a very busy machine, add a failed step."""
    run: Run | None = None
    try:
        with context as server:
            run = _run_loop(program, family, server, workspace)
    except ServerEndError as error:
        if run is None:
            raise
        run.steps.append(Step(SERVER_ENDS, False, str(error)))
    return run


def _empty_folders(program: Program, run_name: str) -> tuple[Path, Workspace]:
    root = BUILD / "run" / f"{program.name.lower().replace(' ', '-')}.{run_name}"
    shutil.rmtree(root, ignore_errors=True)
    # Outside of the checkout, because programs look for a repository in the parents of their working directory.
    temporary = Path(tempfile.mkdtemp(prefix="llamapool-client-"))
    return root, create_workspace(temporary, time.monotonic() + LOOP_LIMIT_S)


def _run_loop(program: Program, family: str, server: Server, workspace: Workspace) -> Run:
    run = Run(program, family, server, workspace, BUILD / program.folder)
    try:
        program.loop(run)
        run.steps.append(_no_other_errors(run))
    except Exception as error:  # noqa: BLE001 (a loop that raises is a failed step; the other loops run)
        run.steps.append(Step("the loop itself", False, repr(error)))
    finally:
        shutil.rmtree(workspace.root, ignore_errors=True)
    return run


def _no_other_errors(run: Run) -> Step:
    """Return a step that fails if the server sent errors that the loop did not provoke."""
    errors = [line for line in dict.fromkeys(run.failed_requests()) if not any(part in line for part in EXPECTED)]
    return Step("no other request is rejected", not errors, "\n".join(errors)[:3000])


def _in_workspace(line: ScriptLine, workspace: Workspace) -> ScriptLine:
    """Replace {work} by the path of the working directory."""
    return replace(line, message=json.loads(json.dumps(line.message).replace("{work}", str(workspace.work))))


def report(program: Program, family: str, run: Run) -> dict[str, Any]:
    """Print the failed steps, and return the result for docs/clients.md."""
    failed = [step for step in run.steps if not step.done]
    print(f"{program.name} {program.version} on {family}: {len(run.steps) - len(failed)} of {len(run.steps)}")
    for step in failed:
        print(f"  not done: {step.name}\n    " + step.detail.replace("\n", "\n    "))
    sys.stdout.flush()
    requests = run.server.requests()
    warnings = sorted({part for request in requests for part in (request["warning"] or "").split("; ") if part})
    paths = sorted({f"{request['method']} {request['path']}" for request in requests})
    return {
        "program": program.name,
        "family": family,
        "steps": [asdict(step) for step in run.steps],
        "warnings": warnings,
        "paths": paths,
    }


if __name__ == "__main__":
    sys.exit(main())
