"""Loads of models with fake weights: preparation of grammars, and failures that leave nothing in memory."""

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
from tests.unit.pool.fakes import FakeCompiler, RecordingLoader, spec

TIMEOUT_S = 100.0


def load_model(
    loader: object, model: ModelSpec, grammar: FakeCompiler | None = None, quiet: Callable[[], bool] = lambda: True
) -> LoadedModel:
    compiler = cast(Any, grammar or FakeCompiler())
    factories = Factories(template=lambda info, spec: cast(Any, object()), grammar=lambda vocab: compiler)
    return Load(model, cast(Any, loader), factories, report=lambda value: None, quiet=quiet).run(Fit(model))


def test_grammars_are_prepared_when_the_pool_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.pool.model._IDLE_S", 0.0)
    prepared, is_quiet = threading.Event(), [True, False, False]  # read from the end

    class SignallingCompiler(FakeCompiler):
        def prepare(self) -> None:
            super().prepare()
            prepared.set()

    loader, grammar = RecordingLoader(), SignallingCompiler()
    model = load_model(loader, spec("a"), grammar=grammar, quiet=is_quiet.pop)
    assert prepared.wait(TIMEOUT_S)
    model.free()
    assert (is_quiet, grammar.n_prepared, loader.in_memory) == ([], 1, [])


def test_failed_preparation_of_grammars_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()

    def quiet() -> bool:
        called.set()
        return True

    grammar = FakeCompiler(ValueError("a token too many"))
    model = load_model(RecordingLoader(), spec("a"), grammar=grammar, quiet=quiet)
    assert called.wait(TIMEOUT_S)
    model.free()  # waits for the preparation
    assert "model 'a': no grammar can be compiled for its vocabulary" in caplog.text


def test_freed_model_prepares_no_grammars() -> None:
    model = load_model(RecordingLoader(), spec("a"), grammar=(grammar := FakeCompiler()), quiet=lambda: False)
    model.free()
    assert grammar.n_prepared == 0


def test_interpreter_exit_does_not_wait_for_the_preparation_of_grammars() -> None:
    code = """
from tests.unit.pool.fakes import FakeCompiler, RecordingLoader, spec
from tests.unit.pool.test_loading import load_model
load_model(RecordingLoader(), spec("a"), grammar=FakeCompiler(), quiet=lambda: False)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT_S)


def test_invalid_grammar_in_the_settings_fails_the_load() -> None:
    class RefusingCompiler(FakeCompiler):
        def gbnf(self, source: str) -> None:
            raise InvalidRequest(f"grammar: no rule in {source}", "grammar")

    model = spec("a", shape=ResponseFormat("gbnf", "nothing", "grammar"))
    loader = RecordingLoader()
    with pytest.raises(ModelFailed, match="grammar: no rule in nothing"):
        load_model(loader, model, grammar=RefusingCompiler())
    assert loader.in_memory == []


def test_failed_load_waits_for_the_preparation_of_grammars() -> None:
    """The preparation reads the vocabulary, which the failed load frees."""
    preparing, failing = threading.Event(), threading.Event()

    class SlowCompiler(FakeCompiler):
        def prepare(self) -> None:
            preparing.set()
            assert failing.wait(TIMEOUT_S)
            super().prepare()

    class FailingLoader(RecordingLoader):
        def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
            weights = super().load(spec, progress)

            def runner() -> NoReturn:
                assert preparing.wait(TIMEOUT_S)
                failing.set()
                raise ModelFailed("a", "no context")

            weights.runner = runner  # type: ignore[method-assign]
            return weights

    loader, grammar = FailingLoader(), SlowCompiler()
    with pytest.raises(ModelFailed, match="no context"):
        load_model(loader, spec("a"), grammar=grammar)
    assert (grammar.n_prepared, loader.in_memory) == (1, [])
