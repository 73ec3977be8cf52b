"""`benchmarks.compare` with fake measurements: stored results, interrupted runs, goals and tables."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
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


class FakeMeasure:
    """Replaces `benchmarks.compare.units.measure`.

    Raises KeyboardInterrupt at call number ``interrupt_at``, and an error for the server ``failing``. ``others`` is the
    CPU share of other processes, and ``figure`` the only measured figure.
    """

    def __init__(self, *, interrupt_at: int = -1, failing: str = "", others: float = 0.013, figure: str = "") -> None:
        self.calls: list[tuple[str, str, int]] = []  # server, scenario, seed
        self._others, self._figure = others, figure
        self._interrupt_at, self._failing = interrupt_at, failing

    def __call__(
        self, unit: Unit, scenarios: Mapping[str, Collection[str]], seed: int, _machine: object
    ) -> Iterator[tuple[str, Measured]]:
        for name in unit.names:
            for server in [server for server, names in scenarios.items() if name in names]:
                if len(self.calls) == self._interrupt_at:
                    raise KeyboardInterrupt
                if server == self._failing:
                    raise BenchError("the server answered 500: no")
                self.calls.append((server, name, seed))
                figures = {goal.figure: 10.0 for goal in GOALS if goal.scenario == name} or {"tok/s": 10.0}
                yield server, Measured(name, {self._figure: 10.0} if self._figure else figures, others=self._others)


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs two rounds of a comparison with a `FakeMeasure` and options, and returns its JSON."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    monkeypatch.setattr(compare, "projector_for", lambda folder, n_embd: folder)
    monkeypatch.setattr(compare, "_n_embd", lambda model: 64)

    def run_comparison(measure: FakeMeasure, *options: str, real_model: bool = True) -> dict[str, Any]:
        monkeypatch.setattr(compare, "measure", measure)
        models = ["--model", str(model), "--large-vocabulary", str(model), *["--real-model", str(model)] * real_model]
        files = ["--peer", str(model), "--json", str(tmp_path / "r.json")]
        comparison = compare.Comparison(compare.parse([*models, *files, "--rounds", "2", *options]))
        comparison.run()
        return comparison.result

    return run_comparison


def test_scenarios_of_the_trained_model_need_its_option(run_with: Run) -> None:
    options = ["--scenario", "one,real-one,real-constrained", "--only", "llamapool", "--rounds", "1"]
    measure = FakeMeasure()
    run_with(measure, *options, real_model=False)
    assert [name for _, name, _ in measure.calls] == ["one"]
    measure = FakeMeasure()
    result = run_with(measure, *options)
    assert [name for _, name, _ in measure.calls] == ["real-one", "real-constrained", "one"]
    assert result["options"]["trained"] == "m.gguf"
    assert "SmolLM2-135M: one stream" in tables(result)


def test_rounds_alternate_the_first_server(run_with: Run) -> None:
    measure = FakeMeasure()
    run_with(measure, "--scenario", "one,slots")
    assert measure.calls == [
        *(("llamapool", "one", 1), ("peer", "one", 1), ("llamapool", "slots", 1), ("peer", "slots", 1)),
        *(("peer", "one", 2), ("llamapool", "one", 2), ("peer", "slots", 2), ("llamapool", "slots", 2)),
    ]


def test_interrupted_run_is_continued_and_a_complete_one_restarted(run_with: Run) -> None:
    interrupted = FakeMeasure(interrupt_at=7)
    with pytest.raises(KeyboardInterrupt):
        run_with(interrupted)
    rest = FakeMeasure()
    result = run_with(rest)
    assert len(interrupted.calls) == 7
    assert set(interrupted.calls).isdisjoint(rest.calls)
    assert len(result["runs"]) == 2 * REPEATED + ONCE
    assert result["complete"]
    again = FakeMeasure()
    run_with(again)
    assert len(again.calls) == len(result["runs"])


def test_results_with_much_cpu_time_of_others_are_measured_again(run_with: Run) -> None:
    options = ["--scenario", "one,context", "--only", "llamapool", "--rounds", "1"]
    result = run_with(FakeMeasure(others=0.5), *options)
    assert (len(result["runs"]), result["complete"]) == (2, False)
    again = FakeMeasure()
    result = run_with(again, *options)
    assert again.calls == [("llamapool", "one", 1)]  # scenarios that run only once take too long
    assert (len(result["runs"]), result["complete"]) == (2, True)


def test_run_with_other_options_is_not_continued(run_with: Run) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_with(FakeMeasure(interrupt_at=1))
    with pytest.raises(SystemExit, match="other options"):
        run_with(FakeMeasure(), "--slots", "4")


def test_run_of_another_commit_is_not_continued(run_with: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_with(FakeMeasure(interrupt_at=1), "--scenario", "one")
    monkeypatch.setattr("benchmarks.environment.commit", lambda: "another")
    again = FakeMeasure()
    run_with(again, "--scenario", "one")
    assert len(again.calls) == 4


def test_scenarios_that_exceed_the_time_budget_are_left_for_the_next_run(run_with: Run) -> None:
    result = run_with(FakeMeasure(), "--budget-s", "0")
    assert (result["runs"], result["complete"]) == ([], False)


def test_failures_are_stored_and_retried_by_the_next_run(run_with: Run) -> None:
    failing = run_with(FakeMeasure(failing="peer"), "--scenario", "one")
    assert [failure["round"] for failure in failing["failures"]] == [1, 2]
    assert "Not measured: main in round 1: the server answered 500: no" in tables(failing)
    again = FakeMeasure()
    assert run_with(again, "--scenario", "one")["failures"] == []
    assert again.calls == [("peer", "one", 1), ("peer", "one", 2), ("llamapool", "one", 2)]


AT_LEAST_AS_FAST = Goal("one", "tok/s", "ratio", 1.0, at_least=True)


@pytest.mark.parametrize(
    ("goal", "llamapool", "peer", "verdict"),
    [
        (AT_LEAST_AS_FAST, [9, 11, 12], [10, 10, 10], "met"),
        (AT_LEAST_AS_FAST, [9, 9, 12], [10, 10, 10], "not met"),
        pytest.param(AT_LEAST_AS_FAST, [9.8, 9.7], [10, 10], "equal", id="within 3% after two rounds"),
        pytest.param(AT_LEAST_AS_FAST, [10.3, 10.2], [10, 10], "equal", id="3% more is no win"),
        pytest.param(AT_LEAST_AS_FAST, [9.8], [10], "not met", id="one round is too few to be equal"),
        pytest.param(AT_LEAST_AS_FAST, [9.6, 9.6], [10, 10], "not met", id="beyond 3%"),
        (Goal("long", "longest gap ms", "ratio", 0.1), [90], [1000], "met"),
        (Goal("rest", "peak MB", "difference", 120), [330], [200], "not met"),
        (Goal("rest", "idle CPU %", "value", 0.5), [0.0], [], "met"),
    ],
)
def test_goal_verdict_uses_the_median_round(
    goal: Goal, llamapool: list[float], peer: list[float], verdict: str
) -> None:
    assert goal.verdict(goal.reached(llamapool, peer)) == verdict


def test_each_goal_is_about_an_existing_scenario() -> None:
    assert {goal.scenario for goal in GOALS} <= set(NAMES)
    assert set(TITLES) >= set(NAMES)


def test_only_rounds_of_both_servers_are_compared() -> None:
    runs = [run("llamapool", 1, a=1.0), run("peer", 1, a=2.0), run("llamapool", 2, a=9.0)]
    assert collect(runs) == {("llamapool", "one", "a"): [1.0], ("peer", "one", "a"): [2.0]}
    assert collect(runs[:1]) == {("llamapool", "one", "a"): [1.0]}
    arms = [*runs, run("null", 1, a=5.0), run("null", 2, a=6.0)]
    assert collect(arms)["null", "one", "a"] == [5.0]


def test_missing_row_of_a_complete_run_is_an_error(run_with: Run) -> None:
    result = run_with(FakeMeasure(figure="tok/s"), "--scenario", "one,rate")
    with pytest.raises(MissingRowError, match="rate / requests/s of llamapool; rate / requests/s of peer"):
        tables(result)


def test_tables_show_goals_and_the_cpu_time_of_other_processes(run_with: Run) -> None:
    result = run_with(FakeMeasure(), "--scenario", "one,rate")
    runs = [each for each in result["runs"] if each["scenario"] == "one"]
    page = tables(json.loads(json.dumps(result)) | {"runs": runs, "complete": False})
    assert "| one stream | tok/s | at least 1 of llama-server's | 10.0 (10.0 to 10.0) | 10.0 (10.0 to 10.0) |" in page
    assert "1.00 (1.00 to 1.00) | equal |" in page
    assert "requests/s | at least 1 of llama-server's |  |  |  | not measured |" in page
    assert "Other processes had 1.3% of the CPU meanwhile in the median, 1.3% at most." in page


def test_speculation_scenarios_have_a_column_for_each_server_and_mode(run_with: Run) -> None:
    result = run_with(FakeMeasure(), "--scenario", "real-edit", "--rounds", "1")
    assert {run["server"] for run in result["runs"]} == {"llamapool", "peer", "llamapool-plain", "peer-ngram"}
    assert result["environment"]["arms"]["llamapool-plain"] == "--spec-type none"
    assert "a file written again with an edit | tok/s | 10.0 | 10.0 | 10.0 | 10.0 |  |" in tables(result)
