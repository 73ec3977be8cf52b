"""What no step may end with ends the step thread: then its requests are told, and so is whoever asks for readiness."""

import pytest

from server.errors import InternalError
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import alone, engine_over, request, run

pytestmark = pytest.mark.timeout(60)


class PanicException(BaseException):
    """As a Rust library's."""


def panics(_: object) -> None:
    raise PanicException("index out of bounds")


async def test_other_instances_go_on_without_it() -> None:
    failing = FakeRunner(n_seq=1, on_decode=panics)
    async with engine_over(failing, FakeRunner(n_seq=1)) as engine:
        ended = await run(engine, request("one"), request("two"))
        assert InternalError in [type(reply.error) for reply in ended]
        assert engine.failure
        assert engine.serves
        asked = [request(f"request {i}") for i in range(6)]
        replies = await run(engine, *asked)
        assert [reply.text for reply in replies] == [alone(one) for one in asked]
