"""The documentation: code blocks parse, links and names exist, docs/troubleshooting.md lists errors and warnings."""

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from server.engine.request import State
from server.telemetry.record import ModelUse, Record

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md"))
    if not {".venv", "build"} & set(path.relative_to(ROOT).parts)
)
_MODEL_OUTPUT = ("tool-formats.md",)  # its blocks are model output, not valid JSON
_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def _blocks(page: Path, *languages: str) -> Iterator[str]:
    for match in _FENCE.finditer(page.read_text()):
        if match[1] in languages:
            yield match[2]


@each_page
def test_code_blocks_parse_in_their_language(page: Path) -> None:
    for code in _blocks(page, "python"):
        ast.parse(code)
    for code in _blocks(page, "json") if page.name not in _MODEL_OUTPUT else ():
        json.loads("\n".join(line for line in code.splitlines() if not line.startswith("//")))  # // names the file
    for code in _blocks(page, "yaml"):
        list(yaml.safe_load_all(code))
    for code in _blocks(page, "sh", "bash"):
        done = subprocess.run(["bash", "-n"], input=code, text=True, capture_output=True, check=False)
        assert done.returncode == 0, f"{code}\n{done.stderr}"


@each_page
def test_relative_links_exist(page: Path) -> None:
    text = _FENCE.sub("", page.read_text())
    targets = [target for target in _LINK.findall(text) if not re.match(r"[a-z]+:", target)]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@each_page
def test_files_named_by_a_page_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # names files of earlier versions
    text = re.sub(r"`git show [^`]+`", "", _FENCE.sub("", page.read_text()))
    named = re.findall(r"`((?:server|tests|benchmarks|llamapool|extras|deploy)/[\w./-]+\.\w+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_names_in_the_architecture_exist_in_the_code() -> None:
    modules = [*(ROOT / "server").rglob("*.py"), *(ROOT / "llamapool").rglob("*.py")]
    words = set(re.findall(r"\w+", "".join(path.read_text() for path in modules)))
    places = [f"/{path.relative_to(ROOT)}#" for path in modules]
    text = _FENCE.sub("", (ROOT / "docs/architecture.md").read_text())
    named = re.findall(r"`([\w/]+\.py|[\w/]+/|[A-Za-z_][\w.]*)`", text)
    assert len(named) > 150
    paths = {name for name in named if "/" in name or name.endswith(".py")}
    absent = [name for name in paths if not any(f"/{name}{'#' * name.endswith('.py')}" in place for place in places)]
    assert [name for name in absent if not (ROOT / name).exists()] == []
    assert [name for name in named if name not in paths and name.rpartition(".")[2] not in words] == []


def test_architecture_lists_packages_in_the_order_of_their_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [set(layer.split(" | ")) for layer in contracts[0]["layers"]]
    section = (ROOT / "docs/architecture.md").read_text().partition("\n## Packages\n")[2].partition("\n## ")[0]
    cells = "".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    listed = [name for name in re.findall(r"`(\w+)(?:/|\.py)`", cells) if name != "bench"]
    places = [next(n for n, layer in enumerate(layers) if name in layer) for name in listed]
    assert places == sorted(places)
    assert set(listed) == set().union(*layers) - {"__main__"}


def test_mkdocs_navigation_lists_every_page() -> None:
    """Otherwise `make docs` fails."""
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2])
    outside = re.findall(r'\.md": "([\w-]+\.md)"', (ROOT / "extras/docs/outside.py").read_text())
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert sorted(listed) == sorted([*pages, *outside])


def test_each_cell_of_the_comparison_has_a_command_or_a_source() -> None:
    page = (ROOT / "docs/comparison.md").read_text()
    sources = set(re.findall(r"^- (\[[a-z]\]) ", page, re.MULTILINE))
    rows = [
        line.strip("| ").split("|")[1:]
        for line in page.splitlines()
        if line.startswith("| ") and "| Llamapool |" not in line
    ]
    cells = [cell.strip() for row in rows for cell in row if cell.strip()]
    assert len(cells) > 70
    assert [cell for cell in cells if not re.search(r"`[^`]+`|\]\(|\[[a-z]\]", cell)] == []
    assert set(re.findall(r"\[[a-z]\](?!\()", page)) == sources


@pytest.mark.parametrize("page", ["README.md", "docs/llama-server.md", "tests/conformance/README.md"])
def test_published_conformance_counts_match_the_list_of_known_failures(page: str) -> None:
    """`make conformance` checks the list: it fails if any other test fails or a listed one passes."""
    folder = ROOT / "tests" / "conformance"
    known = json.loads((folder / "known.json").read_text())
    baseline = json.loads((folder / "baseline.json").read_text())["tests"]
    counted = [name for name, got in baseline.items() if got["outcome"] == "passed" and not got.get("passes_null")]
    failing = [*known["on_purpose"], *(name for names in known["not_there_yet"].values() for name in names)]
    assert set(failing) <= set(counted)
    assert len(set(failing)) == len(failing)
    text = " ".join((ROOT / page).read_text().split())
    found = re.search(r"Of the (\d+) tests (?:of llama.cpp's server suite )?that llama-server passes, (\d+) pass", text)
    assert found, page
    assert (int(found[1]), int(found[2])) == (len(counted), len(counted) - len(failing))


