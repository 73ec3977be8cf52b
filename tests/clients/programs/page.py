"""docs/clients.md: how each program is configured, and which steps of its loop were tested."""

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
"""Column of the table: the starts of the names of its steps."""
_KNOWN = tuple(start for starts in COLUMNS.values() for start in starts)
CHECKS = ("exit status 0", "all slots are free", "no other request is rejected", "requests are answered")


def page(programs: Sequence[Program], results: Sequence[Mapping[str, Any]]) -> str:
    of = {program.name: [one for one in results if one["program"] == program.name] for program in programs}
    shown = [program for program in programs if of[program.name]]
    return "\n".join([HEAD, *(_section(one, of[one.name]) for one in shown), TESTED, _table(shown, of)])


def _section(program: Program, found: Sequence[Mapping[str, Any]]) -> str:
    title = f"## {program.name}"
    paths = sorted({path for one in found for path in one["paths"]})
    package = f"Package `{program.package}`. " if program.package else ""
    snippet = program.configure.replace("{url}", URL).replace("{model}", MODEL).rstrip()
    lines = [title, "", f"{package}Endpoints: {', '.join(f'`{path}`' for path in paths)}.", ""]
    lines += [f"```{FENCES.get(program.name, 'python')}", snippet, "```", ""]
    warnings = list(dict.fromkeys(part for one in found for part in one["warnings"]))
    if warnings:
        lines += ["`X-Llamapool-Warning` in replies:", "", *(f"- {part}" for part in warnings), ""]
    return "\n".join(lines)


def _table(programs: Sequence[Program], of: Mapping[str, list[Mapping[str, Any]]]) -> str:
    head = ["program", "version", "templates and models", *COLUMNS, "other steps"]
    rows = [head, ["---"] * len(head), *(_row(program, of[program.name]) for program in programs)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _row(program: Program, found: Sequence[Mapping[str, Any]]) -> list[str]:
    steps = [(_plain(step["name"]), step["done"]) for one in found for step in one["steps"]]
    cells = [_cell(done for name, done in steps if name.startswith(starts)) for starts in COLUMNS.values()]
    others = dict.fromkeys(name for name, done in steps if done and not name.startswith(_KNOWN) and name not in CHECKS)
    missing = dict.fromkeys(f"{one['family']}: {s['name']}" for one in found for s in one["steps"] if not s["done"])
    rest = "; ".join(others) + (f" **Not done:** {'; '.join(missing)}" if missing else "")
    families = ", ".join(dict.fromkeys(str(one["family"]) for one in found))
    return [f"[{program.name}](#{program.name.lower().replace(' ', '-')})", program.version, families, *cells, rest]


def _plain(step: str) -> str:
    """Return the step's name without its API (``chat: a streamed reply``) if the table has a column for it."""
    name = step.rpartition(": ")[2]
    return name if name.startswith(_KNOWN) else step


def _cell(done: Iterable[bool]) -> str:
    steps = list(done)
    return "" if not steps else "yes" if all(steps) else f"{sum(steps)} of {len(steps)}"
