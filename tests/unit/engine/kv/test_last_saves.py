"""What is saved when a model is unloaded: after its requests were told, and never all of it in memory at once."""

import pytest

from server.engine import disk_cache
from server.engine.prefix_cache import SlotState
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run
from tests.unit.engine.kv.test_disk import Files, still

pytestmark = pytest.mark.timeout(60)


async def test_the_most_valuable_are_written_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "MAX_PENDING", 1)
    written: list[int] = []

    class Ordered(Files):
        def write(self, name: str, saved: SlotState) -> int:
            written.append(len(saved.tokens))
            return super().write(name, saved)

    async with engine_over(FakeRunner(n_seq=3, n_ctx_seq=512), clock=still, cache_disk=1, cache_ram=1) as engine:
        await engine.use_disk(Ordered())
        await run(engine, *(request(letter * n, max_tokens=1) for letter, n in zip("abc", (50, 150, 100), strict=True)))
        await run(engine, request("d" * 200, max_tokens=1))  # one goes to RAM
    assert written == sorted(written, reverse=True)
    assert len(written) == 4
