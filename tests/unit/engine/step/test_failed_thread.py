"""What no step may end with ends the step thread: then its requests are told, and so is whoever asks for readiness."""

import pytest

from server.errors import InternalError, Unavailable
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import alone, engine_over, request, run

pytestmark = pytest.mark.timeout(60)


class PanicException(BaseException):
    """As a Rust library's."""


def panics(_: object) -> None:
    raise PanicException("index out of bounds")


async def test_requests_of_a_failed_thread_end_and_later_ones_are_refused() -> None:
    async with engine_over(FakeRunner(on_decode=panics)) as engine:
        replies = await run(engine, request("one"), request("two"))
        assert [type(reply.error) for reply in replies] == [InternalError] * 2
        assert "index out of bounds" in engine.failure
        assert not engine.serves
        with pytest.raises(Unavailable, match="index out of bounds"):
            await run(engine, request("three"))
        with pytest.raises(Unavailable):
            await engine.save_slot(0)
        assert not engine.busy


async def test_other_instances_go_on_without_it() -> None:
    failing = FakeRunner(n_seq=1, on_decode=panics)
    async with engine_over(failing, FakeRunner(n_seq=1)) as engine:
        await run(engine, request("one"), request("two"))
        assert engine.failure
        assert engine.serves
        asked = [request(f"request {i}") for i in range(6)]
        replies = await run(engine, *asked)
        assert [reply.text for reply in replies] == [alone(one) for one in asked]
