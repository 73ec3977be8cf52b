"""What crosses between the server and a model's process is the same on the other side, and nothing else crosses."""

import asyncio
import gc
import io
import pickle
import socket
import tracemalloc
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from server.engine.kv.state import Checkpoint, SlotState
from server.engine.lora import AdapterSet
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
from server.errors import ContextExceeded, InvalidRequest, LlamapoolError, QueueFull, TooLate
from server.media.bitmap import Bitmap
from server.pool.worker import answers, codec
from server.pool.worker.channel import PART_BYTES, Channel, FrameKind, frame
from server.pool.worker.remote_media import MediaHandles, RemoteBitmap
from server.structured.after_reasoning import AfterReasoning, Framing
from server.structured.constraint import Constraint
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.grammar.matcher import Recipe
from server.structured.lazy import Lazy
from server.structured.reasoning_end import Ending, ReasoningEnd, ReasoningSwitch
from tests.support.fakes import FakeVocab

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


@pytest.mark.parametrize("events", [[event] for event in EVENTS] + [EVENTS])
def test_events_are_what_they_were_in_every_field(events: list[Event]) -> None:
    raw = answers.written_events([(7, events), (8, [Text(0, "b", (2,))])])
    assert answers.read_events([raw, raw]) == {7: events + events, 8: [Text(0, "b", (2,))] * 2}


@pytest.mark.parametrize(
    "error", [InvalidRequest("bad", "prompt"), ContextExceeded(5, 4), QueueFull(3, 2), TooLate("late", 5)]
)
def test_errors_keep_their_kind_and_what_they_say(error: LlamapoolError) -> None:
    (failed,) = answers.read_events([answers.written_events([(1, [Failed(error)])])])[1]
    assert isinstance(failed, Failed)
    assert type(failed.error) is type(error)
    assert vars(failed.error) == vars(error)
    assert str(failed.error) == str(error)


@pytest.mark.parametrize("strange", [eval, FakeVocab(), io.StringIO, Channel, LlamapoolError("x")])
def test_a_process_can_say_nothing_but_plain_values(strange: object) -> None:
    with pytest.raises(pickle.UnpicklingError):
        answers.read(pickle.dumps(("answer", 1, strange)))


def crossed(request: Request) -> tuple[Request, dict[int, ReasoningSwitch], ReasoningSwitch | None]:
    """A request on the other side, with the switches there, and the one that crossed."""
    seen: list[ReasoningSwitch] = []
    there: dict[int, ReasoningSwitch] = {}

    def heard(switch: ReasoningSwitch) -> int:
        seen.append(switch)
        return 3

    def here(kind: str, name: Any) -> object:
        match kind:
            case "vocab":
                return VOCAB
            case "constraint":
                return COMPILER.made_anew(Recipe(*name))
        return there.setdefault(name, ReasoningSwitch())

    (raw,) = codec.written((1, request), VOCAB, heard, MediaHandles().add)
    number, found = codec.MessageDecoder(bytes(raw), here).load()
    assert number == 1
    return found, there, seen[0] if seen else None


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
def test_a_constraint_holds_the_output_to_the_same_on_the_other_side(make: Callable[[], Constraint]) -> None:
    found, _, _ = crossed(Request("r", [1], constraint=make()))
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


def test_a_switch_is_one_number_on_both_sides() -> None:
    constraint = thinking_end()
    found, there, here = crossed(Request("r", [1], constraint=constraint))
    assert here is not None
    assert list(there) == [3]
    assert found.constraint is not None
    there[3].end()
    assert not found.constraint.allows(ord("x"))  # the thoughts end now


LONG = [bytes([i]) * (PART_BYTES + i) for i in range(3)]
SLOT = SlotState([1, 2], LONG[1], AdapterSet(), 2, (Checkpoint(1, LONG[2]), Checkpoint(2, b"short")))


def test_what_is_long_crosses_without_being_copied_into_a_message() -> None:
    bitmap = Bitmap("image", 2, 1, LONG[0], "id")
    down, *long = codec.written((bitmap, SLOT), VOCAB, lambda _: 0, MediaHandles().add)
    assert [piece.obj for piece in long if isinstance(piece, memoryview)] == LONG
    assert codec.MessageDecoder(bytes(down), lambda *_: None, LONG).load() == (bitmap, SLOT)


