"""The MaskBench runner: verdicts, targets, and workers that survive a failing item."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.schemas import maskbench
from benchmarks.schemas.instances import spellings
from benchmarks.schemas.workers import Limits, Outcome, measured
from tests.support.ggufs.writing import gguf_file
from tests.support.real_server import ROOT


def handler() -> Callable[[str], str]:
    return handle


def handle(item: str) -> str:
    if item == "die":
        os._exit(3)
    if item == "spin":
        while True:
            pass
    if item == "grow":
        blocks = []
        while True:
            blocks.append(b"x" * (1 << 20))
    if item == "use 200 MB":
        return str(len(b"x" * (200 << 20)))
    return item


def test_items_that_hang_grow_or_crash_end_only_their_worker() -> None:
    items = ["one", "die", "spin", "grow", "two"]
    found: dict[str, Outcome[str, str]] = {
        each.item: each for each in measured(handler, items, 2, Limits(cpu_s=0.5, mb=300.0))
    }
    assert {item: found[item].result for item in items} == dict.fromkeys(items) | {"one": "one", "two": "two"}
    assert found["die"].died == "died with exit code 3"
    assert found["spin"].died == "killed after 0.5 s"
    assert found["grow"].died == "killed after 300 MB"


def test_peak_memory_of_an_item_is_not_counted_for_later_items() -> None:
    before, large, after = measured(handler, ["one", "use 200 MB", "two"], 1, Limits())
    assert large.mb > 190
    assert max(before.mb, after.mb) < 100


def test_instances_are_serialized_as_given_and_in_schema_order() -> None:
    schema = {
        "$defs": {"named": {"properties": {"name": {"properties": {"last": {}, "first": {}}}}}},
        "allOf": [{"$ref": "#/$defs/named"}],
        "properties": {"list": {"items": {"properties": {"b": {}, "a": {}}}}},
        "required": ["last"],
    }
    instance = {"x": 1, "last": 2, "list": [{"a": 1, "b": 2}], "name": {"first": "f", "last": "l"}}
    given, ordered = spellings(schema, instance)
    assert given == json.dumps(instance)
    assert ordered == '{"name": {"last": "l", "first": "f"}, "list": [{"b": 2, "a": 1}], "last": 2, "x": 1}'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write a suite of schemas with the verdicts that miss no target. Returns its folder."""
    suites: dict[str, tuple[Any, list[tuple[bool, Any]]]] = {
        "passes": ({"properties": {"b": {"type": "integer"}, "a": {}}}, [(True, {"a": 1, "b": 2}), (False, {"b": ""})]),
        "refused": ({"type": "array", "contains": {"const": 1}}, [(True, [1])]),
        "rejects": ({"properties": {"a": {}}}, [(True, {"other": 1})]),
    }
    folder = tmp_path / "data"
    folder.mkdir()
    for name, (schema, tests) in suites.items():
        listed = [{"valid": valid, "data": instance} for valid, instance in tests]
        (folder / f"{name}.json").write_text(json.dumps({"schema": schema, "tests": listed}))
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["maskbench", *arguments])
    return maskbench.main()


def test_run_prints_the_table_and_the_changes_since_an_earlier_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = gguf_file(tmp_path)
    command = ["--data", str(data), "--model", str(model), "--workers", "1"]
    old = tmp_path / "old.json"
    assert run(monkeypatch, *command, "--json", str(old)) == 0
    assert "| Llamapool | 1 | 1 | 1 | 0 | 0 |" in capsys.readouterr().out

    # The suite marks a valid instance as invalid, so a target is missed.
    suite = json.loads((data / "passes.json").read_text())
    suite["tests"].append({"valid": False, "data": {"b": 1}})
    (data / "passes.json").write_text(json.dumps(suite))
    assert run(monkeypatch, *command, "--diff", str(old)) == 1
    out = capsys.readouterr().out
    assert "passes: passing -> invalid accepted" in out
    assert "1 schemas miss a target" in out


def test_readme_shows_the_committed_run() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "maskbench.json").read_text())
    page = (ROOT / "benchmarks" / "README.md").read_text()
    names = ("passing", "compile error", "valid rejected", "invalid accepted", "failed mid-reply")
    cells = [f"{run['counts'][name]:,}" for name in names]
    assert f"| Llamapool | {' | '.join(cells)} | {run['figures']['mask_us_mean']:.0f} |" in page
    assert f"{run['figures']['largest_compile_cpu_s']} s of CPU" in page
    assert run["commit"] in page


def test_committed_run_misses_no_target() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "maskbench.json").read_text())
    verdicts = {name: verdict for name, (verdict, _) in run["schemas"].items()}
    rows = {
        name: maskbench.Row(verdicts.get(name, maskbench.PASSED), "", cpu_s, mb)
        for name, (cpu_s, mb) in run["costly"].items()
    }
    assert [name for name, row in rows.items() if row.breaks] == []
    assert maskbench.Row(maskbench.PASSED, "", 3.02, 1).breaks
