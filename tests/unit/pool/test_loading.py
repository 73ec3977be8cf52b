from typing import Any, cast

import pytest

from server.errors import InvalidRequest, ModelFailed
from server.pool.loading import Load
from server.pool.spec import ModelSpec
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
