"""Live data of the web UI: state of the engines, collected only while a client watches, and cancellation by id."""

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


class Watcher(Exchange):
    """A client of the live data. Its methods read events until one fits."""

    def __init__(self, api: Api) -> None:
        super().__init__(api.app, LIVE, None, method="GET")
        self._pending: list[str] = []  # events of the last chunk
        self._ended: list[Any] = []

    async def _next(self) -> tuple[str, Any]:
        if not self._pending:
            self._pending = (await self.chunk()).decode().strip().split("\n\n")
        event, data = (line.partition(": ")[2] for line in self._pending.pop(0).split("\n"))
        found = orjson.loads(data)
        if event == "requests":
            self._ended = found
        return event, found

    async def until(self, name: str, fits: Any = lambda _: True) -> Any:
        """Return the data of the next event `name` for which `fits` holds."""
        while True:
            event, found = await self._next()
            if event == name and fits(found):
                return found

    async def ended(self, n: int) -> list[Any]:
        """Return the ended requests as soon as there are `n`."""
        while len(self._ended) < n:
            await self._next()
        return self._ended


@asynccontextmanager
async def watching(api: Api) -> AsyncIterator[Watcher]:
    async with asyncio.timeout(100):
        watcher = Watcher(api)
        assert await watcher.start() == 200
        try:
            yield watcher
        finally:
            watcher.disconnect()
            await asyncio.wait([watcher.task])


def views(api: Api) -> Sequence[InstanceView]:
    loaded = api.loaded()
    return loaded.engine.views()


def busy_slots(state: Any) -> list[Any]:
    return [slot for slot in state["models"][0]["engine"]["slots"] if slot["choice"]]


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_live, "INTERVAL_S", 0.01)
    monkeypatch.setattr(page_live, "INTERVAL_PER_CHOICE_S", 0.0)
    monkeypatch.setattr(snapshots, "MAX_AGE_S", 0.0)


