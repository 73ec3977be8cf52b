"""What the server's half of an engine says by itself."""

import asyncio
from typing import Any, cast

import pytest

from server.engine.media import MediaSpan, media_tokens
from server.engine.params import EngineParams
from server.engine.request import Bounds, Event, Failed, Request, Text
from server.errors import ContextExceeded, InternalError, InvalidRequest, ModelFailed, Unavailable
from server.media.bitmap import Bitmap
from server.pool.worker import codec
from server.pool.worker.answers import read_error
from server.pool.worker.channel import Channel
from server.pool.worker.codec import DistantChunk
from server.pool.worker.engines import IsolatedEngine
from server.pool.worker.facts import GeneratorFacts
from server.pool.worker.supervisor import Child, WorkerSupervisor, ended_by
from tests.support.fakes import FakeLoader


class Sent(WorkerSupervisor):
    """A process that only takes messages."""

    def __init__(self) -> None:
        super().__init__("demo", FakeLoader, asyncio.get_running_loop())
        self.sent: list[tuple[object, ...]] = []

    @property
    def up(self) -> bool:
        return not self.down

    def post(self, *message: object) -> None:
        self.sent.append(message)

    def submit(self, number: int, request: Request) -> None:
        self.sent.append(("submit", number, request.id))


def made() -> tuple[Sent, IsolatedEngine]:
    supervisor = Sent()
    return supervisor, IsolatedEngine(
        supervisor, GeneratorFacts(Bounds(260, 64, 2, 64, media=True), 2, ()), EngineParams()
    )


async def test_what_is_wrong_is_said_before_it_is_sent() -> None:
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


async def test_media_that_a_gone_process_has_read_are_not_sent_to_the_next_one() -> None:
    supervisor, engine = made()
    forgotten: list[tuple[int, int]] = []
    chunk = DistantChunk(1, 0, b"k", causal=True, forget=lambda *what: forgotten.append(what))
    span = MediaSpan(0, 2, 2, True, "id", chunk=chunk)
    request = Request("a", [*media_tokens("id", 0, 2), 1], media=(span,))
    engine.submit(request, lambda _: None)
    supervisor.n_restarts = 1
    with pytest.raises(Unavailable, match="ask again"):
        engine.submit(request, lambda _: None)
    assert [message[0] for message in supervisor.sent] == ["submit"]


async def test_only_what_has_said_nothing_is_asked_once_more_and_only_once() -> None:
    supervisor, engine = made()
    heard: dict[str, list[Event]] = {"a": [], "b": []}
    for name, events in heard.items():
        engine.submit(Request(name, [1]), events.extend)
    engine.events({1: [Text(0, "x", (1,))]})
    supervisor.down = "killed"
    engine.lost("killed")
    assert isinstance(heard["a"][-1], Failed)
    assert not heard["b"]
    engine.submit(Request("c", [1]), heard.setdefault("c", []).extend)  # waits
    supervisor.down, supervisor.sent = "", []
    engine.begins()
    assert [message[2] for message in supervisor.sent if message[0] == "submit"] == ["b", "c"]
    supervisor.down = "killed again"
    engine.lost("killed again")
    assert [type(event) for event in heard["b"]] == [Failed]
    assert not heard["c"]
    engine.gave_up(ModelFailed("demo", "no file"))
    assert [type(event) for event in heard["c"]] == [Failed]
    engine.check_integrity()


async def test_who_asks_long_before_the_next_start_is_told_so() -> None:
    supervisor, engine = made()
    supervisor.down, supervisor.pause_s = "killed", 60.0
    with pytest.raises(Unavailable, match="in 60 s"):
        engine.submit(Request("a", [1]), lambda _: None)


class Lending(Child):
    """Without a process; ``sent`` is what would have been sent."""

    def __post_init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.channel = cast(Channel, self)
        self._decoding: set[asyncio.Task[None]] = set()

    async def send_long(self, *pieces: bytes | memoryview) -> None:
        body, *long = map(bytes, pieces)
        self.sent.append(codec.MessageDecoder(body, lambda *_: None, long).load())


async def test_every_question_for_what_was_lent_has_an_answer() -> None:
    def broken() -> bytes:
        raise ZeroDivisionError("a bug")

    child = Lending("demo", lambda *_: None, lambda *_: None, lambda *_: None)
    whole = child.lent.add(Bitmap("image", 1, 1, b"", "id", again=lambda: b"123"))
    faulty = child.lent.add(Bitmap("image", 1, 1, b"", "id", again=broken))
    for asked, number in enumerate((whole, faulty, 77)):
        child.wants(asked, number)
        await asyncio.gather(*child._decoding)
    assert child.sent[0] == ("lent", 0, b"123")
    errors = [read_error(found) for _, _, found in child.sent[1:]]
    assert [type(error) for error in errors] == [InternalError, InternalError]
    assert "number 77" in errors[1].message


@pytest.mark.parametrize(("status", "said"), [(-9, "SIGKILL"), (-6, "SIGABRT"), (70, "status 70"), (-63, "signal 63")])
def test_an_end_has_words(status: int, said: str) -> None:
    assert said in ended_by(status)
