"""The interface between the API dialects and the routes: a generation, and a dialect's conventions.

A `Dialect` parses a body to a `ParsedRequest` (`server.dialects.generation`), which keeps nothing of the body. For a
loaded model, the parsed request creates a `Generation`: the engine requests and the writer of the reply.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from server.dialects.common import Json
from server.dialects.errors import openai_error_event
from server.engine.request import Adapters, Event, Request
from server.errors import PermissionDenied
from server.media.source import LoadedMedia, Media
from server.pool.model import LoadedModel
from server.structured.reasoning_end import ReasoningSwitch


@dataclass(frozen=True, slots=True)
class Context:
    """What a parsed request gets its engine requests from: the loaded model, the loaded media, and its client."""

    model: LoadedModel
    media: LoadedMedia = field(default_factory=dict)
    client: str = ""  # the scheduler's name of it
    cache_scope: str = ""  # its cache namespace
    priority: int | None = None  # the most urgent priority that the API key allows, None for any
    sets_adapters: bool = True  # whether the key may choose LoRA scales
    log_id: str = ""  # of the HTTP request
    arrived_at: float = 0.0  # see `Request`
    verbose: bool = False  # whether replies are verbose by default
    pin_s: float = 0.0  # see `Request`

    def allowed_priority(self, wanted: int) -> int:
        """Return the priority of a request; one that names none gets the key's. Raises `PermissionDenied`."""
        if self.priority is None or wanted >= self.priority:
            return wanted
        if wanted < 0:
            raise PermissionDenied(f"priority: this API key's requests may have {self.priority} or more")
        return self.priority

    def allowed_adapters(self, wanted: Adapters | None) -> Adapters | None:
        """Return the LoRA scales of a request. Raises `PermissionDenied` if the key may not choose them."""
        if wanted is not None and not self.sets_adapters:
            raise PermissionDenied(
                "lora: this API key's requests get the adapters that are set for all: it lacks the scope 'lora'"
            )
        return wanted


class Writer(ABC):
    """Writes one reply: folds the events of all requests, which are numbered as in `Generation`.

    For a stream, send what `feed` returns for each event, then what `finish` returns. For a whole reply, set
    ``streams`` to false, `feed` each event, then take `body`; writers may then save the work of writing events.

    A reply may have several rounds of generation. After the events of each, take what `act` yields, then start `next`.
    `commit` follows the last round. ``has_acted``: whether a tool was called, so that the reply can't be begun again.
    """

    streams = True
    has_acted = False

    @abstractmethod
    def feed(self, prompt: int, event: Event) -> list[bytes]:
        """Take one event. Return the server-sent events that follow from it, each one whole."""

    async def act(self) -> AsyncGenerator[bytes, None]:
        """Call the server's tools that the round requests; yield the resulting events."""
        for event in list[bytes]():  # none
            yield event

    def next(self) -> tuple["Generate", Sequence[Media]] | None:
        """Return what creates the next round, and its media; None if the reply is complete."""
        return None

    async def commit(self) -> None:
        """Store the finished reply, before its end is sent."""
        return

    def finish(self) -> list[bytes]:
        """Return the last events of the stream; none if each choice has its own."""
        return []

    @abstractmethod
    def body(self) -> Json | list[Json]:
        """Return the whole reply, after every choice has finished."""

    def failure(self, status: int, body: Json) -> bytes:
        """Return the end of a stream that fails, b"" if it is the dialect's. `status`, `body`: of the error."""
        return b""

    def ping(self) -> bytes:
        """Return a keep-alive event, b"" if it is the dialect's."""
        return b""


@dataclass(frozen=True, slots=True)
class Generation:
    """A parsed request for one model: the engine requests, and the writer of the reply."""

    requests: Sequence[Request]
    writer: Writer
    reasoning: ReasoningSwitch | None = None  # ends the reasoning early if the client requests it


Generate = Callable[[Context], Generation]
"""Creates the engine requests of a parsed request for a model; blocking."""
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Dialect(Generic[P]):
    """One API: how bodies are parsed, and the events of its streams that no writer creates."""

    parse: Callable[..., P]  # takes the body and raises `InvalidRequest`
    error: Callable[[int, Json], bytes] = openai_error_event  # a failed stream's last event, of a status and a body
    ping: bytes = b":\n\n"  # the keep-alive event
    media_type: str = "text/event-stream"
