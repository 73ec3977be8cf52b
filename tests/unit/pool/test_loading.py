from pathlib import Path
from typing import Any, cast

import pytest

from server.errors import InvalidRequest, ModelFailed
from server.pool.loading import Load
from server.pool.spec import LoadParams, ModelSpec
from server.structured.response_format import ResponseFormat
from tests.unit.clock import Clock
from tests.unit.pool.fakes import Grammar, Loader, spec


class Reports(list[float]):
    def __call__(self, value: float) -> None:
        self.append(value)


def load(
    loader: object,
    model: ModelSpec,
    clock: Clock | None = None,
    reports: Reports | None = None,
    grammar: Grammar | None = None,
    quiet: bool = True,
) -> Load:
    return Load(
        model,
        cast(Any, loader),
        template=lambda info, spec: cast(Any, object()),
        report=Reports() if reports is None else reports,
        clock=clock or Clock(100.0),
        grammar=lambda vocab: cast(Any, grammar or Grammar()),
        quiet=lambda: quiet,
    )


def test_as_many_contexts_as_instances_share_the_weights() -> None:
    loader = Loader()
    parts = load(loader, spec("a", instances=3)).run()
    assert len(parts.runners) == 3
    parts.close()
    assert loader.open == []


def test_the_vocabulary_is_read_for_grammars_in_the_warm_up() -> None:
    parts = load(Loader(), spec("a"), grammar=(grammar := Grammar())).run()
    assert cast(Any, parts.grammar) is grammar
    assert grammar.n_prepared == 1


@pytest.mark.parametrize(
    ("model", "quiet"),
    [
        (spec("a"), False),  # another model's streams would stand still
        (ModelSpec("a", Path("a.gguf"), native=LoadParams(warmup=False)), True),
        (spec("a", pooling="rank"), True),
    ],
)
def test_else_with_the_first_constraint(model: ModelSpec, quiet: bool) -> None:
    parts = load(Loader(), model, grammar=(grammar := Grammar()), quiet=quiet).run()
    assert parts.grammar is None
    assert grammar.n_prepared == 0


def test_a_vocabulary_that_grammars_can_not_use_is_no_reason_not_to_load(caplog: pytest.LogCaptureFixture) -> None:
    parts = load(Loader(), spec("a"), grammar=Grammar(ValueError("a token too many"))).run()
    assert parts.grammar is None
    assert "model 'a': no grammar can be compiled for its vocabulary" in caplog.text


def test_a_grammar_of_the_settings_that_is_none_is_an_error_of_the_load() -> None:
    class Strict(Grammar):
        def gbnf(self, source: str) -> None:
            raise InvalidRequest(f"grammar: no rule in {source}", "grammar")

    model = spec("a", shape=ResponseFormat("gbnf", "nothing", "grammar"))
    loader = Loader()
    with pytest.raises(ModelFailed, match="grammar: no rule in nothing"):
        load(loader, model, grammar=Strict(), quiet=False).run()
    assert loader.open == []


def test_when_the_second_context_does_not_fit_the_first_and_the_weights_are_freed() -> None:
    loader = Loader()
    loader.n_runners_that_fit = 1
    with pytest.raises(ModelFailed):
        load(loader, spec("a", instances=2)).run()
    assert loader.weights[0].closed
    assert loader.weights[0].runners[0].closed


def test_when_the_template_does_not_compile_everything_is_freed() -> None:
    loader = Loader()
    job = load(loader, spec("a"))
    job.template = cast(Any, lambda info, spec: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        job.run()
    assert loader.open == []


def test_a_load_cancelled_after_the_weights_came_leaves_nothing() -> None:
    loader = Loader()
    job = load(loader, spec("a"))
    job.template = cast(Any, lambda info, spec: job.cancel())
    with pytest.raises(ModelFailed, match="cancelled"):
        job.run()
    assert loader.open == []


def test_the_loader_hears_of_a_cancel_at_its_next_progress() -> None:
    loader = Loader()
    job = load(loader, spec("a"))
    loader.during = lambda model: job.cancel()
    with pytest.raises(ModelFailed, match="cancelled"):
        job.run()
    assert loader.weights == []


def test_progress_is_reported_at_both_ends_and_every_fifth_of_a_second_between() -> None:
    clock, reports = Clock(100.0), Reports()

    class Stepwise(Loader):
        def load(self, spec: ModelSpec, progress: Any) -> Any:
            for percent in range(100):
                progress(percent / 100)
                clock.now += 0.1
            return super().load(spec, progress)

    load(Stepwise(), spec("a"), clock, reports).run()
    assert reports[0] == 0.0
    assert reports[-1] == 1.0
    assert len(reports) < 60
