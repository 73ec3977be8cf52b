"""Messages between the server and a worker process: round trips, refused classes, and calls over a connection."""

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
from server.errors import ContextExceeded, InternalError, InvalidRequest, LlamapoolError, QueueFull, TooLate
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


def filled(kind: type[Any], **values: Any) -> Any:
    """Return an event whose fields differ from each other and from their defaults."""
    return kind(**{each.name: values.get(each.name, i + 1) for i, each in enumerate(fields(kind))})


EVENTS: list[Event] = [
    filled(Started),
    filled(Progress),
    PromptLogprobs(1, (SCORED,)),
    Text(0, "a", (1,)),
    Text(1, "\u20ac", (1, 2), (SCORED,), filled(Timings)),
    filled(Finished, reason=FinishReason.STOP, stopping_word="x", timings=filled(Timings)),
]


def to_server(message: object) -> Any:
    """Return a worker's message as the server decodes it."""
    return Decoder([Encoder().pickled(message)]).load()


@pytest.mark.parametrize("events", [[event] for event in EVENTS] + [EVENTS])
def test_events_of_several_steps_keep_their_fields_and_order(events: list[Event]) -> None:
    batch: list[tuple[int, list[Event]]] = [(7, events), (8, [Text(0, "b", (2,))])]
    message = to_server(step_events(batch))
    assert merged([message, message]) == {7: events + events, 8: [Text(0, "b", (2,))] * 2}


@pytest.mark.parametrize(
    "error", [InvalidRequest("bad", "prompt"), ContextExceeded(5, 4), QueueFull("full", 2), TooLate("late", 5)]
)
def test_errors_keep_their_class_message_and_fields(error: LlamapoolError) -> None:
    failed = to_server(Failed(error))
    assert type(failed.error) is type(error)
    assert vars(failed.error) == vars(error)
    assert str(failed.error) == str(error)


def test_second_release_of_a_handle_is_ignored() -> None:
    table = HandleTable[str]()
    first, second = table.add("a"), table.add("b")
    table.release(first)
    table.release(first)
    assert dict(table) == {second: "b"}


@pytest.mark.parametrize("value", [eval, FakeVocab(), io.StringIO, Connection, HandleTable, PoolLimits(), merged])
def test_server_refuses_to_unpickle_classes_that_a_worker_does_not_send(value: object) -> None:
    with pytest.raises(pickle.UnpicklingError):
        Decoder([pickle.dumps(Reply(1, value))]).load()


def test_error_of_an_unknown_class_becomes_an_internal_error() -> None:
    class UnknownError:
        def __reduce__(self) -> tuple[Any, ...]:
            return remote_error, ("open", "message", {"more": 1})

    error = Decoder([pickle.dumps(UnknownError())]).load()
    assert (type(error), str(error), vars(error)) == (InternalError, "message", {"more": 1})
    assert portable(MemoryError()).message == "too little memory"
    assert "cannot import 'numpy';" in portable(ImportError("/opt/venv/numpy: no such file", name="numpy")).message


def to_worker(request: Request) -> Any:
    """Return a request as the worker decodes it."""

    def resolve(kind: str, name: Any) -> object:
        match kind:
            case "vocab":
                return VOCAB
            case "constraint":
                return COMPILER.recreate(Recipe(*name))
        return COMPILER.tokens

    return Decoder([Encoder(VOCAB, HandleTable[Bitmap]().add).pickled(request)], resolve).load()


def unique_items() -> Constraint:
    return COMPILER.json_schema(UNIQUE)


def started_regex() -> Constraint:
    constraint = COMPILER.regex("[a-z]+!")
    COMPILER.tokens.feed(constraint, b"ab")
    constraint.recipe = constraint.recipe._replace(begun=b"ab")
    return constraint


def choice_after_reasoning() -> Constraint:
    return after_reasoning(COMPILER.choice(["yes", "no"]), tags=("<think>", "</think>"), may_think=True)


def reasoning_budget() -> Constraint:
    return ReasoningBudget(4).ended(
        unique_items(), VOCAB, "<think>", ["</think>"], begun="x", reopens=False, switch=ReasoningSwitch()
    )


def lazy_grammar() -> Constraint:
    lazy = Lazy(({"type": 2, "value": "a(b+)", "token": -1},))
    constraint = lazy.triggered(COMPILER.gbnf('root ::= "b" [0-9]+'), VOCAB, COMPILER)
    assert constraint is not None
    return constraint


