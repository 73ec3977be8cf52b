"""Messages between the server and a worker process, and the connections that carry them.

Two sockets carry pickles of the dataclasses below: one carries short messages, the other messages with buffers. A slot
state of a gigabyte therefore delays neither events nor cancellations.

- Dataclasses are pickled as their fields. A thread sends fields of more than `LONG_BYTES` bytes as out-of-band buffers
  (PEP 574), which are received in place: no event loop copies them.
- The worker gets references to its own objects (`remote_object`): vocabulary, compiled grammars, tokenized media,
  cancellation switches, known bitmaps.
- From the worker, only plain values, our dataclasses and our enums are accepted, because a model file may have
  taken the process over. That is no security boundary: the process has the server's user.
"""

import asyncio
import contextlib
import dataclasses
import io
import itertools
import logging
import pickle
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from importlib import import_module
from operator import attrgetter
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from server import errors
from server.engine.cache.prefix_cache import CacheEntry, Checkpoint, new_bytes
from server.engine.lora import Adapter
from server.engine.request import Bounds, Event, Text
from server.engine.runner_api import EmbedderInfo
from server.engine.snapshots import SlotSnapshot
from server.engine.stats import EngineStats
from server.errors import CONTAINED, InternalError, LlamapoolError
from server.media.bitmap import Bitmap, BitmapKind
from server.pool.memory import Footprint
from server.pool.protocols import ModelInfo
from server.structured.reasoning_end import ReasoningSwitch
from server.vocab import Vocab

LONG_BYTES = 1 << 16
_READ_BYTES = 1 << 18
CANCEL = "cancel_call"
"""A function of both ends: the caller no longer waits for a `Reply`."""
_HEADER = struct.Struct("<II")
_OURS = ("server.engine.", "server.pool.", "server.media.", "server.structured.")
_ACTIVE = ("server.pool.worker.parent", "server.pool.worker.proxies", "server.pool.scheduler", "server.pool.loading")
"""Modules whose dataclasses do something when they are created."""
_STANDARD = {("builtins", "set"), ("builtins", "range"), ("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")}
log = logging.getLogger(__name__)

T = TypeVar("T")
Buffers: TypeAlias = Sequence[bytes | memoryview]
Encoded: TypeAlias = tuple[bytes, Buffers]
"""A pickle and the buffers that it refers to, in order."""


# ---- in both directions


@dataclass(frozen=True, slots=True)
class Call:
    """Calls a function of the other end, which sends a `Reply` with the same number. Number 0: no reply."""

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
"""Events of one step, by request number. A `Text` without logprobs and timings, as nearly all are, is sent as its other
fields: as dataclasses they take the step thread three times as long to send.
"""


def step_events(batch: Iterable[tuple[int, Sequence[Event]]]) -> StepEvents:
    """Return the events of a step as they are sent."""
    return [(number, [_packed(event) for event in events]) for number, events in batch]


def _packed(event: Event) -> Event | tuple[int, str, tuple[int, ...]]:
    if type(event) is Text and not event.logprobs and event.timings is None:
        return event.index, event.text, event.tokens
    return event


def merged(messages: Iterable[StepEvents]) -> dict[int, list[Event]]:
    """Return the events of several steps by request number, in order."""
    found: dict[int, list[Event]] = {}
    for message in messages:
        for number, events in message:
            found.setdefault(number, []).extend([Text(*e) if isinstance(e, tuple) else e for e in events])
    return found


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The state of one engine. ``requests``: for each slot its request's id; "" = none."""

    busy: bool
    stats: EngineStats
    slots: tuple[SlotSnapshot, ...]
    requests: tuple[str, ...]


# ---- results of calls


@dataclass(frozen=True, slots=True)
class GeneratorFacts:
    """Constants of the generating engine."""

    bounds: Bounds
    n_slots_each: int
    adapters: tuple[Adapter, ...]


@dataclass(frozen=True, slots=True)
class EmbedderFacts:
    """Constants of the embedding engine."""

    info: EmbedderInfo
    n_slots: int
    takes_media: bool


@dataclass(frozen=True, slots=True)
class ReaderFacts:
    """Constants of the projector."""

    kinds: frozenset[BitmapKind]
    marker: str
    sample_rate: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class LoadedFacts:
    """Constants of the loaded model."""

    info: ModelInfo
    footprint: Footprint
    generator: GeneratorFacts | None
    embedder: EmbedderFacts | None
    reader: ReaderFacts | None

    def is_as(self, other: "LoadedFacts") -> bool:
        """Return whether both describe the same model, so that one can replace the other after a restart."""
        return (self.info, self.generator, self.embedder) == (other.info, other.generator, other.embedder)


@dataclass(frozen=True, slots=True)
class Array:
    """A float32 array."""

    shape: tuple[int, ...]
    data: bytes


