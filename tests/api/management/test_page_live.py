"""The page's live data: what engines do while somebody looks, and that nothing is collected while nobody does."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from server.engine import snapshots
from server.engine.snapshots import InstanceView
from server.web import live as page_live
from server.web.live import History
from tests.api.conftest import Api, Serve, until
from tests.api.streams import Exchange, posting
from tests.support.fakes import FakeLoader

HI = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": HI, "stream": True, "max_tokens": 50, "temperature": 0}
LIVE = "/page/live"


class Looking(Exchange):
    """Who looks at the live data."""

    def __init__(self, api: Api) -> None:
        super().__init__(api.app, LIVE, None, method="GET")
        self._left: list[str] = []  # of the last chunk, which may hold several events
        self._ended: list[Any] = []

    async def _next(self) -> tuple[str, Any]:
        if not self._left:
            self._left = (await self.chunk()).decode().strip().split("\n\n")
        event, data = (line.partition(": ")[2] for line in self._left.pop(0).split("\n"))
        found = orjson.loads(data)
        if event == "requests":
            self._ended = found
        return event, found

    async def until(self, name: str, fits: Any = lambda _: True) -> Any:
        """The data of the next event of that name that fits."""
        while True:
            event, found = await self._next()
            if event == name and fits(found):
                return found

    async def ended(self, n: int) -> list[Any]:
        """The requests that have ended, once there are so many."""
        while len(self._ended) < n:
            await self._next()
        return self._ended


@asynccontextmanager
async def looking(api: Api) -> AsyncIterator[Looking]:
    async with asyncio.timeout(100):
        looks = Looking(api)
        assert await looks.start() == 200
        try:
            yield looks
        finally:
            looks.disconnect()
            await asyncio.wait([looks.task])


def views(api: Api) -> Sequence[InstanceView]:
    loaded = api.loaded()
    return loaded.engine.views()


def busy_slots(state: Any) -> list[Any]:
    return [slot for slot in state["models"][0]["engine"]["slots"] if slot["choice"]]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_live, "EVERY_S", 0.01)
    monkeypatch.setattr(page_live, "FOR_EACH_S", 0.0)
    monkeypatch.setattr(snapshots, "KEPT_S", 0.0)


async def test_who_looks_sees_slots_queue_and_steps(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with serve(FakeLoader(n_seq=1, steps=steps)) as api, looking(api) as looks:
        idle = await looks.until("state", lambda s: s["models"][0].get("engine", {}).get("slots"))
        assert [slot["phase"] for slot in idle["models"][0]["engine"]["slots"]] == ["idle"]
        body = CHAT | {"max_tokens": 200}
        async with posting(api.app, "/v1/chat/completions", body) as first:
            steps.release(5)
            assert await first.start() == 200
            async with posting(api.app, "/v1/chat/completions", body | {"priority": 3}):

                def sees_both(state: Any) -> bool:  # a view may be one step apart from the slots that it is shown with
                    steps.release()  # a step for each look
                    waiting = state["models"][0]["engine"]["waiting"] if busy_slots(state) else []
                    return [choice["priority"] for choice in waiting] == [3]

                shown = await looks.until("state", sees_both)
            slot = busy_slots(shown)[0]
            assert slot["choice"]["prompt"] > 0
            assert slot["choice"]["submitted"] <= slot["choice"]["placed"]
            steps.release(1000)
        ended = await looks.ended(2)
        assert {one["outcome"] for one in ended} <= {"done", "cancelled"}
        assert all(one["ended"] >= one["submitted"] > 0 for one in ended)


async def test_nothing_is_collected_while_nobody_looks(serve: Serve) -> None:
    async with serve() as api:
        await api.client.post("/v1/chat/completions", json=CHAT | {"stream": False})
        assert views(api) == []
        async with looking(api) as looks:
            await looks.until("state")
            await api.client.post("/v1/chat/completions", json=CHAT | {"stream": False})
            steps = views(api)[0].steps
            assert steps
        assert views(api) == []
        await api.client.post("/v1/chat/completions", json=CHAT | {"stream": False})
        async with looking(api) as looks:
            await looks.until("state")
            assert views(api)[0].steps == steps


async def test_beginnings_that_slots_share_are_named(serve: Serve) -> None:
    async with serve() as api, looking(api) as looks:
        for end in "ab":
            body = {"prompt": "x" * 64 + end * 16, "max_tokens": 2, "id_slot": "ab".index(end)}
            await api.client.post("/completion", json=body)
        state = await looks.until("state", lambda s: s["models"][0]["engine"]["shared"])
        assert [(sorted(pair[:2]), pair[2]) for pair in state["models"][0]["engine"]["shared"]] == [([0, 1], 64)]
        ended = {one["slot"]: one for one in await looks.ended(2)}
        assert (ended[0]["source"], ended[0]["recompute"]) == (["none", -1], "nothing")
        assert (ended[1]["source"], ended[1]["recompute"]) == (["copy", 0], "differs")


async def test_a_state_without_a_slot_is_told_and_stands_in_the_tree(serve: Serve) -> None:
    async with serve(FakeLoader(n_seq=1)) as api, looking(api) as looks:
        for end in "ab":
            await api.client.post("/completion", json={"prompt": "x" * 64 + end * 32, "max_tokens": 2})
        tiers = await looks.until("tiers", lambda found: found["demo"]["ram"]["n"])
        ((number, n_tokens, size, used_at, n_used, worth),) = tiers["demo"]["ram"]["states"]
        assert (n_tokens >= 96, size > 0, used_at > 0, n_used, worth > 0) == (True, True, True, 0, True)
        state = await looks.until("state", lambda s: s["models"][0]["engine"]["shared"])
        assert [(sorted(pair[:2]), pair[2]) for pair in state["models"][0]["engine"]["shared"]] == [([number, 0], 64)]


class Pausing(Exchange):
    """A client that can stop reading."""

    def __init__(self, api: Api) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.n_sent = 0
        super().__init__(api.app, "/v1/chat/completions", CHAT)

    async def _send(self, message: dict[str, Any]) -> None:
        self.n_sent += 1
        await self.reads.wait()
        await super()._send(message)


@pytest.mark.parametrize("reads", [True, False])
async def test_a_running_request_is_cancelled_by_its_id(serve: Serve, reads: bool) -> None:
    """Its client reads the error, also if it did not read meanwhile."""
    steps = threading.Semaphore(0)
    async with serve(FakeLoader(steps=steps)) as api, looking(api) as looks:
        exchange = Pausing(api)
        steps.release(3)
        assert await exchange.start() == 200
        slot = busy_slots(await looks.until("state", lambda s: steps.release() or busy_slots(s)))[0]  # type: ignore[func-returns-value]
        if not reads:
            exchange.reads.clear()
            n_sent = exchange.n_sent
            await until(lambda: steps.release() or exchange.n_sent > n_sent)  # type: ignore[func-returns-value]
        order = {"id": slot["choice"]["request"], "action": "cancel"}
        assert (await api.client.post("/v1/chat/completions/control", json=order)).json() == {"success": True}
        if not reads:
            steps.release(1000)
            await looks.ended(1)
            exchange.reads.set()
        said = b"".join([part async for part in exchange.chunks()])
        assert b"cancelled by the operator of this server" in said
        await exchange.task
        steps.release(1000)
        (ended,) = await looks.ended(1)
        assert ended["outcome"] == "cancelled" or not reads  # the engine may have ended first
        again = (await api.client.post("/v1/chat/completions/control", json=order)).json()
        assert again["success"] is False


async def test_it_needs_a_key_and_has_room_for_some(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(server={"api_keys": ["secret"]}) as api:
        assert (await api.client.get(LIVE)).status_code == 401
    monkeypatch.setattr(page_live, "MOST_WATCHERS", 1)
    async with serve() as api:
        assert (await api.client.head(LIVE)).status_code == 200
        async with looking(api) as looks:
            await looks.until("history")
            assert (await api.client.get(LIVE)).status_code == 429
            assert b'reason="web_ui_full"' in api.app.state.services.metrics.render("")[0]


async def test_the_last_hour_is_sampled(serve: Serve) -> None:
    async with serve() as api:
        history: History = api.app.state.services.live.history
        await api.client.post("/v1/chat/completions", json=CHAT | {"stream": False, "max_tokens": 5})
        history.sample()
        history.sample()
        first, second = history.samples
        assert first["generated_per_s"] > 0
        assert first["first_token"] is not None
        assert (second["generated_per_s"], second["gap"], second["hit_rate"]) == (0, None, None)
        async with looking(api) as looks:
            assert len(await looks.until("history")) == 2
            history.sample()
            assert (await looks.until("sample"))["memory"] == 4000
            assert [(await looks._next())[0] for _ in range(2)] == ["state", "state"]  # nothing is sent again
