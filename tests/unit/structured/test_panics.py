"""A panic of the grammar library costs the request whose grammar it was."""

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
    """One of the library's own: it has no room for tokens that are so long."""

    class Vocabulary:
        eos_token_id, bos_token_id, special_token_ids = 1, None, (1,)
        tokens = (b"a" * (1 << 20), b"</s>")

        def __call__(self, _text: object) -> list[int]:
            return [0]

    try:
        llguidance.LLTokenizer(llguidance.TokenizerWrapper(Vocabulary()))
    except BaseException as error:  # noqa: BLE001 - it is no Exception
        return error
    raise AssertionError("the library did not panic")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("mine")])
def test_other_exceptions_pass(error: BaseException) -> None:
    @contained
    def call() -> None:
        raise error

    with pytest.raises(type(error)):
        call()


class Panicking:
    """An llguidance matcher that panics in ``method``, and in all its copies."""

    def __init__(self, matcher: llguidance.LLMatcher, method: str) -> None:
        self.matcher = matcher
        self._method = method

    def __getattr__(self, name: str) -> object:
        if name == self._method:
            raise real_panic()
        return getattr(self.matcher, name)

    def deep_copy(self) -> "Panicking":
        return Panicking(self.matcher.deep_copy(), self._method)


@pytest.mark.parametrize("method", ["validate_tokens", "compute_bitmask", "consume_token", "is_stopped"])
async def test_one_request_ends_and_the_others_go_on(method: str) -> None:
    compiler = GrammarCompiler(FakeVocab())
    broken, fine = compiler.regex("[0-9]{4}"), compiler.regex("[0-9]{4}")
    broken.matcher = cast(Any, Panicking(broken.matcher, method))
    async with engine_over(FakeRunner()) as engine:
        replies = await run(
            engine, request("one", constraint=fine), request("two", constraint=broken), request("three")
        )
        assert [type(reply.error) for reply in replies] == [type(None), InternalError, type(None)]
        assert "grammar library" in str(replies[1].error)
        assert not engine.failure
