"""Results are kept one by one, a run that was cut off continues, and tables say what was measured."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare import __main__ as compare
from benchmarks.compare.goals import GOALS, Goal
from benchmarks.compare.units import NAMES, TITLES, UNITS, Measured, Unit
from benchmarks.report import tables
from benchmarks.results import MissingRowError, collect
from server.bench.client import BenchError


def run(server: str, number: int, scenario: str = "one", **figures: float) -> dict[str, Any]:
    return {"server": server, "round": number, "scenario": scenario, "metrics": figures}


REPEATED = sum(len(unit.measured_by(arm)) for unit in UNITS for arm in unit.arms if not (unit.once or unit.by_itself))
ONCE = sum(len(unit.measured_by(arm)) for unit in UNITS for arm in unit.arms if unit.once and not unit.by_itself)


class Units:
    """Stands in for `benchmarks.compare.units.measure`; ends the process, or fails, where a test says so."""

    def __init__(self, *, break_at: int = -1, failing: str = "", others: float = 0.013, figure: str = "") -> None:
        self.asked: list[tuple[str, str, int]] = []
        self._others, self._figure = others, figure
        self._break_at, self._failing = break_at, failing

    def __call__(
        self, unit: Unit, wanted: Mapping[str, Collection[str]], seed: int, _machine: object
    ) -> Iterator[tuple[str, Measured]]:
        for name in unit.names:
            for server in [server for server, names in wanted.items() if name in names]:
                if len(self.asked) == self._break_at:
                    raise KeyboardInterrupt
                if server == self._failing:
                    raise BenchError("the server answered 500: no")
                self.asked.append((server, name, seed))
                figures = {goal.figure: 10.0 for goal in GOALS if goal.scenario == name} or {"tok/s": 10.0}
                yield server, Measured(name, {self._figure: 10.0} if self._figure else figures, others=self._others)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    file = str(tmp_path / "r.json")
    models = ["--model", str(model), "--large-vocabulary", str(model), "--real-model", str(model)]
    return [*models, "--peer", str(model), "--json", file, "--rounds", "2"]


def comparison(options: list[str], measured: Units, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(compare, "measure", measured)
    monkeypatch.setattr(compare, "projector_for", lambda folder, n_embd: folder)
    monkeypatch.setattr(compare, "_n_embd", lambda model: 64)
    started = compare.Comparison(compare.parse(options))
    started.run()
    return started.result


def test_the_trained_model_is_measured_where_there_is_one(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["--scenario", "one,real-one,real-constrained", "--only", "llamapool", "--rounds", "1"]
    at = options.index("--real-model")
    measured = Units()
    comparison([*options[:at], *options[at + 2 :], *names], measured, monkeypatch)
    assert [name for _, name, _ in measured.asked] == ["one"]
    measured = Units()
    result = comparison([*options, *names], measured, monkeypatch)
    assert [name for _, name, _ in measured.asked] == ["real-one", "real-constrained", "one"]
    assert result["options"]["trained"] == "m.gguf"
    assert "SmolLM2-135M: one stream" in tables(result)


def test_the_servers_take_turns_in_beginning(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Units()
    comparison([*options, "--scenario", "one,slots"], measured, monkeypatch)
    assert measured.asked == [
        *(("llamapool", "one", 1), ("peer", "one", 1), ("llamapool", "slots", 1), ("peer", "slots", 1)),
        *(("peer", "one", 2), ("llamapool", "one", 2), ("peer", "slots", 2), ("llamapool", "slots", 2)),
    ]


def test_a_run_that_was_cut_off_goes_on_and_a_complete_one_is_begun_anew(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = Units(break_at=7)
    with pytest.raises(KeyboardInterrupt):
        comparison(options, cut, monkeypatch)
    rest = Units()
    result = comparison(options, rest, monkeypatch)
    assert len(cut.asked) == 7
    assert set(cut.asked).isdisjoint(rest.asked)
    assert len(result["runs"]) == 2 * REPEATED + ONCE
    assert result["complete"]
    again = Units()
    comparison(options, again, monkeypatch)
    assert len(again.asked) == len(result["runs"])


def test_what_others_disturbed_is_measured_again_by_the_next_run(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*options, "--scenario", "one,context", "--only", "llamapool", "--rounds", "1"]
    result = comparison(options, Units(others=0.5), monkeypatch)
    assert (len(result["runs"]), result["complete"]) == (2, False)
    again = Units()
    result = comparison(options, again, monkeypatch)
    assert again.asked == [("llamapool", "one", 1)]  # what is measured once takes too long
    assert (len(result["runs"]), result["complete"]) == (2, True)


def test_other_options_are_not_mixed_in(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        comparison(options, Units(break_at=1), monkeypatch)
    with pytest.raises(SystemExit, match="other options"):
        comparison([*options, "--slots", "4"], Units(), monkeypatch)


def test_what_would_not_fit_the_budget_is_left_for_the_next_run(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = comparison([*options, "--budget-s", "0"], Units(), monkeypatch)
    assert (result["runs"], result["complete"]) == ([], False)


def test_a_failure_is_kept_and_tried_again_in_the_next_run(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    failing = comparison([*options, "--scenario", "one"], Units(failing="peer"), monkeypatch)
    assert [failure["round"] for failure in failing["failures"]] == [1, 2]
    assert "Not measured: main in round 1: the server answered 500: no" in tables(failing)
    again = Units()
    assert comparison([*options, "--scenario", "one"], again, monkeypatch)["failures"] == []
    assert again.asked == [("peer", "one", 1), ("peer", "one", 2), ("llamapool", "one", 2)]


AT_LEAST_AS_FAST = Goal("one", "tok/s", "ratio", 1.0, at_least=True)


@pytest.mark.parametrize(
    ("goal", "ours", "theirs", "verdict"),
    [
        (AT_LEAST_AS_FAST, [9, 11, 12], [10, 10, 10], "met"),
        (AT_LEAST_AS_FAST, [9, 9, 12], [10, 10, 10], "not met"),
        pytest.param(AT_LEAST_AS_FAST, [9.8, 9.7], [10, 10], "equal", id="within 3% after two rounds"),
        pytest.param(AT_LEAST_AS_FAST, [10.3, 10.2], [10, 10], "equal", id="nor is a little more a win"),
        pytest.param(AT_LEAST_AS_FAST, [9.8], [10], "not met", id="one round is not enough to say so"),
        pytest.param(AT_LEAST_AS_FAST, [9.6, 9.6], [10, 10], "not met", id="beyond 3%"),
        (Goal("long", "longest gap ms", "ratio", 0.1), [90], [1000], "met"),
        (Goal("rest", "peak MB", "difference", 120), [330], [200], "not met"),
        (Goal("rest", "idle CPU %", "value", 0.5), [0.0], [], "met"),
    ],
)
def test_goals_are_judged_by_the_median_round(goal: Goal, ours: list[float], theirs: list[float], verdict: str) -> None:
    assert goal.verdict(goal.reached(ours, theirs)) == verdict


def test_every_goal_is_about_something_that_is_measured() -> None:
    assert {goal.scenario for goal in GOALS} <= set(NAMES)
    assert set(TITLES) >= set(NAMES)


def test_only_rounds_that_both_servers_have_are_compared() -> None:
    runs = [run("llamapool", 1, a=1.0), run("peer", 1, a=2.0), run("llamapool", 2, a=9.0)]
    assert collect(runs) == {("llamapool", "one", "a"): [1.0], ("peer", "one", "a"): [2.0]}
    assert collect(runs[:1]) == {("llamapool", "one", "a"): [1.0]}
    arms = [*runs, run("null", 1, a=5.0), run("null", 2, a=6.0)]
    assert collect(arms)["null", "one", "a"] == [5.0]


def test_a_row_that_a_complete_run_lacks_is_an_error_that_names_it(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = comparison([*options, "--scenario", "one,rate"], Units(figure="tok/s"), monkeypatch)
    with pytest.raises(MissingRowError, match="rate / requests/s of llamapool; rate / requests/s of peer"):
        tables(result)


def test_the_tables_say_what_was_reached_and_how_quiet_it_was(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = comparison([*options, "--scenario", "one,rate"], Units(), monkeypatch)
    runs = [each for each in result["runs"] if each["scenario"] == "one"]
    page = tables(json.loads(json.dumps(result)) | {"runs": runs, "complete": False})
    assert "| one stream | tok/s | at least 1 of llama-server's | 10.0 (10.0 to 10.0) | 10.0 (10.0 to 10.0) |" in page
    assert "1.00 (1.00 to 1.00) | equal |" in page
    assert "requests/s | at least 1 of llama-server's |  |  |  | not measured |" in page
    assert "Other processes had 1.3% of the CPU meanwhile in the median, 1.3% at most." in page


def test_what_speculation_gives_each_server_has_columns_of_its_own(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = comparison([*options, "--scenario", "real-edit", "--rounds", "1"], Units(), monkeypatch)
    assert {run["server"] for run in result["runs"]} == {"llamapool", "peer", "llamapool-plain", "peer-ngram"}
    assert result["environment"]["arms"]["llamapool-plain"] == "--spec-type none"
    assert "a file written again with an edit | tok/s | 10.0 | 10.0 | 10.0 | 10.0 |  |" in tables(result)


def test_a_run_of_another_commit_is_not_continued(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        comparison([*options, "--scenario", "one"], Units(break_at=1), monkeypatch)
    monkeypatch.setattr("benchmarks.environment.commit", lambda: "another")
    again = Units()
    comparison([*options, "--scenario", "one"], again, monkeypatch)
    assert len(again.asked) == 4