# ---- references to objects of the other process


def remote_object(kind: str, name: Any) -> object:
    """Placeholder in a pickle that `Decoder` replaces by the local object."""
    raise AssertionError(f"a {kind} was read outside of a worker process: {name}")


@dataclass(eq=False, slots=True, weakref_slot=True)
class RemoteChunk:
    """A medium that the worker has tokenized, in its process number `generation`."""

    number: int
    generation: int
    key: bytes
    causal: bool


class HandleTable(dict[int, T]):
    """Objects that the other process refers to by number until it releases them."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)

    def __missing__(self, number: int) -> T:
        raise InternalError(f"the other process holds no object number {number}")

    def add(self, value: T) -> int:
        """Return the new object's number."""
        number = next(self._numbers)
        self[number] = value
        return number

    def release(self, number: int) -> None:
        """Drop an object; unknown numbers are ignored."""
        self.pop(number, None)


# ---- pickles


@cache
def _fields_of(kind: type) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return a getter of the constructor's arguments; None for a class that is no plain dataclass."""
    if not dataclasses.is_dataclass(kind):
        return None
    fields = dataclasses.fields(kind)
    if not fields or not all(field.init and not field.kw_only for field in fields):
        return None
    get = attrgetter(*(field.name for field in fields))
    return get if len(fields) > 1 else lambda value: (get(value),)


_LONG = frozenset({Array, Bitmap, Checkpoint, Reply, CacheEntry})
"""Dataclasses with fields of megabytes."""


class Encoder(pickle.Pickler):
    """Pickles one message. To the worker: `vocab` is the model's, `share` receives a bitmap without its data, `watch`
    a reasoning switch; each of both returns a number for the reference.
    """

    def __init__(
        self,
        vocab: Vocab | None = None,
        share: Callable[[Bitmap], int] | None = None,
        watch: Callable[[ReasoningSwitch], int] | None = None,
    ) -> None:
        buffers: list[memoryview] = []
        self._file, self._buffers = io.BytesIO(), buffers

        def add(buffer: pickle.PickleBuffer) -> None:  # without a reference to `self`: a cycle would be garbage
            buffers.append(buffer.raw())

        super().__init__(self._file, pickle.HIGHEST_PROTOCOL, buffer_callback=add)
        self._vocab, self._share, self._watch = vocab, share, watch

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object that is no plain value is pickled."""
        kind: Any = type(obj)
        if obj is self._vocab:
            return remote_object, ("vocab", None)
        if kind is Bitmap and obj.again is not None and self._share is not None:
            return remote_object, ("bitmap", (replace(obj, again=None), self._share(obj)))
        if kind is RemoteChunk:
            return remote_object, ("chunk", obj.number)
        if kind in _LONG:
            return kind, tuple(_out_of_band(getattr(obj, field.name)) for field in dataclasses.fields(kind))
        if (fields := _fields_of(kind)) is not None:
            return kind, fields(obj)
        if isinstance(obj, LlamapoolError):
            return remote_error, (kind.__name__, obj.message, vars(obj))
        if kind is ReasoningSwitch and self._watch is not None:
            return remote_object, ("switch", self._watch(obj))
        if hasattr(kind, "recipe"):  # a compiled grammar; importing llguidance to name its class is slow
            return remote_object, ("constraint", tuple(obj.recipe))
        if hasattr(kind, "with_inside"):  # `TextTokens`
            return remote_object, ("tokens", None)
        return NotImplemented

    def encode(self, message: object) -> Encoded:
        """Return the pickle of `message` and its buffers. Call it once."""
        self.dump(message)
        return self._file.getvalue(), self._buffers


def _out_of_band(value: object) -> object:
    return pickle.PickleBuffer(value) if isinstance(value, bytes) and len(value) > LONG_BYTES else value


class Decoder(pickle.Unpickler):
    """Unpickles a message. In the worker, `resolve` returns the local object for a reference. The server gives none,
    and accepts only classes that a worker sends; otherwise `load` raises `pickle.UnpicklingError`.
    """

    def __init__(
        self, body: bytes, buffers: Buffers = (), *, resolve: Callable[[str, Any], object] | None = None
    ) -> None:
        super().__init__(io.BytesIO(body), buffers=buffers)
        self._resolve = resolve

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that is permitted here; for `remote_object`, what resolves it."""
        if self._resolve is None:
            return _permitted(module, name)
        is_reference = (module, name) == (__name__, remote_object.__name__)
        return self._resolve if is_reference else super().find_class(module, name)


