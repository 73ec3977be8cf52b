"""docs/clients.md: what each program did, and how it is configured."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.clients.programs.program import Program

HEAD = """\
# Clients

`make clients` generates this page. It installs each program in its own folder and runs a complete agent loop against
a server on loopback, with an empty home directory. The server's HTTP layer, APIs, templates and engine are real. A
script replaces the model, so that each step occurs (a call, parallel calls, an endless text); it writes in the model
family's chat format. Then the same programs run with real models, and only status codes are checked.

{model} is a model's id or alias, {url} the server's URL without `/v1`. If the server has API keys, replace `none` by
a key.
"""
FENCES = {
    "Codex CLI": "toml",
    "Claude Code": "sh",
    "opencode": "json",
    "llm": "yaml",
    "aider": "sh",
    "FIM editors": "vim",
}
URL, MODEL = "http://127.0.0.1:8080", "demo"
NOT_DONE = "not done"


def page(programs: Sequence[Program], results: Sequence[Mapping[str, Any]]) -> str:
    """The whole page."""
    of = {program.name: [one for one in results if one["program"] == program.name] for program in programs}
    parts = [HEAD.replace("{model}", f"`{MODEL}`").replace("{url}", f"`{URL}`"), _table(programs, of)]
    parts += [_section(program, of[program.name]) for program in programs if of[program.name]]
    return "\n".join(parts)


def _table(programs: Sequence[Program], of: Mapping[str, list[Mapping[str, Any]]]) -> str:
    rows = ["| program | version | requests | templates and models | result |", "|---|---|---|---|---|"]
    for program in programs:
        found = of[program.name]
        if not found:
            continue
        asked = sorted({path for one in found for path in one["paths"]})
        where = ", ".join(dict.fromkeys(str(one["family"]) for one in found))
        steps = [step for one in found for step in one["steps"]]
        n_done = sum(step["done"] for step in steps)
        result = f"all {len(steps)} steps" if n_done == len(steps) else f"**{n_done} of {len(steps)} steps**"
        paths = " ".join(f"`{path}`" for path in asked)
        rows.append(
            f"| [{program.name}](#{_anchor(program.name)}) | {program.version} | {paths} | {where} | {result} |"
        )
    return "\n".join(rows) + "\n"


def _section(program: Program, found: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"## {program.name}", ""]
    if program.package:
        lines += [f"Package `{program.package}`, version {program.version}.", ""]
    snippet = program.configure.replace("{url}", URL).replace("{model}", MODEL)
    lines += [f"```{FENCES.get(program.name, 'python')}", snippet.rstrip(), "```", ""]
    done = list(dict.fromkeys(step["name"] for one in found for step in one["steps"] if step["done"]))
    lines += [f"Done: {'; '.join(done)}.", ""]
    for one in found:
        missing = [step["name"] for step in one["steps"] if not step["done"]]
        if missing:
            lines += [f"Not done on {one['family']}: {'; '.join(missing)}.", ""]
    notes = [f"- {note}" for one in found for note in one.get("notes", ())]
    if notes:
        lines += ["Measured:", "", *notes, ""]
    warnings = list(dict.fromkeys(part for one in found for part in one["warnings"]))
    if warnings:
        lines += ["`X-Llamapool-Warning` in replies:", "", *(f"- {part}" for part in warnings), ""]
    return "\n".join(lines)


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")
