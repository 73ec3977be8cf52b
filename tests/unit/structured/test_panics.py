"""A panic of llguidance fails only the request whose grammar caused it."""

from typing import Any, cast

import llguidance
import pytest

from server.errors import InternalError
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.grammar.matcher import contained
from tests.support.fakes import FakeRunner, FakeVocab
from tests.unit.engine.builders import engine_over, request, run

pytestmark = pytest.mark.timeout(60)


def real_panic() -> BaseException:
    """Return a panic that llguidance raises for a token of 1 MiB."""

    class Vocabulary:
        eos_token_id, bos_token_id, special_token_ids = 1, None, (1,)
        tokens = (b"a" * (1 << 20), b"</s>")

        def __call__(self, _text: object) -> list[int]:
            return [0]

    try:
        llguidance.LLTokenizer(llguidance.TokenizerWrapper(Vocabulary()))
    except BaseException as error:  # noqa: BLE001 - a PanicException is not an Exception
        return error
    raise AssertionError("the library did not panic")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("mine")])
def test_other_exceptions_are_not_converted(error: BaseException) -> None:
    @contained
    def call() -> None:
        raise error

    with pytest.raises(type(error)):
        call()


class PanickingMatcher:
    """An llguidance matcher that panics in ``method``, as do its copies."""

    def __init__(self, matcher: llguidance.LLMatcher, method: str) -> None:
        self.matcher = matcher
        self._method = method

    def __getattr__(self, name: str) -> object:
        if name == self._method:
            raise real_panic()
        return getattr(self.matcher, name)

    def deep_copy(self) -> "PanickingMatcher":
        return PanickingMatcher(self.matcher.deep_copy(), self._method)


@pytest.mark.parametrize("method", ["validate_tokens", "compute_bitmask", "consume_token", "is_stopped"])
async def test_panic_fails_one_request_and_others_continue(method: str) -> None:
    compiler = GrammarCompiler(FakeVocab())
    panicking, working = compiler.regex("[0-9]{4}"), compiler.regex("[0-9]{4}")
    panicking.matcher = cast(Any, PanickingMatcher(panicking.matcher, method))
    async with engine_over(FakeRunner()) as engine:
        replies = await run(
            engine, request("one", constraint=working), request("two", constraint=panicking), request("three")
        )
        assert [type(reply.error) for reply in replies] == [type(None), InternalError, type(None)]
        assert "grammar library" in str(replies[1].error)
        assert not engine.failure