@cache
def _permitted(module: str, name: str) -> Any:
    found = None
    if (module, name) in _STANDARD or (module, name) == (__name__, remote_error.__name__):
        found = getattr(import_module(module), name)
    elif module.startswith(_OURS) and not module.startswith(_ACTIVE):
        found = getattr(import_module(module), name, None)
        if not (isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, Enum))):
            found = None
    if found is None:
        raise pickle.UnpicklingError(f"a worker process sends no {module}.{name}")
    return found


def remote_error(name: str, message: str, fields: Mapping[str, Any]) -> LlamapoolError:
    """Return an error as the other process raised it, whatever its constructor takes."""
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, LlamapoolError)):
        kind = InternalError
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    vars(error).update(fields)
    return error


def portable(error: BaseException) -> LlamapoolError:
    """Return `error`, or an `InternalError` that quotes it if it is none of ours."""
    if isinstance(error, LlamapoolError):
        return error
    if isinstance(error, MemoryError):
        return InternalError("too little memory")
    return InternalError(f"{type(error).__name__}: {error}")


# ---- connections


class Link:
    """One connection. Its methods are thread-safe. `received` and `lost` are called in the thread that reads: one of
    its own, or the event loop `loop`.

    A message is a header (bytes of the pickle, number of buffers), the sizes of the buffers, the pickle, and the
    buffers. `multiprocessing.connection` would do the same; its Python code doubled the step thread's CPU time per
    message. The event loop reads short messages, because a thread would wait for the interpreter's lock for each one:
    with 16 streams, the server took twice the CPU time per token. One read gets all messages that have arrived.
    """

    def __init__(
        self,
        end: socket.socket,
        received: Callable[[bytes, Buffers], None],
        lost: Callable[[], None],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._socket, self._loop = end, loop
        self._received, self._lost = received, lost
        self._sending = threading.Lock()
        self._n_ended = 0
        self._queue: SimpleQueue[Encoded | None] = SimpleQueue()
        self._unread = b""
        threading.Thread(target=self._write, name="worker-writer", daemon=True).start()
        if loop is None:
            threading.Thread(target=self._read, name="worker-reader", daemon=True).start()
        else:
            self._chunk = memoryview(bytearray(_READ_BYTES))
            loop.add_reader(end, self._readable)

    def send(self, body: bytes, buffers: Buffers = ()) -> None:
        """Send now; blocks while the other end does not read. A closed connection is ignored."""
        sizes = struct.pack(f"<{len(buffers)}Q", *map(len, buffers)) if buffers else b""
        try:
            with self._sending:
                self._socket.sendall(_HEADER.pack(len(body), len(buffers)) + sizes + body)
                for buffer in buffers:
                    self._socket.sendall(buffer)
        except OSError as error:
            log.debug("a message could not be sent: %s", error)

    def post(self, message: Encoded) -> None:
        """Queue a message for the writer thread; never blocks."""
        self._queue.put(message)

    def close(self) -> None:
        """Close the connection after queued messages were sent."""
        self._queue.put(None)

    def _write(self) -> None:
        while (message := self._queue.get()) is not None:
            self.send(*message)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the readers of both ends
        self._finish()

    def _finish(self) -> None:
        """Close the socket after both the reader and the writer have ended."""
        with self._sending:
            self._n_ended += 1
            if self._n_ended == 2:
                self._socket.close()

    def _end_reading(self) -> None:
        self.close()
        self._finish()
        self._lost()

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError, MemoryError):
            while True:
                n_body, n_buffers = _HEADER.unpack(self._receive(_HEADER.size))
                sizes = struct.unpack(f"<{n_buffers}Q", self._receive(8 * n_buffers))
                self._received(self._receive(n_body), [self._receive(size) for size in sizes])
        self._end_reading()

    def _receive(self, size: int) -> bytes:
        """Return the next `size` bytes, received in place."""
        made, view = new_bytes(size)
        while view:
            n = self._socket.recv_into(view)
            if not n:
                raise EOFError
            view = view[n:]
        return made

    def _readable(self) -> None:
        assert self._loop is not None
        try:
            n = self._socket.recv_into(self._chunk, 0, socket.MSG_DONTWAIT)  # the writer needs a blocking socket
        except BlockingIOError:
            return
        except OSError:
            n = 0
        if not n:
            self._loop.remove_reader(self._socket)
            self._end_reading()
            return
        data, at = self._unread + self._chunk[:n], 0
        while len(data) - at >= _HEADER.size:
            n_body, _ = _HEADER.unpack_from(data, at)
            start = at + _HEADER.size
            if len(data) < start + n_body:
                break
            at = start + n_body
            self._received(data[start:at], ())
        self._unread = data[at:]