async def test_watcher_receives_slots_queue_and_ended_requests(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with serve(FakeLoader(n_seq=1, steps=steps)) as api, watching(api) as watcher:
        idle = await watcher.until("state", lambda s: s["models"][0].get("engine", {}).get("slots"))
        assert [slot["phase"] for slot in idle["models"][0]["engine"]["slots"]] == ["idle"]
        body = CHAT | {"max_tokens": 200}
        async with posting(api.app, "/v1/chat/completions", body) as first:
            steps.release(5)
            assert await first.start() == 200
            async with posting(api.app, "/v1/chat/completions", body | {"priority": 3}):

                def has_both(state: Any) -> bool:  # slots and queue of one event may be one step apart
                    steps.release()  # one step for each event
                    waiting = state["models"][0]["engine"]["waiting"] if busy_slots(state) else []
                    return [choice["priority"] for choice in waiting] == [3]

                state = await watcher.until("state", has_both)
            slot = busy_slots(state)[0]
            assert slot["choice"]["prompt"] > 0
            assert slot["choice"]["submitted"] <= slot["choice"]["placed"]
            steps.release(1000)
        ended = await watcher.ended(2)
        assert {request["outcome"] for request in ended} <= {"done", "cancelled"}
        assert all(request["ended"] >= request["submitted"] > 0 for request in ended)


async def test_steps_are_recorded_only_while_a_client_watches(api: Api) -> None:
    await api.client.post("/v1/chat/completions", json=CHAT | {"stream": False})
    assert views(api) == []
    async with watching(api) as watcher:
        await watcher.until("state")
        await api.client.post("/v1/chat/completions", json=CHAT | {"stream": False})
        steps = views(api)[0].steps
        assert steps
    assert views(api) == []
    await api.client.post("/v1/chat/completions", json=CHAT | {"stream": False})
    async with watching(api) as watcher:
        await watcher.until("state")
        assert views(api)[0].steps == steps


async def test_state_has_the_shared_prefixes_of_slots(serve: Serve) -> None:
    async with serve() as api, watching(api) as watcher:
        for end in "ab":
            body = {"prompt": "x" * 64 + end * 16, "max_tokens": 2, "id_slot": "ab".index(end)}
            await api.client.post("/completion", json=body)
        state = await watcher.until("state", lambda s: s["models"][0]["engine"]["shared"])
        assert [(sorted(pair[:2]), pair[2]) for pair in state["models"][0]["engine"]["shared"]] == [([0, 1], 64)]
        ended = {request["slot"]: request for request in await watcher.ended(2)}
        assert (ended[0]["source"], ended[0]["recompute"]) == (["none", -1], "nothing")
        assert (ended[1]["source"], ended[1]["recompute"]) == (["copy", 0], "differs")


async def test_state_in_ram_is_listed_with_its_shared_prefix(serve: Serve) -> None:
    async with serve(FakeLoader(n_seq=1)) as api, watching(api) as watcher:
        for end in "ab":
            await api.client.post("/completion", json={"prompt": "x" * 64 + end * 32, "max_tokens": 2})
        tiers = await watcher.until("tiers", lambda found: found["demo"]["ram"]["n"])
        ((number, n_tokens, size, used_at, n_used, priority),) = tiers["demo"]["ram"]["states"]
        assert (n_tokens >= 96, size > 0, used_at > 0, n_used, priority > 0) == (True, True, True, 0, True)
        state = await watcher.until("state", lambda s: s["models"][0]["engine"]["shared"])
        assert [(sorted(pair[:2]), pair[2]) for pair in state["models"][0]["engine"]["shared"]] == [([number, 0], 64)]


class PausingClient(Exchange):
    """A client of a chat stream. It stops reading while `reads` is not set."""

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
async def test_operator_cancels_a_running_request_by_its_id(serve: Serve, reads: bool) -> None:
    """The client receives the error even if it did not read when the request was cancelled."""
    steps = threading.Semaphore(0)
    async with serve(FakeLoader(steps=steps)) as api, watching(api) as watcher:
        exchange = PausingClient(api)
        steps.release(3)
        assert await exchange.start() == 200
        slot = busy_slots(await watcher.until("state", lambda s: steps.release() or busy_slots(s)))[0]  # type: ignore[func-returns-value]
        if not reads:
            exchange.reads.clear()
            n_sent = exchange.n_sent
            await until(lambda: steps.release() or exchange.n_sent > n_sent)  # type: ignore[func-returns-value]
        cancel = {"id": slot["choice"]["request"], "action": "cancel"}
        assert (await api.client.post("/v1/chat/completions/control", json=cancel)).json() == {"success": True}
        if not reads:
            steps.release(1000)
            await watcher.ended(1)
            exchange.reads.set()
        raw = b"".join([part async for part in exchange.chunks()])
        assert b"cancelled by the operator of this server" in raw
        await exchange.task
        steps.release(1000)
        (ended,) = await watcher.ended(1)
        assert ended["outcome"] == "cancelled" or not reads  # the engine may finish first
        again = (await api.client.post("/v1/chat/completions/control", json=cancel)).json()
        assert again["success"] is False


async def test_live_data_needs_a_key_and_limits_the_watchers(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(server={"api_keys": ["secret"]}) as api:
        assert (await api.client.get(LIVE)).status_code == 401
    monkeypatch.setattr(page_live, "MAX_WATCHERS", 1)
    async with serve() as api:
        assert (await api.client.head(LIVE)).status_code == 200
        async with watching(api) as watcher:
            await watcher.until("history")
            assert (await api.client.get(LIVE)).status_code == 429
            assert b'reason="web_ui_full"' in api.app.state.services.metrics.render("")[0]


async def test_history_has_samples_of_the_last_hour(api: Api) -> None:
    history: History = api.app.state.services.live.history
    await api.client.post("/v1/chat/completions", json=CHAT | {"stream": False, "max_tokens": 5})
    history.sample()
    history.sample()
    first, second = history.samples
    assert first["generated_per_s"] > 0
    assert first["first_token"] is not None
    assert (second["generated_per_s"], second["gap"], second["hit_rate"]) == (0, None, None)
    async with watching(api) as watcher:
        assert len(await watcher.until("history")) == 2
        history.sample()
        assert (await watcher.until("sample"))["memory"] == 4000
        assert [(await watcher._next())[0] for _ in range(2)] == ["state", "state"]  # samples are sent once
