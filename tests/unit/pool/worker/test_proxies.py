"""Proxies of engines in a worker process: checks before a message is sent, and the end of the process."""

import asyncio

import pytest

from server.engine.lora import Adapter
from server.engine.request import Bounds, Event, Failed, Request, Text
from server.engine.runner_api import EmbedderInfo, Pooling
from server.errors import ContextExceeded, InvalidRequest, ModelEnded, ShuttingDown
from server.pool.worker.parent import WorkerProcess
from server.pool.worker.proxies import IsolatedEmbedder, IsolatedEngine, IsolatedReader
from tests.support.fakes import FakeLoader


class RecordingProcess(WorkerProcess):
    """A process that records messages. ``answers``: results of calls; other calls fail when the process ends."""

    def __init__(self) -> None:
        super().__init__("demo", FakeLoader, FakeLoader())
        self.sent: list[tuple[object, ...]] = []
        self.answers: list[tuple[Adapter, ...]] = []

    def notify(self, function: str, *arguments: object) -> None:
        self.sent.append((function, *arguments))

    def submit(self, number: int, request: Request) -> None:
        self.sent.append(("submit", number, request.id))

    async def call(self, function: str, *arguments: object) -> tuple[Adapter, ...]:
        if not self.answers:
            await self.ended
            raise self.ended_error()
        return self.answers.pop(0)


def make_engine() -> tuple[RecordingProcess, IsolatedEngine]:
    process = RecordingProcess()
    return process, IsolatedEngine(process, (Bounds(260, 64, 2, 64, media=True), 2, ()))


async def test_invalid_request_is_refused_before_it_is_sent() -> None:
    process, engine = make_engine()
    for request, error in (
        (Request("a", []), InvalidRequest),
        (Request("a", [1] * 64), ContextExceeded),
        (Request("a", [260]), InvalidRequest),
        (Request("a", [1], id_slot=2), InvalidRequest),
        (Request("a", [1], adapters=((0, 1.0),)), InvalidRequest),
    ):
        with pytest.raises(error):
            engine.submit(request, lambda _: None)
    assert not process.sent


async def test_requests_of_an_ended_process_fail() -> None:
    process, engine = make_engine()
    events: list[Event] = []
    engine.submit(Request("a", [1]), events.extend)
    engine.submit(Request("b", [1]), events.extend)
    engine.receive({1: [Text(0, "x", (1,))]})
    process.ended.set_result("killed")
    engine.process_ended()
    assert not engine.busy
    assert [type(event.error) for event in events if isinstance(event, Failed)] == [ModelEnded, ModelEnded]
    with pytest.raises(ModelEnded, match="killed"):
        engine.submit(Request("c", [1]), events.extend)


async def test_work_of_a_process_killed_during_close_fails_with_shutting_down() -> None:
    """Sessions would retry work that failed with `ModelEnded`."""
    process, engine = make_engine()
    events: list[Event] = []
    engine.submit(Request("a", [1]), events.extend)
    info = EmbedderInfo(Pooling.MEAN, n_embd=2, n_seq=2, n_pack=64, n_ubatch=64, n_ctx_seq=64, whole=True)
    embedding = IsolatedEmbedder(process, (info, 2, False), 260).submit([[1]])
    reader = IsolatedReader(process, (frozenset({"image"}), "<media>", 0, ""))
    counting = asyncio.create_task(asyncio.to_thread(reader.count, ["<media>"], add_special=False, parse_special=False))
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    process.ended.set_result("it has not answered")
    engine.process_ended()
    await closing
    assert [type(event.error) for event in events if isinstance(event, Failed)] == [ShuttingDown]
    for work in (embedding, counting):
        with pytest.raises(ShuttingDown):
            await work


async def test_adapter_with_a_reused_id_gets_its_own_scale() -> None:
    process, engine = make_engine()
    process.answers = [(Adapter(0, "a", 0.0, name="a"),), (), (Adapter(0, "b", 0.0, name="b"),)]
    await engine.load_adapter("a", "a", False)
    engine.set_adapter_scales(((0, 0.5),))
    await engine.unload_adapter("a")
    await engine.load_adapter("b", "b", False)
    assert engine.adapters == (Adapter(0, "b", 0.0, name="b"),)
    engine.set_adapter_scales(((0, 0.5),))
    assert process.sent[-1] == ("set_adapter_scales", ((0, 0.5),))
