"""Messages between the server and a worker process: what arrives equals what was sent, and nothing else is accepted."""

import asyncio
import gc
import io
import pickle
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

import pytest

from server.engine.request import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Progress,
    PromptLogprobs,
    Request,
    Started,
    Text,
    Timings,
    TokenLogprob,
)
from server.errors import (
    ContextExceeded,
    InternalError,
    InvalidRequest,
    LlamapoolError,
    QueueFull,
    TooLate,
)
from server.media.bitmap import Bitmap
from server.pool.scheduler import PoolLimits
from server.pool.worker.messages import (
    Connection,
    Decoder,
    Encoder,
    HandleTable,
    Reply,
    merged,
    portable,
    remote_error,
    step_events,
)
from server.structured.constraint import Constraint
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.grammar.matcher import Recipe
from server.structured.lazy import Lazy
from server.structured.reasoning_end import ReasoningBudget, ReasoningSwitch
from tests.support.fakes import FakeVocab
from tests.unit.structured.builders import after_reasoning

VOCAB, COMPILER = FakeVocab(), GrammarCompiler(FakeVocab())
SCORED = TokenLogprob(5, b"\xff", float("-inf"), (TokenLogprob(6, b"", -1.0, ends=True),), ends=True)
UNIQUE = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}


def changed(kind: type[Any], **given: Any) -> Any:
    """An event in which no plain field is as it is by default."""
    values = {one.name: given.get(one.name, i + 1) for i, one in enumerate(fields(kind))}
    return kind(**values)


EVENTS: list[Event] = [
    changed(Started),
    changed(Progress),
    PromptLogprobs(1, (SCORED,)),
    Text(0, "a", (1,)),
    Text(1, "\u20ac", (1, 2), (SCORED,), changed(Timings)),
    changed(Finished, reason=FinishReason.STOP, stopping_word="x", timings=changed(Timings)),
]


def to_server(message: object) -> Any:
    """Return a worker's message as the server reads it."""
    return Decoder([Encoder().pickled(message)]).load()


@pytest.mark.parametrize("events", [[event] for event in EVENTS] + [EVENTS])
def test_events_keep_every_field_and_those_of_several_steps_are_merged_in_order(events: list[Event]) -> None:
    batch: list[tuple[int, list[Event]]] = [(7, events), (8, [Text(0, "b", (2,))])]
    found = to_server(step_events(batch))
    assert merged([found, found]) == {7: events + events, 8: [Text(0, "b", (2,))] * 2}


@pytest.mark.parametrize(
    "error", [InvalidRequest("bad", "prompt"), ContextExceeded(5, 4), QueueFull("full", 2), TooLate("late", 5)]
)
def test_errors_keep_their_class_message_and_fields(error: LlamapoolError) -> None:
    failed = to_server(Failed(error))
    assert type(failed.error) is type(error)
    assert vars(failed.error) == vars(error)
    assert str(failed.error) == str(error)


def test_a_handle_is_released_once() -> None:
    table = HandleTable[str]()
    first, second = table.add("a"), table.add("b")
    table.release(first)
    table.release(first)
    assert dict(table) == {second: "b"}


@pytest.mark.parametrize("strange", [eval, FakeVocab(), io.StringIO, Connection, HandleTable, PoolLimits(), merged])
def test_the_server_accepts_only_plain_values_of_a_worker(strange: object) -> None:
    with pytest.raises(pickle.UnpicklingError):
        Decoder([pickle.dumps(Reply(1, strange))]).load()


def test_an_error_that_the_server_does_not_know_is_an_internal_one() -> None:
    class Strange:
        def __reduce__(self) -> tuple[Any, ...]:
            return remote_error, ("open", "said", {"more": 1})

    found = Decoder([pickle.dumps(Strange())]).load()
    assert (type(found), str(found), vars(found)) == (InternalError, "said", {"more": 1})
    assert portable(MemoryError()).message == "too little memory"
    assert "cannot import 'numpy';" in portable(ImportError("/opt/venv/numpy: no such file", name="numpy")).message


def to_worker(request: Request) -> Any:
    """Return a request as the worker reads it."""

    def resolve(kind: str, name: Any) -> object:
        match kind:
            case "vocab":
                return VOCAB
            case "constraint":
                return COMPILER.recreate(Recipe(*name))
        return COMPILER.tokens

    return Decoder([Encoder(VOCAB, HandleTable[Bitmap]().add).pickled(request)], resolve).load()


def unique() -> Constraint:
    return COMPILER.json_schema(UNIQUE)


def begun() -> Constraint:
    made = COMPILER.regex("[a-z]+!")
    COMPILER.tokens.feed(made, b"ab")
    made.recipe = made.recipe._replace(begun=b"ab")
    return made


def after_thinking() -> Constraint:
    return after_reasoning(COMPILER.choice(["yes", "no"]), tags=("<think>", "</think>"), may_think=True)


