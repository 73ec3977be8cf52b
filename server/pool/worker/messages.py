"""Messages between the server and a worker process, and the connection that carries them.

A socket carries pickles of the dataclasses below. The largest are images and batches of embeddings. Slot states may
have gigabytes, so the worker itself reads and writes them.

- Dataclasses are pickled as their fields. The pixels of an image are sent separately without a copy, as copying 20 MB
  would block the event loop for 30 ms.
- The worker gets references to its objects (`remote_object`): vocabulary, compiled grammars, tokenized media, known
  bitmaps.
- From the worker, the server accepts only plain values, dataclasses and enums of its packages, because a malicious
  model file may control the process. This is no security boundary: the process has the server's user.
"""

import asyncio
import contextlib
import dataclasses
import io
import itertools
import logging
import pickle
import select
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from importlib import import_module
from operator import attrgetter
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from server import errors
from server.engine.lora import Adapter
from server.engine.request import Bounds, Event, Text
from server.engine.runner_api import EmbedderInfo
from server.engine.snapshots import SlotSnapshot
from server.engine.stats import EngineStats
from server.errors import InternalError, LlamapoolError, unexpected
from server.media.bitmap import Bitmap, BitmapKind
from server.pool.memory import Footprint
from server.pool.protocols import ModelInfo
from server.structured.reasoning_end import ReasoningSwitch
from server.vocab import Vocab

EVENTS = "events"
"""Name of the server's function that receives the events of steps by request number."""
_CANCEL = "cancel_call"
"""Name of a function of both ends: the caller no longer waits for a `Reply`."""
_PACKAGES = ("server.engine.", "server.pool.", "server.media.", "server.structured.")
_IMPURE = ("server.pool.worker.parent", "server.pool.worker.proxies", "server.pool.scheduler", "server.pool.loading")
"""Modules whose dataclasses have side effects when they are created."""
_STANDARD = {("builtins", "set"), ("builtins", "range"), ("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")}
_READ_BYTES, _LARGE = 1 << 18, 1 << 16
_LENGTH, _MORE = struct.Struct("<Q"), 1 << 63
"""Each part of a message starts with its length in bytes, with the bit `_MORE` if it is not the last part."""
log = logging.getLogger(__name__)

T = TypeVar("T")
Parts: TypeAlias = list[bytes | memoryview]


# ---- in both directions


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function of the other end, which sends a `Reply` with the same number. Number 0: no reply."""

    number: int
    function: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a `Call`, or its error."""

    number: int
    value: Any = None
    error: LlamapoolError | None = None


# ---- events and status of the worker


StepEvents: TypeAlias = list[tuple[int, list[Event | tuple[int, str, tuple[int, ...]]]]]
"""Events of one step by request number. A `Text` without logprobs and timings is sent as a tuple of its other fields,
which takes the step thread a third of the time.
"""


def step_events(batch: Iterable[tuple[int, Sequence[Event]]]) -> StepEvents:
    return [(number, [_packed(event) for event in events]) for number, events in batch]


def _packed(event: Event) -> Event | tuple[int, str, tuple[int, ...]]:
    if type(event) is Text and not event.logprobs and event.timings is None:
        return event.index, event.text, event.tokens
    return event


def merged(messages: Iterable[StepEvents]) -> dict[int, list[Event]]:
    """Return the events of several steps by request number, in order."""
    result: dict[int, list[Event]] = {}
    for message in messages:
        for number, events in message:
            result.setdefault(number, []).extend([Text(*e) if isinstance(e, tuple) else e for e in events])
    return result


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The state of one engine. ``requests``: for each slot its request's id; "" = none."""

    busy: bool
    stats: EngineStats
    slots: tuple[SlotSnapshot, ...]
    requests: tuple[str, ...]


GeneratorFacts: TypeAlias = tuple[Bounds, int, tuple[Adapter, ...]]
"""Bounds, slots of each instance, and adapters of the generating engine."""
EmbedderFacts: TypeAlias = tuple[EmbedderInfo, int, bool]
"""Facts of the embedding engine, its number of slots, and whether it accepts media."""
ReaderFacts: TypeAlias = tuple[frozenset[BitmapKind], str, int, str]
"""Kinds, marker, sample rate and fingerprint of the projector."""


