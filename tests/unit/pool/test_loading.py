import asyncio
import threading
from collections.abc import Callable
from typing import Any, NoReturn, cast

import pytest

from server.errors import InvalidRequest, ModelFailed
from server.pool.loading import Factories, Load
from server.pool.memory import Fit
from server.pool.model import LoadedModel
from server.pool.spec import ModelSpec
from server.structured.response_format import ResponseFormat
from tests.support.fakes import FakeWeights
from tests.unit.clock import Clock
from tests.unit.pool.fakes import Grammar, Loader, spec

TIMEOUT_S = 20.0


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
        factories=Factories(
            template=lambda info, spec: cast(Any, object()), grammar=lambda vocab: cast(Any, grammar or Grammar())
        ),
        report=Reports() if reports is None else reports,
        clock=clock or Clock(100.0),
        quiet=lambda: quiet,
    )


def loaded(grammar: Grammar) -> LoadedModel:
    nothing: Any = None
    return LoadedModel(
        *(spec("a"), nothing, nothing, nothing, nothing, nothing, nothing, Fit(spec("a"))),
        loaded_at=0.0,
        make_grammar=lambda vocab: cast(Any, grammar),
    )


async def now(task: Callable[[], None]) -> None:
    task()


async def test_grammars_are_prepared_as_soon_as_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.pool.model._IDLE_S", 0.0)
    model, answers = loaded(grammar := Grammar()), [True, False, False]
    prepared = asyncio.Event()

    async def in_thread(task: Callable[[], None]) -> None:
        task()
        prepared.set()

    model.prepare_when_idle(answers.pop, in_thread)
    await prepared.wait()
    assert (answers, grammar.n_prepared) == ([], 1)
    await model.close()


async def test_a_vocabulary_that_grammars_can_not_use_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.pool.model._IDLE_S", 0.0)
    model, asked = loaded(Grammar(ValueError("a token too many"))), asyncio.Event()

    def quiet() -> bool:
        asked.set()
        return True

    model.prepare_when_idle(quiet, now)
    await asked.wait()
    await model.close()  # waits for it
    assert "model 'a': no grammar can be compiled for its vocabulary" in caplog.text


async def test_a_closed_model_prepares_nothing() -> None:
    model = loaded(grammar := Grammar())
    model.prepare_when_idle(lambda: True, now)
    await model.close()
    assert model._timer is not None
    assert model._timer.cancelled()  # it would run in a second
    assert grammar.n_prepared == 0


def test_a_grammar_of_the_settings_that_is_none_is_an_error_of_the_load() -> None:
    class Strict(Grammar):
        def gbnf(self, source: str) -> None:
            raise InvalidRequest(f"grammar: no rule in {source}", "grammar")

    model = spec("a", shape=ResponseFormat("gbnf", "nothing", "grammar"))
    loader = Loader()
    with pytest.raises(ModelFailed, match="grammar: no rule in nothing"):
        load(loader, model, grammar=Strict(), quiet=False).run()
    assert loader.open == []


@pytest.mark.parametrize("quiet", [True, False])
def test_a_load_prepares_grammars_itself_while_nothing_runs(quiet: bool) -> None:
    parts = load(Loader(), spec("a"), grammar=(grammar := Grammar()), quiet=quiet).run()
    assert (grammar.n_prepared, parts.grammar is not None) == (int(quiet), quiet)
    parts.close()


def test_a_load_that_fails_waits_for_the_reader_of_its_vocabulary() -> None:
    begun, failing = threading.Event(), threading.Event()

    class Slow(Grammar):
        def prepare(self) -> None:
            begun.set()
            assert failing.wait(TIMEOUT_S)
            super().prepare()

    class Failing(Loader):
        def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
            weights = super().load(spec, progress)

            def runner() -> NoReturn:
                assert begun.wait(TIMEOUT_S)
                failing.set()
                raise ModelFailed("a", "no context")

            weights.runner = runner  # type: ignore[method-assign]
            return weights

    loader, grammar = Failing(), Slow()
    with pytest.raises(ModelFailed, match="no context"):
        load(loader, spec("a"), grammar=grammar).run()
    assert (grammar.n_prepared, loader.open) == (1, [])
