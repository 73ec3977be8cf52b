"""Messages between the server and a worker process: what arrives equals what was sent, and nothing else is accepted."""

import asyncio
import gc
import io
import pickle
import socket
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from typing import Any

import pytest

from server.engine.lora import AdapterSet
from server.engine.prefix_cache import Checkpoint, SlotState
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
from server.pool.worker.messages import (
    Array,
    Buffers,
    CancelCall,
    Decoder,
    Encoder,
    Endpoint,
    HandleTable,
    Link,
    LoadProgress,
    LoopLink,
    RemoteBitmap,
    Reply,
    RestrictedDecoder,
    StepEvents,
    merged,
    portable,
    texts_of,
)
from server.structured.after_reasoning import AfterReasoning, Framing
from server.structured.constraint import Constraint
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.grammar.matcher import Recipe
from server.structured.lazy import Lazy
from server.structured.reasoning_end import Ending, ReasoningEnd, ReasoningSwitch
from tests.support.fakes import FakeVocab

BIG = 1 << 18
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
    body, buffers = Encoder().encode(message)
    return RestrictedDecoder(body, [bytes(buffer) for buffer in buffers]).load()


@pytest.mark.parametrize("events", [[event] for event in EVENTS] + [EVENTS])
def test_events_keep_every_field_and_those_of_several_steps_are_merged_in_order(events: list[Event]) -> None:
    batch: list[tuple[int, list[Event]]] = [(7, events), (8, [Text(0, "b", (2,))])]
    texts = texts_of(batch)
    assert (texts is None) == (events != [EVENTS[3]])
    found = to_server(StepEvents(batch) if texts is None else texts)
    assert merged([found, found]) == {7: events + events, 8: [Text(0, "b", (2,))] * 2}


@pytest.mark.parametrize(
    "error", [InvalidRequest("bad", "prompt"), ContextExceeded(5, 4), QueueFull(3, 2), TooLate("late", 5)]
)
def test_errors_keep_their_class_message_and_fields(error: LlamapoolError) -> None:
    failed = to_server(Failed(error))
    assert type(failed.error) is type(error)
    assert vars(failed.error) == vars(error)
    assert str(failed.error) == str(error)


@pytest.mark.parametrize(
    ("error", "said"),
    [(MemoryError(), "too little memory"), (KeyError("x"), "KeyError: 'x'"), (asyncio.CancelledError(), "Cancelled")],
)
def test_a_foreign_error_is_sent_as_an_internal_error(error: BaseException, said: str) -> None:
    found = to_server(Reply(1, error=portable(error))).error
    assert type(found) is InternalError
    assert said in found.message


@pytest.mark.parametrize("strange", [eval, FakeVocab(), io.StringIO, Link, HandleTable])
def test_the_server_accepts_only_plain_values_of_a_worker(strange: object) -> None:
    with pytest.raises(pickle.UnpicklingError):
        RestrictedDecoder(pickle.dumps(Reply(1, strange))).load()


def to_worker(request: Request) -> tuple[Request, dict[int, ReasoningSwitch], ReasoningSwitch | None]:
    """Return a request as the worker reads it, the worker's switches, and the server's."""
    watched: list[ReasoningSwitch] = []
    switches: dict[int, ReasoningSwitch] = {}

    def watch(switch: ReasoningSwitch) -> int:
        watched.append(switch)
        return 3

    def resolve(kind: str, name: Any) -> object:
        match kind:
            case "vocab":
                return VOCAB
            case "constraint":
                return COMPILER.made_anew(Recipe(*name))
        return switches.setdefault(name, ReasoningSwitch())

    body, buffers = Encoder(VOCAB, HandleTable[Bitmap]().add, watch).encode(request)
    assert not buffers
    return Decoder(body, resolve=resolve).load(), switches, watched[0] if watched else None


def unique() -> Constraint:
    return COMPILER.json_schema(UNIQUE)


def begun() -> Constraint:
    made = COMPILER.regex("[a-z]+!")
    COMPILER.markers(["ab"]).feed(made, b"ab")
    made.recipe = made.recipe._replace(begun=b"ab")
    return made


