"""Measured figures and plots in the documentation equal the raw JSON in ``benchmarks/results``."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report, results
from benchmarks.compare.units import ARMS, REGULAR, UNITS
from benchmarks.results import COMPARE, OVERLOAD, SOAK, MissingRowError

PLOTS = Path(__file__).parents[1] / "plots"
SOURCES = dict.fromkeys(("goals", "rates", "waits", "conversations"), COMPARE) | {"overload": OVERLOAD, "soak": SOAK}
SPEED = re.compile(
    r"\d\s*(?:tok/s|tokens (?:a|per) second)|\d times (?:as |the |llama|faster)|\d of the\s+time|\btakes 0\.\d"
)


@pytest.mark.parametrize("page", report.PAGES, ids=lambda page: page.name)
def test_pages_contain_the_figures_of_the_json(page: Path) -> None:
    assert report.written(page) == page.read_text(), "run `make figures`"


@pytest.mark.parametrize("page", report.PAGES, ids=lambda page: page.name)
def test_handwritten_text_contains_no_speed_figures(page: Path) -> None:
    handwritten = re.sub(r"<!-- measured: \w+ -->.*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
    assert SPEED.findall(handwritten) == []


@pytest.mark.parametrize(("name", "file"), SOURCES.items())
def test_plots_were_drawn_from_the_committed_json(name: str, file: Path) -> None:
    plot = PLOTS / f"{name}.png"
    assert plot.exists() == file.exists(), "run `make figures`"
    if plot.exists():
        assert results.sha256(file).encode() in plot.read_bytes()[:4096], "run `make figures`"


def test_raw_json_contains_no_absolute_paths() -> None:
    for file in COMPARE.parent.glob("*.json"):
        assert re.findall(r'"/\w+|[ =]/(?:home|root|work|tmp)\b', file.read_text()) == [], file


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a run with all rows and made-up figures. `report` reads ``compare.json`` of `tmp_path`."""
    runs = [
        {"server": arm, "round": number, "scenario": scenario, "metrics": {figure: value}, "others": 0.0}
        for number in (1, 2)
        for arm, scenario, figure in dict.fromkeys(report.rows(REGULAR, tuple(ARMS)))
        for value in [8.0 if arm == "llamapool" else 4.0]
    ]
    environment: dict[str, Any]
    environment = {"command": "python -m benchmarks.compare", "commit": "abc1234", "date": "2026-11-23 12:00 UTC"}
    environment |= {"cpu": "a CPU", "cores": 2, "llama_cpp_python": "0.3.36", "arms": dict.fromkeys(ARMS, "")}
    environment["models"] = {"trained": "m.gguf (93 MB)"}
    options = {"threads": 2, "slots": 8, "ctx": 16384, "scale": 1.0, "flags": "", "llamapool flags": ""}
    monkeypatch.setattr("benchmarks.report.COMPARE", tmp_path / "compare.json")
    result = {"environment": environment, "options": options, "runs": runs, "scenarios": list(REGULAR)}
    return result | {"failures": [], "complete": True}


def test_headline_shows_the_trained_model_first_and_names_the_source_of_figures(
    measured: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "compare.json").write_text(json.dumps(measured))
    rows = [line for line in report.BLOCKS["headline"]().splitlines() if line.startswith("| ")]
    assert rows[1] == "| SmolLM2-135M | one stream, tok/s | 8.00 | 4.00 | 4.00 | 4.00 | 2.00 |"
    assert [row.split(" | ")[0] for row in rows[1:6]] == ["| SmolLM2-135M"] * 5
    for word in ("abc1234", "2026-11-23 12:00 UTC", "a CPU", "2 cores", "m.gguf (93 MB)", "`make bench`"):
        assert word in report.BLOCKS["headline"]()
        assert word in report.BLOCKS["all"]() or word == "`make bench`"


def test_comparison_lists_scenarios_by_which_server_is_ahead(measured: dict[str, Any], tmp_path: Path) -> None:
    for run in measured["runs"]:
        if (run["server"], run["scenario"]) == ("peer", "real-one"):
            run["metrics"] = {"tok/s": 8.1}
        if (run["server"], run["scenario"]) == ("peer", "real-other"):
            run["metrics"] = {"tok/s": 16.0}
    (tmp_path / "compare.json").write_text(json.dumps(measured))
    ahead, equal, slower, *_ = report.BLOCKS["ahead"]().splitlines()
    assert ahead.startswith("- Llamapool is ahead: 8 streams (SmolLM2-135M): 2.00; ")
    assert equal == "- Equal, within 3%: one stream (SmolLM2-135M): 0.99."
    assert slower.startswith("- llama-server is ahead: stories, which repeat nothing (SmolLM2-135M): 0.50; ")
    assert "first token of 8 cold requests that share 700 words (random weights): 0.50" in slower  # lower is better


@pytest.mark.parametrize("block", ["all", "headline", "ahead"])
def test_missing_scenario_is_an_error_that_names_its_row(measured: dict[str, Any], tmp_path: Path, block: str) -> None:
    measured["runs"] = [run for run in measured["runs"] if (run["server"], run["scenario"]) != ("null", "rate")]
    (tmp_path / "compare.json").write_text(json.dumps(measured))
    with pytest.raises(MissingRowError, match="no row rate / requests/s of null"):
        report.BLOCKS[block]()


@pytest.mark.usefixtures("measured")
def test_headline_without_a_run_says_not_measured() -> None:
    assert report.BLOCKS["headline"]() == "Not measured yet on this version: run `make bench`."


def test_scenarios_of_the_trained_model_run_first() -> None:
    assert UNITS[0].model == "trained"
