"""The interface between the API dialects and the routes: a parsed request, its generation, and a dialect's conventions.

A `Dialect` parses a body to a `ParsedRequest`, which keeps nothing of the body. For a loaded model, the parsed request
creates a `Generation`: the engine requests and the writer of the reply.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from server.dialects.common import Json
from server.dialects.errors import openai_error_event
from server.engine.request import Adapters, Event, Request
from server.errors import PermissionDenied
from server.media.source import Media, Seen
from server.pool.model import LoadedModel
from server.structured.reasoning_end import ReasoningSwitch

if TYPE_CHECKING:
    from server.dialects.generation import GenerationFields
    from server.dialects.mcp import ToolRounds


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request, as far as its engine requests depend on it.

    ``client`` returns the scheduler's name for an end user, ``cache_scope`` the cache namespace for a salt.
    ``priority``: the most urgent priority that the API key allows, None for any. ``sets_adapters``: whether the key may
    choose LoRA scales. ``log_id``: id of the HTTP request. ``asked_again``, ``arrived_at``: see `Request`. ``verbose``:
    whether replies are verbose by default. ``pin_s``: see `Request`.
    """

    client: Callable[[str], str] = str
    cache_scope: Callable[[str], str] = str
    priority: int | None = None
    sets_adapters: bool = True
    log_id: str = ""
    asked_again: bool = False
    arrived_at: float = 0.0
    verbose: bool = False
    pin_s: float = 0.0

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


NO_CALLER = Caller()


class Writer(ABC):
    """Writes one reply: folds the events of all requests, which are numbered as in `Generation`.

    For a stream, send what `feed` returns for each event, then what `finish` returns. For a whole reply, set
    ``streams`` to false, `feed` each event, then take `body`; writers may then save the work of writing events.
    """

    streams = True

    @abstractmethod
    def feed(self, prompt: int, event: Event) -> list[bytes]:
        """Take one event. Return the server-sent events that follow from it, each one whole."""

    @abstractmethod
    def finish(self) -> list[bytes]:
        """Return the last events of the stream."""

    @abstractmethod
    def body(self) -> Json | list[Json]:
        """Return the whole reply, after every choice has finished."""


@dataclass(frozen=True, slots=True)
class NextRound:
    """The continuation of a reply after tool calls: creates its next generation, with the media that it needs."""

    prepare: Callable[[LoadedModel, Seen, Caller], "Generation"]
    media: Sequence[Media]


@dataclass(frozen=True, slots=True)
class Generation:
    """A parsed request for one model: the engine requests, and the writer of the reply.

    ``reasoning`` ends the reasoning early if the client requests it. ``commit`` stores the finished reply; awaited
    before its end is sent. ``follow_up``: calls server-side tools and generates again. ``error`` and ``ping``: those of
    this stream, if they differ from the dialect's once it has begun. ``convert`` returns what a whole reply is instead
    of the writer's body.
    """

    requests: Sequence[Request]
    writer: Writer
    reasoning: ReasoningSwitch | None = None
    commit: Callable[[], Awaitable[None]] | None = None
    follow_up: "ToolRounds | None" = None
    error: Callable[[int, Json], bytes] | None = None
    ping: Callable[[], bytes] | None = None
    convert: Callable[[Any], Json] | None = None


class ModelRequest(Protocol):
    """A parsed request to a model. ``salt``: the body's cache salt, "" for none; None if the body can have none.

    ``warnings``: fields without effect.
    """

    @property
    def model(self) -> str | None: ...

    @property
    def salt(self) -> str | None: ...

    @property
    def warnings(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest(ABC):
    """A body of a generating endpoint, checked as far as that needs no model.

    ``options``: sampling, limits and delivery. ``warnings``: fields without effect. ``keep_alive_s``: how long the
    model stays loaded afterwards, None as configured.
    """

    options: "GenerationFields"
    media: Sequence[Media] = ()
    warnings: Sequence[str] = ()
    keep_alive_s: float | None = None

    @abstractmethod
    def generation(self, model: LoadedModel, seen: Seen, caller: Caller = NO_CALLER) -> Generation:
        """Return the engine requests and the writer of the reply. Blocking, for a worker thread.

        `seen`: the loaded media. Raises `InvalidRequest`, `PermissionDenied`.
        """

    @property
    def model(self) -> str | None:
        """Return the model that the body names."""
        return self.options.model

    @property
    def salt(self) -> str:
        """Return the body's cache salt, "" for none."""
        return self.options.cache_salt or ""

    async def loaded_media(self) -> Sequence[Media]:
        """Return the media of the prompt, after the work that precedes it."""
        return self.media

    @property
    def is_ready(self) -> bool:
        """Whether `loaded_media` has nothing to wait for."""
        return not self.media


P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Dialect(Generic[P]):
    """One API: how bodies are parsed, and the events of its streams that no writer creates.

    ``parse`` takes the body and raises `InvalidRequest`. ``error`` returns the last event of a failed stream, from a
    status and a body. ``ping``: the keep-alive event.
    """

    parse: Callable[..., P]
    error: Callable[[int, Json], bytes] = openai_error_event
    ping: bytes = b":\n\n"
    media_type: str = "text/event-stream"
