"""What an engine's proxy decides without its worker."""

import asyncio
from pathlib import Path

import pytest

from server.engine.lora import Adapter
from server.engine.media import MediaSpan, media_tokens
from server.engine.params import EngineParams
from server.engine.request import Bounds, Event, Failed, Request, Text
from server.errors import ContextExceeded, InvalidRequest, ModelFailed, Unavailable
from server.pool.protocols import ModelInfo
from server.pool.spec import ModelSpec
from server.pool.worker.messages import LoadedFacts, RemoteChunk
from server.pool.worker.parent import WorkerSupervisor
from server.pool.worker.proxies import IsolatedEngine
from tests.support.fakes import FakeLoader


class Sent(WorkerSupervisor):
    """A supervisor that records messages."""

    def __init__(self) -> None:
        super().__init__("demo", FakeLoader, asyncio.get_running_loop(), FakeLoader())
        self.sent: list[tuple[object, ...]] = []

    @property
    def up(self) -> bool:
        return not self.down

    def notify(self, function: str, *arguments: object) -> None:
        self.sent.append((function, *arguments))

    def submit(self, number: int, request: Request) -> None:
        self.sent.append(("submit", number, request.id))


def made() -> tuple[Sent, IsolatedEngine]:
    supervisor = Sent()
    facts = LoadedFacts(ModelInfo(), {}, Bounds(260, 64, 2, 64, media=True), 2)
    return supervisor, IsolatedEngine(supervisor, facts, EngineParams())


async def test_an_invalid_request_is_refused_before_it_is_sent() -> None:
    supervisor, engine = made()
    for request, error in (
        (Request("a", []), InvalidRequest),
        (Request("a", [1] * 64), ContextExceeded),
        (Request("a", [260]), InvalidRequest),
        (Request("a", [1], id_slot=2), InvalidRequest),
        (Request("a", [1], adapters=((0, 1.0),)), InvalidRequest),
    ):
        with pytest.raises(error):
            engine.submit(request, lambda _: None)
    assert not supervisor.sent


async def test_media_of_an_ended_process_are_not_sent_to_the_next_one() -> None:
    supervisor, engine = made()
    chunk = RemoteChunk(1, 0, b"k", causal=True)
    span = MediaSpan(0, 2, 2, True, "id", chunk=chunk)
    request = Request("a", [*media_tokens("id", 0, 2), 1], media=(span,))
    engine.submit(request, lambda _: None)
    supervisor.n_restarts = 1
    with pytest.raises(Unavailable, match="try again"):
        engine.submit(request, lambda _: None)
    assert [message[0] for message in supervisor.sent] == ["submit"]


async def test_a_request_without_events_is_retried_once() -> None:
    supervisor, engine = made()
    heard: dict[str, list[Event]] = {"a": [], "b": []}
    for name, events in heard.items():
        engine.submit(Request(name, [1]), events.extend)
    engine.receive({1: [Text(0, "x", (1,))]})
    supervisor.down = "killed"
    engine.process_lost("killed")
    assert isinstance(heard["a"][-1], Failed)
    assert not heard["b"]
    engine.submit(Request("c", [1]), heard.setdefault("c", []).extend)  # waits
    supervisor.down, supervisor.sent = "", []
    engine.process_started()
    assert [message[2] for message in supervisor.sent if message[0] == "submit"] == ["b", "c"]
    supervisor.down = "killed again"
    engine.process_lost("killed again")
    assert [type(event) for event in heard["b"]] == [Failed]
    assert not heard["c"]
    engine.fail_all(ModelFailed("demo", "no file"))
    assert [type(event) for event in heard["c"]] == [Failed]
    assert not engine.busy


async def test_an_id_that_a_restarted_process_gives_again_gets_its_own_scale() -> None:
    supervisor, engine = made()
    supervisor._spec, supervisor._facts = ModelSpec("demo", Path("demo.gguf")), LoadedFacts(ModelInfo(), {})
    answers: list[tuple[Adapter, ...]] = [(Adapter(0, "a", 0.0, name="a"),), (), (Adapter(0, "b", 0.0, name="b"),)]

    async def call(function: str, *arguments: object) -> tuple[Adapter, ...]:
        return answers.pop(0)

    supervisor.call = call  # type: ignore[method-assign]
    await engine.load_adapter("a", "a", False)
    engine.set_adapter_scales(((0, 0.5),))
    await engine.unload_adapter("a")
    await engine.load_adapter("b", "b", False)
    assert supervisor._settings.get(("set_adapter_scales",), ()) == ()
    engine.set_adapter_scales(((0, 0.5),))
    assert supervisor.sent[-1] == ("set_adapter_scales", ((0, 0.5),))


async def test_a_request_long_before_the_next_start_is_refused() -> None:
    supervisor, engine = made()
    supervisor.down, supervisor.pause_s = "killed", 60.0
    with pytest.raises(Unavailable, match="in 60 s"):
        engine.submit(Request("a", [1]), lambda _: None)
