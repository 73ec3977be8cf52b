import pytest

from server.errors import InternalError, ModelFailed
from server.pool.events import LoadProgress, StatusChanged
from server.pool.state import TRANSITIONS, Status, check_transition
from tests.unit.pool.fakes import loaded, pool_of, spec

UNLOADED, LOADING, READY, DRAINING, SLEEPING, FAILED, _ = Status


async def test_every_transition_is_an_event() -> None:
    async with pool_of(spec("a", sleep_idle_s=60)) as s:
        events = s.pool.subscribe()
        (await loaded(s, "a")).release()
        await s.later(60)
        (await loaded(s, "a")).release()
        await s.pool.unload("a")
        await s.work()
        events.close()
        seen = [e async for e in events]
        changes = [e for e in seen if isinstance(e, StatusChanged)]
        assert [e.status for e in changes] == [
            LOADING, READY, DRAINING, SLEEPING, LOADING, READY, DRAINING, UNLOADED
        ]  # fmt: skip
        first, woken = (e for e in changes if e.status is READY)
        assert first.info is not None
        assert woken.info is None
        assert LoadProgress("a", 1.0) in seen


async def test_a_failure_event_has_the_reason() -> None:
    async with pool_of("a") as s:
        events = s.pool.subscribe()
        s.loader.failing["a"] = ModelFailed("a", "not a GGUF")
        with pytest.raises(ModelFailed):
            await loaded(s, "a")
        events.close()
        assert [e async for e in events][-1] == StatusChanged("a", FAILED, LOADING, "not a GGUF")


def test_only_listed_transitions_are_possible() -> None:
    for old in Status:
        for new in Status:
            if new in TRANSITIONS[old]:
                check_transition("a", old, new)
            else:
                with pytest.raises(InternalError):
                    check_transition("a", old, new)