def test_example_commits_in_contributing_exist_and_change_the_named_paths() -> None:
    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], text=True, capture_output=True, check=False)

    examples = re.findall(r"`git show ([0-9a-f]{7,}) -- ([^`]+)`", (ROOT / "docs/CONTRIBUTING.md").read_text())
    assert len(examples) >= 4
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("no clone with the whole history")
    existing = [each for each in examples if git("cat-file", "-e", f"{each[0]}^{{commit}}").returncode == 0]
    if not existing:
        pytest.skip("the clone has another history")
    assert existing == examples
    assert [
        commit for commit, paths in examples if not git("show", "--format=", commit, "--", *paths.split()).stdout
    ] == []


ERRORS, LOG_MESSAGES = "Errors of options, models and downloads", "Log messages"
_LEVELS = ("log", "warning", "error", "critical", "exception")
_BUG = ("please report it", "Report it", "Report what follows")
_ERRORS = frozenset(
    (
        *("ConfigError", "LlamapoolError", "DownloadFailed", "Unavailable", "NotSupported", "PermissionDenied"),
        *("ModelFailed", "ModelEnded", "ModelRestarting", "TooLate", "ShuttingDown", "AuthenticationFailed"),
    )
)
"""Errors about the server. `InvalidRequest` names the field of the request; docs/errors.md has their statuses."""
_REMEDY = re.compile(
    r"; [\w…]|pip install|known:|did you mean|\b(?:see|use|write|start|set|retry|install|attach)\b|--[a-z]"
    r"|must be|should be|needs? |not one of|outside|lacks|requires|at most|possible"
)
_VALUE = re.compile(r"%[-.0-9]*[a-z]")
_MIN_WORDS = 3


@cache
def calls() -> list[tuple[str, ast.Call]]:
    """Return method calls and constructor calls of raised errors, with their places."""
    found = []
    for path in sorted((ROOT / "server").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            call = node.exc if isinstance(node, ast.Raise) else node
            if isinstance(call, ast.Call) and (isinstance(node, ast.Raise) or isinstance(call.func, ast.Attribute)):
                found.append((f"{path.relative_to(ROOT)}:{call.lineno}", call))
    return found


def logged() -> Iterator[tuple[str, str]]:
    """Yield each constant message of a logger's warnings and errors, with its place."""
    for place, call in calls():
        match call:
            case ast.Call(ast.Attribute(ast.Name(logger), level), [_, *_]) if "log" in logger and level in _LEVELS:
                message = call.args[level == "log"]  # `Logger.log` has the level first
                if isinstance(message, ast.Constant) and isinstance(message.value, str):
                    yield place, message.value


def raised() -> Iterator[tuple[str, str]]:
    """Yield the message of each raised error of `_ERRORS`, with its place and … for each value."""
    for place, call in calls():
        for argument in call.args if isinstance(call.func, ast.Name) and call.func.id in _ERRORS else ():
            if isinstance(argument, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in argument.values]
                yield place, "".join(parts)
            elif isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield place, argument.value


def entries(heading: str) -> list[str]:
    """Return the messages that the section's table quotes in backticks, with … for values."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [quoted for cell in cells for quoted in re.findall(r"`([^`]+)`", cell)]


def pattern(entry: str) -> str:
    return re.escape(entry).replace("…", ".+")


def words(text: str) -> int:
    return len(re.findall(r"[A-Za-z]{2,}", _VALUE.sub(" ", text)))


def test_each_error_names_a_remedy_or_is_in_troubleshooting() -> None:
    found = re.compile("|".join(map(pattern, entries(ERRORS))))
    messages = [(place, text) for place, text in raised() if words(text) >= _MIN_WORDS]
    assert len(messages) > 150
    assert [(place, text) for place, text in messages if not _REMEDY.search(text) and not found.search(text)] == []


def test_each_log_message_is_in_troubleshooting() -> None:
    found = re.compile("|".join(map(pattern, entries(LOG_MESSAGES))))
    messages = [(place, text) for place, text in logged() if not any(bug in text for bug in _BUG)]
    assert len(messages) > 50
    missing = [f"{place}: {text}" for place, text in messages if words(text) >= _MIN_WORDS and not found.search(text)]
    assert missing == []


@pytest.mark.parametrize(("heading", "messages"), [(ERRORS, raised), (LOG_MESSAGES, logged)])
def test_each_message_in_troubleshooting_exists(
    heading: str, messages: Callable[[], Iterator[tuple[str, str]]]
) -> None:
    texts = "\n".join(text for _, text in messages())
    assert [entry for entry in entries(heading) if not re.search(pattern(entry), texts)] == []


def test_each_field_of_a_request_log_line_is_documented() -> None:
    usage = ModelUse("demo", n_draft=1, slots=[0], reasons=["eos"], retried=True)
    record = Record("1", "POST", "/", key="ada", route="/", status=200, error="", usage=usage)
    page = (ROOT / "docs/metrics.md").read_text()
    assert [name for name in record.fields() if f"`{name}`" not in page] == []


def test_web_ui_and_documentation_name_every_request_state() -> None:
    texts = (ROOT / "server/web/static/app/lib/texts.js").read_text()
    assert set(re.findall(r"^outcome_(\w+):", texts, re.MULTILINE)) == {*State} - {State.CUT_OFF}
    documented = (ROOT / "docs/metrics.md").read_text()
    assert all(f"`{state}`" in documented for state in (State.DONE, State.CUT_OFF))
    assert all(state in documented for state in (State.CANCELLED, State.FAILED))