def thinking_end() -> Constraint:
    return ReasoningBudget(4).ended(
        unique(), VOCAB, "<think>", ["</think>"], begun="x", reopens=False, switch=ReasoningSwitch()
    )


def lazy() -> Constraint:
    waits = Lazy(({"type": 2, "value": "a(b+)", "token": -1},))
    found = waits.held(COMPILER.gbnf('root ::= "b" [0-9]+'), VOCAB, COMPILER)
    assert found is not None
    return found


@pytest.mark.parametrize("make", [unique, begun, after_thinking, thinking_end, lazy])
def test_a_constraint_allows_the_same_tokens_in_the_worker(make: Callable[[], Constraint]) -> None:
    own, theirs = make(), to_worker(Request("r", [1], constraint=make())).constraint
    for _ in range(12):
        allowed = [token for token in range(VOCAB.n_tokens) if own.allows(token)]
        assert allowed == [token for token in range(VOCAB.n_tokens) if theirs.allows(token)]
        assert bytes(own.mask()) == bytes(theirs.mask())
        if own.finished:
            break
        own.accept(allowed[-1])
        theirs.accept(allowed[-1])


class Ends:
    """Both ends of a connection. ``arrived``: what ``keep`` of the server's end was called with; ``invalid``: errors of
    its messages. The worker's end is ``worker``.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.arrived, self.invalid, self.lost = list[Any](), list[Exception](), asyncio.Event()
        self.hanging, self.cancelled = asyncio.Event(), asyncio.Event()
        functions: dict[str, Callable[..., Any]] = {
            "keep": self.arrived.append,
            "echo": self._echo,
            "fail": self._fail,
            "hang": self._hang,
        }
        self.server = Connection(functions, lost=self.lost.set, invalid=self.invalid.append)
        self.worker = Connection({}, lost=lambda: None, invalid=self.invalid.append)
        self.server.connect(ours)
        self.worker.connect(theirs)

    async def _echo(self, value: object) -> object:
        return value

    async def _fail(self, error: Exception) -> None:
        raise RuntimeError("broken") if error is None else error

    async def _hang(self) -> None:
        self.hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


@asynccontextmanager
async def connected() -> AsyncIterator[Ends]:
    """Both ends, closed and lost at the end."""
    ends = Ends()
    async with asyncio.timeout(60):
        yield ends
        ends.worker.disconnect()
        await ends.lost.wait()


def picture(n_bytes: int) -> Bitmap:
    return Bitmap("image", n_bytes, 1, bytes(i % 251 for i in range(n_bytes)), "id")


async def test_messages_of_any_size_arrive_whole_and_in_order() -> None:
    sent = [b"", b"a", bytes(5), b"b" * (1 << 20), picture(9), [picture(1 << 16), b"c", picture(1 << 17)], b"d"]
    async with connected() as ends:
        for value in sent:
            ends.worker.notify("keep", value)
    assert ends.arrived == sent
    assert not ends.invalid


async def test_pixels_are_sent_from_where_they_are() -> None:
    n_bytes = 1 << 20
    parts = Encoder().encode(Reply(1, bytes(n_bytes))), Encoder().encode(Reply(1, [picture(n_bytes)]))
    assert [sum(len(part) for part in each if type(part) is bytes) < 2000 for each in parts] == [True, True]
    async with connected() as ends:
        assert await ends.worker.call("echo", picture(n_bytes)) == picture(n_bytes)
        assert await ends.worker.call("echo", bytes(n_bytes)) == bytes(n_bytes)


async def test_a_call_raises_what_the_function_raises(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as ends:
        with pytest.raises(ContextExceeded) as found:
            await ends.worker.call("fail", ContextExceeded(5, 4))
        assert vars(found.value) == vars(ContextExceeded(5, 4))
        assert not caplog.records
        with pytest.raises(InternalError) as hidden:
            await ends.worker.call("fail", None)
        assert (hidden.value.reason, "broken" in hidden.value.message) == ("RuntimeError: broken", False)
        assert "this is a bug" in caplog.text


async def test_a_cancelled_call_is_cancelled_at_the_other_end() -> None:
    async with connected() as ends:
        call = asyncio.ensure_future(ends.worker.call("hang"))
        await ends.hanging.wait()
        call.cancel()
        await ends.cancelled.wait()
        assert await ends.worker.call("echo", 1) == 1
    assert not ends.invalid


async def test_a_call_cancelled_before_it_starts_calls_nothing(recwarn: pytest.WarningsRecorder) -> None:
    async with connected() as ends:
        ends.server._called(1, ends.server.functions["hang"], ())
        ends.server._cancel_call(1)
        assert await ends.worker.call("echo", 1) == 1
        assert not ends.hanging.is_set()
    gc.collect()
    assert not [str(each.message) for each in recwarn if "never awaited" in str(each.message)]


async def test_a_message_that_names_no_function_is_invalid() -> None:
    async with connected() as ends:
        ends.worker.notify("strange")
    assert [type(error) for error in ends.invalid] == [KeyError]
