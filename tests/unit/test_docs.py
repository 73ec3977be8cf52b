"""Blocks of code in documents are of the language that they say, and links within the repository lead somewhere."""

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md"))
    if not {".venv", "build"} & set(path.relative_to(ROOT).parts)
)
_OF_MODELS = ("tool-formats.md",)  # has what models write
_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def _blocks(page: Path, *languages: str) -> Iterator[str]:
    for match in _FENCE.finditer(page.read_text()):
        if match[1] in languages:
            yield match[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_blocks_are_of_their_language(page: Path) -> None:
    for code in _blocks(page, "python"):
        ast.parse(code)
    for code in _blocks(page, "json") if page.name not in _OF_MODELS else ():
        json.loads("\n".join(line for line in code.splitlines() if not line.startswith("//")))  # says which file it is
    for code in _blocks(page, "yaml"):
        list(yaml.safe_load_all(code))
    for code in _blocks(page, "sh", "bash"):
        done = subprocess.run(["bash", "-n"], input=code, text=True, capture_output=True, check=False)
        assert done.returncode == 0, f"{code}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text())
    targets = [target for target in _LINK.findall(text) if not re.match(r"[a-z]+:", target)]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "CHANGELOG.md"],  # which tells of what was
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_files_of_ours_that_a_page_names_are_there(page: Path) -> None:
    text = re.sub(r"`git show [^`]+`", "", _FENCE.sub("", page.read_text()))
    named = re.findall(r"`((?:server|tests|benchmarks|llamapool|extras|deploy)/[\w./-]+\.\w+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_files_that_the_way_of_a_prompt_goes_through_are_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    way = page[page.index("## One prompt, from the route") : page.index("## Packages")]
    named = re.findall(r"`([a-z_/]+\.py)`", way)
    assert len(named) > 30
    assert [name for name in named if not any((ROOT / at / name).is_file() for at in ("server", "."))] == []


def test_every_name_in_the_architecture_is_in_the_code() -> None:
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


def test_every_cell_of_the_comparison_has_a_command_or_a_source() -> None:
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
def test_the_figures_of_llama_cpps_suite_are_those_that_its_run_checks(page: str) -> None:
    """`make conformance` fails where another test than those of known.json fails, or one of them passes."""
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


def test_the_changes_to_look_at_are_in_the_history() -> None:
    """Each ``git show HASH -- PATHS`` shows something; a clone without the history, or not all of it, can't tell."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(ROOT), *words], text=True, capture_output=True, check=False)

    shown = re.findall(r"`git show ([0-9a-f]{7,}) -- ([^`]+)`", (ROOT / "docs/CONTRIBUTING.md").read_text())
    assert len(shown) >= 4
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("no clone with the whole history")
    known = [
        (commit, paths) for commit, paths in shown if git("cat-file", "-e", f"{commit}^{{commit}}").returncode == 0
    ]
    if not known:
        pytest.skip("a history of its own")
    assert known == shown
    assert [
        commit for commit, paths in shown if not git("show", "--format=", commit, "--", *paths.split()).stdout
    ] == []