@pytest.mark.parametrize("make", [unique_items, started_regex, choice_after_reasoning, reasoning_budget, lazy_grammar])
def test_constraint_allows_the_same_tokens_in_the_worker(make: Callable[[], Constraint]) -> None:
    local, remote = make(), to_worker(Request("r", [1], constraint=make())).constraint
    for _ in range(12):
        allowed = [token for token in range(VOCAB.n_tokens) if local.allows(token)]
        assert allowed == [token for token in range(VOCAB.n_tokens) if remote.allows(token)]
        assert bytes(local.mask()) == bytes(remote.mask())
        if local.finished:
            break
        local.accept(allowed[-1])
        remote.accept(allowed[-1])


class ConnectedEnds:
    """The server's and the worker's end of a connection.

    ``received``: arguments of the calls of ``receive``; ``invalid``: errors of messages.
    """

    def __init__(self) -> None:
        server_end, worker_end = socket.socketpair()
        self.received, self.invalid, self.lost = list[Any](), list[Exception](), asyncio.Event()
        self.hanging, self.cancelled = asyncio.Event(), asyncio.Event()
        functions: dict[str, Callable[..., Any]] = {
            "receive": self.received.append,
            "echo": self._echo,
            "fail": self._fail,
            "hang": self._hang,
        }
        self.server = Connection(functions, lost=self.lost.set, invalid=self.invalid.append)
        self.worker = Connection({}, lost=lambda: None, invalid=self.invalid.append)
        self.server.connect(server_end)
        self.worker.connect(worker_end)

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
async def connected() -> AsyncIterator[ConnectedEnds]:
    """Open a connection. On exit, close the worker's end and wait until the server notices."""
    ends = ConnectedEnds()
    async with asyncio.timeout(60):
        yield ends
        ends.worker.disconnect()
        await ends.lost.wait()


def bitmap(n_bytes: int) -> Bitmap:
    return Bitmap("image", n_bytes, 1, bytes(i % 251 for i in range(n_bytes)), "id")


async def test_messages_of_any_size_arrive_complete_and_in_order() -> None:
    sent = [b"", b"a", bytes(5), b"b" * (1 << 20), bitmap(9), [bitmap(1 << 16), b"c", bitmap(1 << 17)], b"d"]
    async with connected() as ends:
        for value in sent:
            ends.worker.notify("receive", value)
    assert ends.received == sent
    assert not ends.invalid


async def test_large_values_are_sent_without_a_copy() -> None:
    n_bytes = 1 << 20
    for value in (bytes(n_bytes), [bitmap(n_bytes)]):
        assert sum(len(part) for part in Encoder().encode(Reply(1, value)) if type(part) is bytes) < 2000
    async with connected() as ends:
        assert await ends.worker.call("echo", bitmap(n_bytes)) == bitmap(n_bytes)
        assert await ends.worker.call("echo", bytes(n_bytes)) == bytes(n_bytes)


async def test_call_raises_the_errors_of_the_called_function(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as ends:
        with pytest.raises(ContextExceeded) as expected:
            await ends.worker.call("fail", ContextExceeded(5, 4))
        assert vars(expected.value) == vars(ContextExceeded(5, 4))
        assert not caplog.records
        with pytest.raises(InternalError) as unexpected:
            await ends.worker.call("fail", None)
        assert (unexpected.value.reason, "broken" in unexpected.value.message) == ("RuntimeError: broken", False)
        assert "this is a bug" in caplog.text


async def test_cancelled_call_is_cancelled_at_the_other_end() -> None:
    async with connected() as ends:
        call = asyncio.ensure_future(ends.worker.call("hang"))
        await ends.hanging.wait()
        call.cancel()
        await ends.cancelled.wait()
        assert await ends.worker.call("echo", 1) == 1
    assert not ends.invalid


async def test_call_cancelled_before_its_task_starts_calls_no_function(recwarn: pytest.WarningsRecorder) -> None:
    async with connected() as ends:
        ends.server._called(1, ends.server.functions["hang"], ())
        ends.server._cancel_call(1)
        assert await ends.worker.call("echo", 1) == 1
        assert not ends.hanging.is_set()
    gc.collect()
    assert not [str(each.message) for each in recwarn if "never awaited" in str(each.message)]


async def test_message_that_names_an_unknown_function_is_invalid() -> None:
    async with connected() as ends:
        ends.worker.notify("unknown")
    assert [type(error) for error in ends.invalid] == [KeyError]
