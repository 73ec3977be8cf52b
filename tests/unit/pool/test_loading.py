import subprocess
import sys
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
from tests.unit.pool.fakes import Grammar, Loader, spec

TIMEOUT_S = 100.0


def run(
    loader: object, model: ModelSpec, grammar: Grammar | None = None, quiet: Callable[[], bool] = lambda: True
) -> LoadedModel:
    load = Load(
        model,
        cast(Any, loader),
        factories=Factories(
            template=lambda info, spec: cast(Any, object()), grammar=lambda vocab: cast(Any, grammar or Grammar())
        ),
        report=lambda value: None,
        quiet=quiet,
    )
    return load.run(Fit(model))


def test_grammars_are_prepared_as_soon_as_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.pool.model._IDLE_S", 0.0)
    prepared, answers = threading.Event(), [True, False, False]

    class Announcing(Grammar):
        def prepare(self) -> None:
            super().prepare()
            prepared.set()

    loader, grammar = Loader(), Announcing()
    model = run(loader, spec("a"), grammar=grammar, quiet=answers.pop)
    assert prepared.wait(TIMEOUT_S)
    model.free()
    assert (answers, grammar.n_prepared, loader.open) == ([], 1, [])


def test_a_vocabulary_that_grammars_can_not_use_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    asked = threading.Event()

    def quiet() -> bool:
        asked.set()
        return True

    model = run(Loader(), spec("a"), grammar=Grammar(ValueError("a token too many")), quiet=quiet)
    assert asked.wait(TIMEOUT_S)
    model.free()  # waits for it
    assert "model 'a': no grammar can be compiled for its vocabulary" in caplog.text


def test_a_freed_model_prepares_nothing() -> None:
    model = run(Loader(), spec("a"), grammar=(grammar := Grammar()), quiet=lambda: False)
    model.free()
    assert grammar.n_prepared == 0


def test_an_interpreter_that_exits_does_not_wait_for_a_quiet_moment() -> None:
    code = """
from tests.unit.pool.fakes import Grammar, Loader, spec
from tests.unit.pool.test_loading import run
run(Loader(), spec("a"), grammar=Grammar(), quiet=lambda: False)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT_S)


def test_a_grammar_of_the_settings_that_is_none_is_an_error_of_the_load() -> None:
    class Strict(Grammar):
        def gbnf(self, source: str) -> None:
            raise InvalidRequest(f"grammar: no rule in {source}", "grammar")

    model = spec("a", shape=ResponseFormat("gbnf", "nothing", "grammar"))
    loader = Loader()
    with pytest.raises(ModelFailed, match="grammar: no rule in nothing"):
        run(loader, model, grammar=Strict())
    assert loader.open == []


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
        run(loader, spec("a"), grammar=grammar)
    assert (grammar.n_prepared, loader.open) == (1, [])
