"""Messages between the server and a worker process, and the connection that carries them.

One socket carries pickles of the dataclasses below. The largest are images and batches of embeddings: the worker itself
reads and writes slot states, which have up to gigabytes.

- Dataclasses are pickled as their fields.
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
import select
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
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
from server.errors import CONTAINED, InternalError, LlamapoolError
from server.media.bitmap import Bitmap, BitmapKind
from server.pool.memory import Footprint
from server.pool.protocols import ModelInfo
from server.structured.reasoning_end import ReasoningSwitch
from server.vocab import Vocab

_READ_BYTES = 1 << 18
CANCEL = "cancel_call"
"""A function of both ends: the caller no longer waits for a `Reply`."""
_HEADER = struct.Struct("<Q")  # bytes of the pickle
_OURS = ("server.engine.", "server.pool.", "server.media.", "server.structured.")
_ACTIVE = ("server.pool.worker.parent", "server.pool.worker.proxies", "server.pool.scheduler", "server.pool.loading")
"""Modules whose dataclasses do something when they are created."""
_STANDARD = {("builtins", "set"), ("builtins", "range"), ("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")}
log = logging.getLogger(__name__)

T = TypeVar("T")


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
        self._file = io.BytesIO()
        super().__init__(self._file, pickle.HIGHEST_PROTOCOL)
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

    def encode(self, message: object) -> bytes:
        """Return the pickle of `message`. Call it once."""
        self.dump(message)
        return self._file.getvalue()


class Decoder(pickle.Unpickler):
    """Unpickles a message. In the worker, `resolve` returns the local object for a reference. The server gives none,
    and accepts only classes that a worker sends; otherwise `load` raises `pickle.UnpicklingError`.
    """

    def __init__(self, body: bytes, resolve: Callable[[str, Any], object] | None = None) -> None:
        super().__init__(io.BytesIO(body))
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


# ---- the connection


class Link:
    """The connection to the other process. Its methods are thread-safe. The event loop calls `received` with the
    messages that have arrived together, and `lost`.

    A message is its length and its pickle. `multiprocessing.connection` would do the same; its Python code doubled the
    step thread's CPU time per message. The event loop reads, because a thread would wait for the interpreter's lock for
    each message: with 16 streams, the server took twice the CPU time per token.
    """

    def __init__(
        self, end: socket.socket, received: Callable[[Sequence[bytes]], None], lost: Callable[[], None]
    ) -> None:
        self._socket, self._loop = end, asyncio.get_running_loop()
        self._received, self._lost = received, lost
        end.setblocking(False)  # uvloop does so, too
        self._sending, self._writable = threading.Lock(), select.poll()
        self._writable.register(end, select.POLLOUT)
        self._n_ended = 0
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._chunk = memoryview(bytearray(_READ_BYTES))
        self._unread = bytearray()
        threading.Thread(target=self._write, name="worker-writer", daemon=True).start()
        self._loop.add_reader(end, self._read)

    def send(self, message: bytes) -> None:
        """Send now; blocks while the other end does not read. A closed connection is ignored."""
        unsent = memoryview(_HEADER.pack(len(message)) + message)
        try:
            with self._sending:
                while unsent:
                    try:
                        unsent = unsent[self._socket.send(unsent) :]
                    except BlockingIOError:
                        self._writable.poll()
        except OSError as error:
            log.debug("a message could not be sent: %s", error)

    def post(self, message: bytes) -> None:
        """Queue a message for the writer thread; never blocks."""
        self._queue.put(message)

    def close(self) -> None:
        """Close the connection after queued messages were sent."""
        self._queue.put(None)

    def _write(self) -> None:
        while (message := self._queue.get()) is not None:
            self.send(message)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the reading of both ends
        self._finish()

    def _finish(self) -> None:
        """Close the socket after both reading and writing have ended."""
        with self._sending:
            self._n_ended += 1
            if self._n_ended == 2:
                self._socket.close()

    def _read(self) -> None:
        try:
            n = self._socket.recv_into(self._chunk)
        except BlockingIOError:
            return
        except OSError:
            n = 0
        if not n:
            self._loop.remove_reader(self._socket)
            self.close()
            self._finish()
            self._lost()
            return
        self._unread += self._chunk[:n]
        if messages := self._whole_messages():
            self._received(messages)

    def _whole_messages(self) -> list[bytes]:
        """Take the messages that have arrived to their end."""
        found: list[bytes] = []
        end, view = 0, memoryview(self._unread)
        with view:
            while len(view) - end >= _HEADER.size:
                start = end + _HEADER.size
                (size,) = _HEADER.unpack_from(view, end)
                if len(view) < start + size:
                    break
                end = start + size
                found.append(bytes(view[start:end]))
        del self._unread[:end]
        return found


class Endpoint(ABC):
    """One end of the connection to the other process: exchanges messages, and calls functions in both directions.

    Created and used on the event loop, except `notify`, `notify_now` and `send_events`, which are thread-safe.
    ``heard_at``: when the last message arrived.
    """

    def __init__(self, end: socket.socket, functions: dict[str, Callable[..., Any]]) -> None:
        """`functions` are what the other end may call by name."""
        self._loop = asyncio.get_running_loop()
        self.functions = functions
        functions[CANCEL] = self._cancel_call
        self.heard_at = time.monotonic()
        self._call_numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._answers: dict[int, asyncio.Task[None]] = {}
        self._link = Link(end, self._received, self._lost)

    @abstractmethod
    def _encode(self, message: object) -> bytes:
        """Return the pickle of a message. Thread-safe."""

    @abstractmethod
    def _decode(self, body: bytes) -> Any:
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

    # ---- sending

    def notify_now(self, function: str, *arguments: object) -> None:
        """Notify in this thread; blocks while the other end does not read."""
        self._link.send(self._encode(Call(0, function, arguments)))

    def send_events(self, batch: list[tuple[int, list[Event]]]) -> None:
        """Send the events of a step in this thread; blocks while the other end does not read."""
        events = step_events(batch)
        if all(type(event) is tuple for _, one in events for event in one):
            self._link.send(pickle.dumps(events, pickle.HIGHEST_PROTOCOL))
        else:
            self._link.send(self._encode(events))

    def notify(self, function: str, *arguments: object) -> None:
        """Call a function of the other end without waiting for its result; never blocks."""
        self._link.post(self._encode(Call(0, function, arguments)))

    async def call(self, function: str, *arguments: object) -> Any:
        """Call a function of the other end. Raises what it raises there, and what `fail_calls` was given."""
        number = next(self._call_numbers)
        self._calls[number] = result = self._loop.create_future()
        try:
            self._link.post(self._encode(Call(number, function, arguments)))
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
        """Close the connection after queued messages were sent."""
        self._link.close()

    # ---- receiving

    def _received(self, messages: Sequence[bytes]) -> None:
        self.heard_at = time.monotonic()
        events: list[StepEvents] = []
        try:
            for body in messages:
                match self._decode(body):
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
        self._link.post(encoded)

    def _replied(self, number: int, value: object, error: LlamapoolError | None) -> None:
        waiting = self._calls.get(number)
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(value)
        else:
            waiting.set_exception(error)