def after_thinking() -> Constraint:
    framing = Framing(b"<think>", b"</think>")
    return AfterReasoning(COMPILER.choice(["yes", "no"]), VOCAB, framing, begun=False, may_think=True)


def thinking_end() -> Constraint:
    ending = Ending(b"<think>", (b"</think>",), tuple(b"</think>"), budget=4)
    return ReasoningEnd(ending, unique(), VOCAB, n_begun=1, switch=ReasoningSwitch())


def lazy() -> Constraint:
    waits = Lazy(({"type": 2, "value": "a(b+)", "token": -1},))
    found = waits.held(COMPILER.gbnf('root ::= "b" [0-9]+'), VOCAB, COMPILER)
    assert found is not None
    return found


@pytest.mark.parametrize("make", [unique, begun, after_thinking, thinking_end, lazy])
def test_a_constraint_allows_the_same_tokens_in_the_worker(make: Callable[[], Constraint]) -> None:
    found, _, _ = to_worker(Request("r", [1], constraint=make()))
    own, theirs = make(), found.constraint
    assert theirs is not None
    for _ in range(12):
        allowed = [token for token in range(VOCAB.n_tokens) if own.allows(token)]
        assert allowed == [token for token in range(VOCAB.n_tokens) if theirs.allows(token)]
        assert bytes(own.mask()) == bytes(theirs.mask())
        if own.finished:
            break
        own.accept(allowed[-1])
        theirs.accept(allowed[-1])


def test_a_switch_is_referred_to_by_number() -> None:
    constraint = thinking_end()
    found, switches, own = to_worker(Request("r", [1], constraint=constraint))
    assert own is not None
    assert list(switches) == [3]
    assert found.constraint is not None
    switches[3].end()
    assert not found.constraint.allows(ord("x"))  # the reasoning ends now


LONG = [bytes([i]) * (BIG + i) for i in range(3)]
SLOT = SlotState([1, 2], LONG[1], AdapterSet(), 2, (Checkpoint(1, LONG[2]), Checkpoint(2, b"short")))


@pytest.mark.parametrize("value", [SLOT, [Array((1, 2), LONG[1]), Array((3,), LONG[2])], LONG[1]])
def test_long_values_are_sent_to_the_server_without_a_copy(value: object) -> None:
    body, buffers = Encoder().encode(Reply(1, value))
    assert len(body) < 1000
    expected = [LONG[1]] if isinstance(value, bytes) else LONG[1:]
    assert [buffer.obj for buffer in buffers if isinstance(buffer, memoryview)] == expected
    assert RestrictedDecoder(body, expected).load() == Reply(1, value)


@contextmanager
def links() -> Iterator[tuple[Link, "asyncio.Queue[tuple[bytes, Buffers] | None]"]]:
    """A link, and what its other end receives; None at the end of the connection."""
    loop, received = asyncio.get_running_loop(), asyncio.Queue[tuple[bytes, Buffers] | None]()

    def put(message: tuple[bytes, Buffers] | None) -> None:
        with suppress(RuntimeError):  # the test has ended
            loop.call_soon_threadsafe(received.put_nowait, message)

    ours, theirs = socket.socketpair()
    sender = Link(ours, lambda *_: None, lambda: None)
    receiver = Link(theirs, lambda *message: put(message), lambda: put(None))
    try:
        yield sender, received
    finally:
        sender.close()
        receiver.close()


async def test_a_long_value_is_received_in_place() -> None:
    """Its bytes are allocated once: a copy of gigabytes would stop the event loop."""
    n = 64 * BIG
    state = bytes(n)
    with links() as (sender, received):
        tracemalloc.start()
        try:
            sender.post((b"head", [state]))
            message = await received.get()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert message == (b"head", [state])
    assert peak < n + 32 * BIG


async def test_messages_arrive_whole_and_in_order_before_the_end_of_the_connection() -> None:
    with links() as (sender, received):
        messages: list[tuple[bytes, Buffers]] = [
            (b"", []),
            (b"a", [b"x" * (BIG + 1), b"y"]),
            (b"b" * 99999, []),
        ]
        for message in messages:
            sender.post(message)
        sender.close()
        assert [await received.get() for _ in range(4)] == [*messages, None]


