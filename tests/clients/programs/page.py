"""Writes docs/clients.md: the configuration of each program, and the tested steps of its loop."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.clients.programs.program import Program

HEAD = """\
# Agents and clients

`llamapool launch codex` (or `claude`, `opencode`, `aider`) starts an agent that uses your server, without changing
the agent's own configuration ([tutorial](tutorials/coding-agent.md)). This page has the settings of these and other
programs, for use without that command.

In the settings, `demo` is a model's id or alias, and `http://127.0.0.1:8080` is the server's URL. If the server has
API keys, replace `none` by a key.
"""
TESTED = """\
## What was tested

`make clients` installs each program in an empty home directory, runs its agent loop against a server on loopback,
and writes this page. A script replaces the model, so that each step occurs; the server's HTTP layer, templates and
engine are real. It also checks that the program ends with status 0, that all slots are free afterwards, and that no
other request is refused. The same programs then run with real models, and only status codes are checked.
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
COLUMNS = {
    "stream": ("a streamed reply",),
    "tool call": ("a tool call",),
    "parallel calls": ("parallel calls",),
    "reasoning": ("reasoning",),
    "schema": ("structured output", "a typed reply"),
    "second turn": ("a resumed session",),
    "cancel": ("a cancelled stream",),
    "overflow": ("a context overflow",),
}
"""Columns of the table, with the prefixes of the names of their steps."""
_IN_COLUMNS = tuple(prefix for prefixes in COLUMNS.values() for prefix in prefixes)
CHECKS = ("exit status 0", "all slots are free", "no other request is rejected", "requests are answered")


def page(programs: Sequence[Program], results: Sequence[Mapping[str, Any]]) -> str:
    """Return the page for the programs that have results."""
    by_name = {program.name: [each for each in results if each["program"] == program.name] for program in programs}
    tested = [program for program in programs if by_name[program.name]]
    sections = (_section(program, by_name[program.name]) for program in tested)
    return "\n".join([HEAD, *sections, TESTED, _table(tested, by_name)])


def _section(program: Program, results: Sequence[Mapping[str, Any]]) -> str:
    title = f"## {program.name}"
    paths = sorted({path for each in results for path in each["paths"]})
    package = f"Package `{program.package}`. " if program.package else ""
    snippet = program.snippet.replace("{url}", URL).replace("{model}", MODEL).rstrip()
    lines = [title, "", f"{package}Endpoints: {', '.join(f'`{path}`' for path in paths)}.", ""]
    lines += [f"```{FENCES.get(program.name, 'python')}", snippet, "```", ""]
    warnings = list(dict.fromkeys(part for each in results for part in each["warnings"]))
    if warnings:
        lines += ["`X-Llamapool-Warning` in replies:", "", *(f"- {part}" for part in warnings), ""]
    return "\n".join(lines)


def _table(programs: Sequence[Program], by_name: Mapping[str, list[Mapping[str, Any]]]) -> str:
    head = ["program", "version", "templates and models", *COLUMNS, "other steps"]
    rows = [head, ["---"] * len(head), *(_row(program, by_name[program.name]) for program in programs)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _row(program: Program, results: Sequence[Mapping[str, Any]]) -> list[str]:
    steps = [(_plain(step["name"]), step["done"]) for each in results for step in each["steps"]]
    cells = [_cell(done for name, done in steps if name.startswith(prefixes)) for prefixes in COLUMNS.values()]
    others = dict.fromkeys(
        name for name, done in steps if done and not name.startswith(_IN_COLUMNS) and name not in CHECKS
    )
    missing = dict.fromkeys(
        f"{each['family']}: {step['name']}" for each in results for step in each["steps"] if not step["done"]
    )
    rest = "; ".join(others) + (f" **Not done:** {'; '.join(missing)}" if missing else "")
    families = ", ".join(dict.fromkeys(str(each["family"]) for each in results))
    return [f"[{program.name}](#{program.name.lower().replace(' ', '-')})", program.version, families, *cells, rest]


def _plain(step: str) -> str:
    """Return the step's name without its API (``chat: a streamed reply``) if the table has a column for it."""
    name = step.rpartition(": ")[2]
    return name if name.startswith(_IN_COLUMNS) else step


def _cell(done: Iterable[bool]) -> str:
    steps = list(done)
    return "" if not steps else "yes" if all(steps) else f"{sum(steps)} of {len(steps)}"