@dataclass(slots=True)
class LoadedFacts:
    """Constants of the loaded model, and the memory that it takes."""

    info: ModelInfo
    footprint: Footprint
    generator: GeneratorFacts | None = None
    embedder: EmbedderFacts | None = None
    reader: ReaderFacts | None = None


# ---- references to objects of the other process


def remote_object(kind: str, name: Any) -> object:
    """Represent an object of the worker in a pickle; the `Decoder` returns the object instead."""
    raise AssertionError(f"a {kind} was read outside of a worker process: {name}")


@dataclass(eq=False, slots=True, weakref_slot=True)
class RemoteChunk:
    """A medium that the worker has tokenized."""

    number: int
    key: bytes
    causal: bool


class HandleTable(dict[int, T]):
    """Objects that the other process refers to by number until it releases them."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)

    def add(self, value: T) -> int:
        number = next(self._numbers)
        self[number] = value
        return number

    def release(self, number: int) -> None:
        """Remove an object; unknown numbers are ignored."""
        self.pop(number, None)


# ---- pickles


@cache
def _field_getter(kind: type) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return a function that gets the constructor's arguments; None for a class that is no plain dataclass. Such
    pickles are half as large as Python's default, and take less than half the time.
    """
    if not dataclasses.is_dataclass(kind):
        return None
    fields = dataclasses.fields(kind)
    if not fields or not all(field.init and not field.kw_only for field in fields):
        return None
    get = attrgetter(*(field.name for field in fields))
    return get if len(fields) > 1 else lambda value: (get(value),)


class Encoder(pickle.Pickler):
    """Pickles one message. For messages to the worker, `vocab` is the model's. `share` returns a reference number for a
    bitmap, whose pixels are not sent.
    """

    def __init__(self, vocab: Vocab | None = None, share: Callable[[Bitmap], int] | None = None) -> None:
        self._file, self._buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        super().__init__(self._file, pickle.HIGHEST_PROTOCOL, buffer_callback=self._buffers.append)
        self._vocab, self._share = vocab, share

    def reducer_override(self, obj: Any) -> Any:
        """Return the reduction of an object that is no plain value."""
        kind: Any = type(obj)
        if obj is self._vocab:
            return remote_object, ("vocab", None)
        if kind is Bitmap and obj.again is not None and self._share is not None:
            return remote_object, ("bitmap", (replace(obj, again=None), self._share(obj)))
        if kind is RemoteChunk:
            return remote_object, ("chunk", obj.number)
        if (fields := _field_getter(kind)) is not None:
            return kind, tuple(map(_as_buffer, fields(obj))) if kind in _WITH_BUFFERS else fields(obj)
        if isinstance(obj, LlamapoolError):
            return remote_error, (kind.__name__, obj.message, vars(obj))
        if kind is ReasoningSwitch:
            return kind, ()  # the server sends ``end_reasoning`` for its `end`
        if hasattr(kind, "recipe"):  # a compiled grammar; importing llguidance to name its class is slow
            return remote_object, ("constraint", tuple(obj.recipe))
        if hasattr(kind, "with_inside"):  # `TextTokens`
            return remote_object, ("tokens", None)
        return NotImplemented

    def pickled(self, value: object) -> bytes:
        """Return the pickle of `value`. Call it once."""
        self.dump(value)
        return self._file.getvalue()

    def encode(self, message: object) -> Parts:
        """Return the parts of a message with their lengths. Call it once."""
        body = self.pickled(message)
        sent: Parts = [_LENGTH.pack(len(body) | (_MORE if self._buffers else 0)) + body]
        for i, buffer in enumerate(self._buffers, 1):
            data = buffer.raw()
            sent += [_LENGTH.pack(len(data) | (_MORE if i < len(self._buffers) else 0)), data]
        return sent


_WITH_BUFFERS = (Bitmap, Reply)


def _as_buffer(value: object) -> object:
    return pickle.PickleBuffer(value) if type(value) is bytes and len(value) >= _LARGE else value