@pytest.mark.parametrize("kind", [Link, LoopLink])
async def test_nothing_of_an_unfinished_message_is_received(kind: type[Link]) -> None:
    ours, theirs = socket.socketpair()
    received: list[bytes] = []
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def lost() -> None:
        loop.call_soon_threadsafe(ended.set)

    reader = kind(theirs, lambda body, _: received.append(body), lost)
    ours.sendall(b"\x10\0\0\0\0\0\0\0abc")
    ours.close()
    await ended.wait()
    assert not received
    reader.close()


async def test_a_bitmap_whose_data_the_server_can_get_again_is_sent_without_it_until_the_worker_drops_it() -> None:
    shared: HandleTable[Bitmap] = HandleTable()
    known = Bitmap("image", 2, 1, b"", "id", again=lambda: b"decoded again")
    whole, sized = Bitmap("image", 2, 1, b"123456", "id"), Bitmap("image", 2, 1, b"", "id")
    body, _ = Encoder(VOCAB, shared.add).encode([known, "text", whole, sized])
    assert shared[1] is known

    def resolve(kind: str, name: tuple[Bitmap, int]) -> object:
        assert kind == "bitmap"
        return replace(name[0], again=RemoteBitmap(name[1], lambda number: shared[number].decoded(), shared.release))

    found = Decoder(body, resolve=resolve).load()
    assert found == [known, "text", whole, sized]
    assert [each.decoded() for each in found if each != "text"] == [b"decoded again", b"123456", b""]
    copy = replace(found[0], of_video=True)
    found.clear()
    gc.collect()
    assert len(shared) == 1
    assert copy.decoded() == b"decoded again"
    del copy
    gc.collect()
    assert len(shared) == 0


class Pair:
    """Two endpoints; ``received`` and ``errors`` are of the second one."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        self.received: asyncio.Queue[Any] = asyncio.Queue()
        self.errors: asyncio.Queue[Exception] = asyncio.Queue()
        self.lost = asyncio.Event()
        pairs = [socket.socketpair(), socket.socketpair()]

        def receive(messages: Sequence[Any]) -> None:
            for message in messages:
                self.received.put_nowait(message)

        def endpoint(i: int, handlers: Any) -> Endpoint:
            return Endpoint(
                [pair[i] for pair in pairs],
                lambda message: Encoder().encode(message),
                lambda body, buffers: RestrictedDecoder(body, buffers).load(),
                receive,
                handlers,
                self.lost.set,
                self.errors.put_nowait,
                LoopLink if i else Link,
            )

        self.caller, self.callee = endpoint(0, {}), endpoint(1, functions)

    async def __aenter__(self) -> "Pair":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.caller.close()
        await self.lost.wait()
        self.callee.close()


async def test_calls_return_values_and_raise_errors_of_the_other_end() -> None:
    async def double(value: bytes) -> bytes:
        return value * 2

    async def broken() -> None:
        raise ZeroDivisionError("a bug")

    async with Pair(double=double, broken=broken) as pair:
        assert await asyncio.gather(*(pair.caller.call("double", value) for value in (b"a", LONG[1]))) == [
            b"aa",
            LONG[1] * 2,
        ]
        with pytest.raises(InternalError, match="ZeroDivisionError"):
            await pair.caller.call("broken")
        assert not pair.caller._calls


async def test_a_cancelled_call_is_cancelled_at_the_other_end() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with Pair(wait=wait) as pair:
        call = asyncio.ensure_future(pair.caller.call("wait"))
        await begun.wait()
        call.cancel()
        await cancelled.wait()
        pair.caller.post(CancelCall(77))  # of a call that has ended
        pair.caller.post(LoadProgress(0.5))
        assert await pair.received.get() == LoadProgress(0.5)
        assert not pair.callee._answers


async def test_an_invalid_message_is_reported_and_the_next_one_is_processed() -> None:
    async with Pair() as pair:
        pair.caller.post_encoded((b"no pickle", []))
        assert isinstance(await pair.errors.get(), pickle.UnpicklingError)
        pair.caller.notify("unknown")
        assert isinstance(await pair.errors.get(), KeyError)
        pair.caller.post(LoadProgress(1.0))
        assert await pair.received.get() == LoadProgress(1.0)