class Endpoint(ABC):
    """One end of the connections to the other process: exchanges messages, and calls functions in both directions.

    Created and used on the event loop, except `notify`, `notify_now` and `send_events`, which are thread-safe.
    ``heard_at``: when the last message arrived.
    """

    def __init__(self, ends: Sequence[socket.socket], functions: dict[str, Callable[..., Any]]) -> None:
        """`functions` are what the other end may call by name."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.functions = functions
        functions[CANCEL] = self._cancel_call
        self.heard_at = time.monotonic()
        self._inbox: deque[tuple[bytes, Buffers]] = deque()
        self._scheduled = False
        self._call_numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._answers: dict[int, asyncio.Task[None]] = {}
        self._short = Link(ends[0], self._received, lambda: self._in_loop(self._lost), self._loop)
        self._long = Link(ends[1], self._received, lambda: None)

    @abstractmethod
    def _encode(self, message: object) -> Encoded:
        """Return the pickle of a message. Thread-safe."""

    @abstractmethod
    def _decode(self, body: bytes, buffers: Buffers) -> Any:
        """Return the message of a pickle."""

    @abstractmethod
    def _receive(self, events: dict[int, list[Event]]) -> None:
        """Receive the events of steps by request number."""

    @abstractmethod
    def _lost(self) -> None:
        """Handle the end of the connection."""

    @abstractmethod
    def _invalid(self, error: Exception) -> None:
        """Handle a message that could not be processed."""

    def _in_loop(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(work)

    # ---- sending

    def _post(self, message: Encoded) -> None:
        """Queue an encoded message; never blocks."""
        (self._long if message[1] else self._short).post(message)

    def notify_now(self, function: str, *arguments: object) -> None:
        """Notify in this thread, with a short message; blocks while the other end does not read."""
        self._short.send(*self._encode(Call(0, function, arguments)))

    def send_events(self, batch: list[tuple[int, list[Event]]]) -> None:
        """Send the events of a step in this thread; blocks while the other end does not read."""
        events = step_events(batch)
        if all(type(event) is tuple for _, one in events for event in one):
            self._short.send(pickle.dumps(events, pickle.HIGHEST_PROTOCOL))
        else:
            self._short.send(*self._encode(events))

    def notify(self, function: str, *arguments: object) -> None:
        """Call a function of the other end without waiting for its result; never blocks."""
        self._post(self._encode(Call(0, function, arguments)))

    async def call(self, function: str, *arguments: object) -> Any:
        """Call a function of the other end. Raises what it raises there, and what `fail_calls` was given."""
        number = next(self._call_numbers)
        self._calls[number] = result = self._loop.create_future()
        try:
            self._post(self._encode(Call(number, function, arguments)))
            return await result
        except asyncio.CancelledError:
            self.notify(CANCEL, number)
            raise
        finally:
            del self._calls[number]

    def fail_calls(self, error: LlamapoolError) -> None:
        """Fail all waiting calls."""
        for result in self._calls.values():
            if not result.done():
                result.set_exception(error)

    def disconnect(self) -> None:
        """Close the connections after queued messages were sent."""
        self._short.close()
        self._long.close()

    # ---- receiving

    def _received(self, body: bytes, buffers: Buffers) -> None:
        self._inbox.append((body, buffers))
        if not self._scheduled:  # messages that arrive together are processed together
            self._scheduled = True
            if threading.get_ident() == self._thread:
                self._loop.call_soon(self._handle_inbox)
            else:
                self._in_loop(self._handle_inbox)

    def _handle_inbox(self) -> None:
        self._scheduled = False
        self.heard_at = time.monotonic()
        events: list[StepEvents] = []
        try:
            while self._inbox:
                match self._decode(*self._inbox.popleft()):
                    case Call(number, function, arguments):
                        self._called(number, self.functions[function], arguments)
                    case Reply(number, value, error):
                        self._replied(number, value, error)
                    case message:
                        events.append(message)
            if events:
                self._receive(merged(events))
        except Exception as error:  # noqa: BLE001 - whatever the other process sent
            self._invalid(error)

    def _called(self, number: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if not number:
            function(*arguments)
            return
        self._answers[number] = task = self._loop.create_task(self._answer(number, function(*arguments)))
        task.add_done_callback(lambda _: self._answers.pop(number))

    def _cancel_call(self, number: int) -> None:
        if number in self._answers:
            self._answers[number].cancel()

    async def _answer(self, number: int, result: Awaitable[Any]) -> None:
        try:
            encoded = self._encode(Reply(number, await result))
        except asyncio.CancelledError:
            return
        except BaseException as error:  # without a reply, the caller would wait forever
            if not isinstance(error, CONTAINED):
                log.exception("a call of another process failed; this is a bug, please report it")
            encoded = self._encode(Reply(number, error=portable(error)))
        self._post(encoded)

    def _replied(self, number: int, value: object, error: LlamapoolError | None) -> None:
        waiting = self._calls.get(number)
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(value)
        else:
            waiting.set_exception(error)