class Decoder(pickle.Unpickler):
    """Unpickles the parts of a message. In the worker, `resolve` returns the local object for a reference. Without it,
    as in the server, `load` raises `pickle.UnpicklingError` for classes that a worker does not send.
    """

    def __init__(self, parts: Sequence[bytes], resolve: Callable[[str, Any], object] | None = None) -> None:
        super().__init__(io.BytesIO(parts[0]), buffers=parts[1:])
        self._resolve = resolve

    def find_class(self, module: str, name: str) -> Any:
        """Return a permitted class, or `resolve` for `remote_object`."""
        if self._resolve is None:
            return _permitted(module, name)
        is_reference = (module, name) == (__name__, remote_object.__name__)
        return self._resolve if is_reference else super().find_class(module, name)


@cache
def _permitted(module: str, name: str) -> Any:
    result = None
    if (module, name) in _STANDARD or (module, name) == (__name__, remote_error.__name__):
        result = getattr(import_module(module), name)
    elif module.startswith(_PACKAGES) and not module.startswith(_IMPURE):
        result = getattr(import_module(module), name, None)
        if not (isinstance(result, type) and (dataclasses.is_dataclass(result) or issubclass(result, Enum))):
            result = None
    if result is None:
        raise pickle.UnpicklingError(f"a worker process sends no {module}.{name}")
    return result


def remote_error(name: str, message: str, fields: Mapping[str, Any]) -> LlamapoolError:
    """Return the error that the other process raised, without a call of its constructor."""
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, LlamapoolError)):
        kind = InternalError
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    vars(error).update(fields)
    return error


def portable(error: BaseException) -> LlamapoolError:
    """Return `error` if it is a `LlamapoolError`; otherwise log it and return the error for the client."""
    if isinstance(error, LlamapoolError):
        return error
    if isinstance(error, MemoryError):
        return InternalError("too little memory")
    log.error("a call of another process failed; this is a bug, please report it", exc_info=error)
    return unexpected(error)


# ---- the connection