def test_a_slots_state_comes_up_without_being_copied_into_a_message_or_out_of_it() -> None:
    up, *long = answers.written(("answer", 1, SLOT))
    assert len(up) < 1000
    assert [piece.obj for piece in long if isinstance(piece, memoryview)] == LONG[1:]
    _, _, found = answers.read(bytes(up), LONG[1:])
    assert found == SLOT
    assert found.state is LONG[1]


async def test_a_long_piece_is_received_where_it_stays() -> None:
    """Its bytes are allocated once: what is copied after it has come would stop the event loop for as long."""
    n, heard = 64 * PART_BYTES, asyncio.get_running_loop().create_future()
    ours = Channel(lambda *_: None, lambda: None)
    theirs = Channel(lambda _kind, body, long: heard.set_result((body, long)), lambda: None)
    loop = asyncio.get_running_loop()
    for channel, end in zip((ours, theirs), socket.socketpair(), strict=True):
        await loop.create_unix_connection(lambda channel=channel: channel, sock=end)  # type: ignore[misc]
    state = bytes(n)
    tracemalloc.start()
    try:
        await ours.send_long(b"head", state)
        body, (found,) = await heard
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (body, found) == (b"head", state)
    assert most < n + 32 * PART_BYTES
    ours.close()
    theirs.close()


def test_a_bitmap_whose_data_can_be_had_again_crosses_without_it_until_nobody_there_has_it() -> None:
    lent = MediaHandles()
    known = Bitmap("image", 2, 1, b"", "id", again=lambda: b"decoded again")
    whole, sized = Bitmap("image", 2, 1, b"123456", "id"), Bitmap("image", 2, 1, b"", "id")
    (raw,) = codec.written(("tokenize", [known, "text", whole, sized]), VOCAB, lambda _: 0, lent.add)
    assert lent[1] is known

    def here(kind: str, name: tuple[Bitmap, int]) -> object:
        assert kind == "bitmap"
        return replace(name[0], again=RemoteBitmap(name[1], lambda number: lent[number].decoded(), lent.given_back))

    _, found = codec.MessageDecoder(bytes(raw), here).load()
    assert found == [known, "text", whole, sized]
    assert [each.decoded() for each in found if each != "text"] == [b"decoded again", b"123456", b""]
    copy = replace(found[0], of_video=True)
    found.clear()
    gc.collect()
    assert len(lent) == 1
    assert copy.decoded() == b"decoded again"
    del copy
    gc.collect()
    assert len(lent) == 0


def test_long_messages_come_whole_and_in_any_pieces() -> None:
    heard: list[tuple[FrameKind, bytes]] = []
    channel = Channel(lambda kind, body, _long: heard.append((kind, body)), lambda: None)
    raw = frame(FrameKind.EVENTS, b"abc") + frame(FrameKind.MESSAGE, b"") + frame(FrameKind.MESSAGE, b"x" * 1000)
    for at in range(0, len(raw), 7):
        channel.data_received(raw[at : at + 7])
    assert heard == [(FrameKind.EVENTS, b"abc"), (FrameKind.MESSAGE, b""), (FrameKind.MESSAGE, b"x" * 1000)]


async def test_of_a_long_message_that_is_given_up_nothing_stays_and_the_next_one_comes() -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    ours = Channel(lambda *_: None, lambda: None)
    theirs = Channel(lambda _kind, body, _long: heard.put_nowait(body), lambda: None)
    loop = asyncio.get_running_loop()
    one, other = socket.socketpair()
    await loop.create_unix_connection(lambda: ours, sock=one)
    transport, _ = await loop.create_unix_connection(lambda: theirs, sock=other)
    transport.pause_reading()
    sending = asyncio.ensure_future(ours.send_long(b"x" * (64 * PART_BYTES)))
    while ours._writable.is_set():  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    transport.resume_reading()
    await ours.send_long(b"y" * (2 * PART_BYTES))
    assert await heard.get() == b"y" * (2 * PART_BYTES)
    assert not theirs._parts
    ours.close()
    theirs.close()
