"""The interface between API dialects and routes.

A `Dialect` parses a body to a `ParsedRequest` (`server.dialects.generation`), which does not keep the body. For a
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
    """The model, the media and the client for which a parsed request creates engine requests."""

    model: LoadedModel
    media: LoadedMedia = field(default_factory=dict)
    client: str = ""  # the client's name for fair scheduling
    cache_scope: str = ""  # the cache namespace
    priority: int | None = None  # the most urgent priority that the API key allows, None for any
    sets_adapters: bool = True  # whether the API key may choose LoRA scales
    names_adapter: bool = False  # whether the requested name is that of a LoRA adapter, and of no model
    log_id: str = ""  # the id of the HTTP request in the log
    arrived_at: float = 0.0  # see `Request`
    verbose: bool = False  # whether replies are verbose by default
    pin_s: float = 0.0  # see `Request`

    def allowed_priority(self, priority: int) -> int:
        """Return the priority of a request; one from 0 that is too urgent becomes the most urgent one allowed.

        Raises `PermissionDenied` for a negative one.
        """
        if self.priority is None or priority >= self.priority:
            return priority
        if priority < 0:
            raise PermissionDenied(f"priority: this API key's requests may have {self.priority} or more")
        return self.priority

    def allowed_adapters(self, adapters: Adapters | None) -> Adapters | None:
        """Return the requested LoRA scales. Raises `PermissionDenied` if the API key may not choose them."""
        if adapters is not None and not self.sets_adapters:
            raise PermissionDenied(
                "lora: this API key's requests get the adapters that are set for all: it lacks the scope 'lora'"
            )
        return adapters


class Writer(ABC):
    """Writes one reply from the events of its engine requests, which are numbered as in `Generation`.

    For a stream, send the result of `feed` for each event, then the result of `finish`. For a whole reply, set
    ``streams`` to false, `feed` each event, then send `body`.

    A reply may have several rounds of generation. After the events of a round, send the events that `act` yields, then
    start `next`. `commit` follows the last round. ``has_acted``: a tool was called, so the request can't be retried.
    """

    streams = True
    has_acted = False

    @abstractmethod
    def feed(self, prompt: int, event: Event) -> list[bytes]:
        """Process an engine event. Return the resulting complete events of the stream."""

    async def act(self) -> AsyncGenerator[bytes, None]:
        """Call the server's tools that the model called in the round; yield the resulting events."""
        for event in list[bytes]():  # none
            yield event

    def next(self) -> tuple["Generate", Sequence[Media]] | None:
        """Return the function that creates the next round, and its media; None if the reply is complete."""
        return None

    async def commit(self) -> None:
        """Store the complete reply, before its last event is sent."""
        return

    def finish(self) -> list[bytes]:
        """Return the last events of the stream."""
        return []

    @abstractmethod
    def body(self) -> Json | list[Json]:
        """Return the whole reply. Only valid after every choice has finished."""

    def failure(self, status: int, body: Json) -> bytes:
        """Return the end of a failed stream, b"" for the dialect's. `status`, `body`: the error."""
        return b""

    def ping(self) -> bytes:
        """Return a keep-alive event, b"" for the dialect's."""
        return b""


@dataclass(frozen=True, slots=True)
class Generation:
    """The engine requests of a parsed request, and the writer of the reply."""

    requests: Sequence[Request]
    writer: Writer
    reasoning: ReasoningSwitch | None = None  # lets the client end the reasoning early


Generate = Callable[[Context], Generation]
"""Creates the engine requests of a parsed request for a model; blocking."""
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Dialect(Generic[P]):
    """One API: the parser of bodies, and the events of streams that do not depend on a writer."""

    parse: Callable[..., P]  # takes the body and raises `InvalidRequest`
    error: Callable[[int, Json], bytes] = openai_error_event  # the last event of a failed stream
    ping: bytes = b":\n\n"  # the keep-alive event
    media_type: str = "text/event-stream"