class Connection:
    """One end of the connection to the other process: calls its functions, and answers its calls.

    `multiprocessing.connection` also frames messages, but its Python code doubled the step thread's CPU time per
    message. The event loop reads, because a thread would wait for the GIL at each message: with 16 streams, that
    doubled the server's CPU time per token.

    Created and used on the event loop, except `notify`, `notify_now` and `send_events`, which are thread-safe.
    ``received_at``: time of the last received message (`time.monotonic`).
    """

    def __init__(
        self,
        functions: dict[str, Callable[..., Any]],
        *,
        lost: Callable[[], object],
        invalid: Callable[[Exception], None],
        encoder: Callable[[], Encoder] = Encoder,
        resolve: Callable[[str, Any], object] | None = None,
    ) -> None:
        """`functions`: those that the other end may call, by name. `lost` is called at the end of the connection, and
        `invalid` with the error of a message that could not be processed. `encoder` is called in any thread.
        `resolve`: see `Decoder`.
        """
        self._loop = asyncio.get_running_loop()
        self.functions = functions
        functions[_CANCEL] = self._cancel_call
        self.received_at = time.monotonic()
        self._lost, self._invalid, self._encoder, self._resolve = lost, invalid, encoder, resolve
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._answers: dict[int, asyncio.Task[None]] = {}
        self._all_read = threading.Event()
        self._sending, self._writable = threading.Lock(), select.poll()
        self._queue: SimpleQueue[Parts | None] = SimpleQueue()
        self._chunk, self._unread = memoryview(bytearray(_READ_BYTES)), bytearray()
        self._parts: list[bytes] = []  # of an incomplete message

    def connect(self, end: socket.socket) -> None:
        """Start to send and receive on the socket `end`."""
        end.setblocking(False)  # uvloop does so as well
        self._socket = end
        self._writable.register(end, select.POLLOUT)
        threading.Thread(target=self._write, name="worker-writer", daemon=True).start()
        self._loop.add_reader(end, self._read)

    # ---- calls

    def notify(self, function: str, *arguments: object) -> None:
        """Call a function of the other end without waiting for its result; never blocks."""
        self._queue.put(self._encoder().encode(Call(0, function, arguments)))

    def notify_now(self, function: str, *arguments: object) -> None:
        """Notify in this thread; blocks while the other end does not read."""
        self._send(self._encoder().encode(Call(0, function, arguments)))

    def send_events(self, batch: list[tuple[int, list[Event]]]) -> None:
        """Send the events of a step in this thread; blocks while the other end does not read."""
        self._send(self._encoder().encode(step_events(batch)))

    async def call(self, function: str, *arguments: object) -> Any:
        """Call a function of the other end. Raises its errors, and those of `fail_calls`. If the caller is cancelled,
        the call is cancelled, too.
        """
        number = next(self._numbers)
        self._calls[number] = result = self._loop.create_future()
        try:
            self._queue.put(self._encoder().encode(Call(number, function, arguments)))
            return await result
        except asyncio.CancelledError:
            self.notify(_CANCEL, number)
            raise
        finally:
            del self._calls[number]

    def fail_calls(self, error: Callable[[], LlamapoolError]) -> None:
        """Fail each waiting call with a new error."""
        for result in self._calls.values():
            if not result.done():
                result.set_exception(error())

    def disconnect(self) -> None:
        """Close the connection after queued messages were sent."""
        self._queue.put(None)

    def _received(self, messages: Iterable[Sequence[bytes]]) -> None:
        self.received_at = time.monotonic()
        events: list[StepEvents] = []
        try:
            for parts in messages:
                match Decoder(parts, self._resolve).load():
                    case Call(number, function, arguments):
                        self._called(number, self.functions[function], arguments)
                    case Reply(number, value, error):
                        self._replied(number, value, error)
                    case message:
                        events.append(message)
            if events:
                self.functions[EVENTS](merged(events))
        except Exception as error:  # noqa: BLE001 - whatever the other process sent
            self._invalid(error)

    def _called(self, number: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if not number:
            function(*arguments)
            return
        self._answers[number] = task = self._loop.create_task(self._answer(number, function, arguments))
        task.add_done_callback(lambda _: self._answers.pop(number))

    def _cancel_call(self, number: int) -> None:
        if number in self._answers:
            self._answers[number].cancel()

    async def _answer(self, number: int, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> None:
        try:
            reply = self._encoder().encode(Reply(number, await function(*arguments)))
        except asyncio.CancelledError:
            return
        except BaseException as error:  # noqa: BLE001 - without a reply, the caller would wait forever
            reply = self._encoder().encode(Reply(number, error=portable(error)))
        self._queue.put(reply)

    def _replied(self, number: int, value: object, error: LlamapoolError | None) -> None:
        waiting = self._calls.get(number)
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(value)
        else:
            waiting.set_exception(error)

    # ---- bytes

    def _send(self, parts: Parts) -> None:
        """Send a message; blocks while the other end does not read. A closed connection is ignored. Thread-safe."""
        try:
            with self._sending:
                for part in parts:
                    unsent = memoryview(part)
                    while unsent:
                        try:
                            unsent = unsent[self._socket.send(unsent) :]
                        except BlockingIOError:
                            self._writable.poll()
        except OSError as error:
            log.debug("a message could not be sent: %s", error)

    def _write(self) -> None:
        """Send queued messages; runs in the thread ``worker-writer``."""
        while (parts := self._queue.get()) is not None:
            self._send(parts)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # both ends read to the end
        self._all_read.wait()
        with self._sending:
            self._socket.close()

    def _read(self) -> None:
        try:
            n = self._socket.recv_into(self._chunk)
        except BlockingIOError:
            return
        except OSError:
            n = 0
        if n:
            self._unread += self._chunk[:n]
            if messages := self._whole_messages():
                self._received(messages)
            return
        self._loop.remove_reader(self._socket)
        self.disconnect()
        self._all_read.set()
        self._lost()

    def _whole_messages(self) -> list[list[bytes]]:
        """Remove complete messages from the received bytes, and return them."""
        result: list[list[bytes]] = []
        end, view = 0, memoryview(self._unread)
        with view:
            while len(view) - end >= _LENGTH.size:
                start = end + _LENGTH.size
                (length,) = _LENGTH.unpack_from(view, end)
                if len(view) - start < (size := length & ~_MORE):
                    break
                end = start + size
                self._parts.append(bytes(view[start:end]))
                if not length & _MORE:
                    result.append(self._parts)
                    self._parts = []
        del self._unread[:end]
        return result
