"""The services that routes use (one frozen value on ``app.state.services``), and the client of a request."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from fastapi import Request

from server.dialects.reasoning_cipher import ReasoningCipher
from server.engine.cache.scope import Mode
from server.errors import PermissionDenied, invalid
from server.mcp.servers import McpServers
from server.media.loader import MediaLoader
from server.metrics.exposition import Metrics
from server.pool.model import Lease
from server.pool.pool import Pool
from server.pool.saved.store import SavedFiles
from server.pool.spec import Task
from server.pool.state import ModelFacts, ModelState
from server.sandbox.client_threads import ClientThreads
from server.sandbox.memory import MemoryWatch
from server.serving.batch_runner import BatchRunner
from server.state.objects import Kind, Objects
from server.state.usage import UsageLedger
from server.structured.reasoning_end import ReasoningSwitch
from server.transport.admission import CompileTurns, ConcurrencyLimiter, admission_of
from server.transport.endpoints import TARGET, Target
from server.transport.keys import ANYBODY, Key, KeyStore, given_key, hash_of
from server.transport.limits import Rates
from server.transport.options import HttpOptions
from server.transport.resumable import KeptStream, KeptStreams
from server.transport.sse import while_connected
from server.web.live import Live
from server.web.recent import Bodies, RecentLog
from server.web.tools.catalogue import PageTools


@dataclass(frozen=True, slots=True)
class RunningCompletion:
    """A completion in progress. ``model``: the model's id; ``owner``: see `Key.owner`."""

    model: str
    reasoning: ReasoningSwitch | None
    cancel: Callable[[], None]
    owner: str


@dataclass(frozen=True, slots=True)
class Services:
    """The application's services, built once by `server.app`."""

    pool: Pool
    options: HttpOptions
    prepare: ClientThreads  # tokenization and template rendering
    prepare_long: Executor  # the same for long texts, which take seconds and must not delay others
    reading: Executor  # parses long request bodies, one at a time because parsing holds the GIL
    metrics: Metrics
    media_loader: MediaLoader
    live: Live
    tools: PageTools
    mcp: McpServers
    log: RecentLog
    bodies: Bodies
    memory: MemoryWatch
    state: Objects  # stored responses, conversations and files
    usage: UsageLedger
    batches: BatchRunner
    background: dict[tuple[str, str], KeptStream]  # running background responses by owner and id
    reasoning: ReasoningCipher  # encrypts reasoning that clients keep
    slot_files: SavedFiles | None = None  # saved slots; None without ``slot_save_path``
    unsettled: dict[tuple[str, str], Callable[[], Awaitable[None]]] = field(default_factory=dict)
    """Store the ends of background responses, by owner and id, which the state did not accept."""
    running: dict[str, RunningCompletion] = field(default_factory=dict)  # by id of the reply
    preparing: ConcurrencyLimiter = field(default_factory=ConcurrencyLimiter)
    compiling: CompileTurns = field(default_factory=CompileTurns)  # prepares requests with a new grammar
    keys: KeyStore = field(default_factory=KeyStore)
    rates: Rates = field(default_factory=Rates)
    streams: KeptStreams = field(default_factory=KeptStreams)
    sockets: set[asyncio.Task[None]] = field(default_factory=set)  # of open WebSockets
    leaving: asyncio.Event = field(default_factory=asyncio.Event)  # set when the server will stop soon
    draining: asyncio.Event = field(default_factory=asyncio.Event)  # set when the server starts to stop

    def store_of(self, kind: Kind) -> Objects:
        return self.batches.state if kind == "batch" else self.state

    @property
    def cache_mode(self) -> Mode:
        """How requests are divided into cache namespaces."""
        return self.options.cache_scope or ("key" if self.keys.several else "server")


def services(request: Request) -> Services:
    """Return the application's services, with the models that the request's key may use."""
    app: Services = request.app.state.services
    caller = caller_of(request)
    if caller is None or not caller.models:
        return app
    return replace(app, pool=app.pool.seen_by(caller.may_use))


def target_of(request: Request) -> Target:
    target: Target = request.scope[TARGET]
    return target


def caller_of(request: Request) -> Key | None:
    """Return the client's key, or None for a request without a key to an endpoint that needs none."""
    return admission_of(request.scope).caller


def sees_files(request: Request) -> bool:
    """Return whether the client may see paths of model files and load flags. Others see only file names."""
    return admission_of(request.scope).manages


def key_of(request: Request) -> Key:
    """Return the client's key, or `ANYBODY` for a request without a key."""
    return caller_of(request) or ANYBODY


def owner_of(request: Request) -> str:
    """Return the owner of the stored objects that a request may use: its key's owner, which survives key rotation.

    All clients of a server without keys are one owner, "".
    """
    return key_of(request).owner


def stream_owner(request: Request) -> str:
    """Return the owner of a request's resumable streams.

    Stream ids are chosen by clients. On a server without keys, an unchecked key that a client sends sets its owner.
    """
    return owner_of(request) or hash_of(given_key(dict(request.scope["headers"])))


def cache_owner(request: Request) -> str:
    """Return the owner of the KV cells that a request computes, "" if all clients share them."""
    return "" if services(request).cache_mode == "server" else owner_of(request)


async def lease_for(request: Request, name: str | None, task: Task = "generate") -> Lease:
    """Load or wake a model if necessary, and return a lease of it. The wait counts against ``max_preparing``.

    Raises `QueueFull`, `ClientDisconnect`, and the errors of `Pool.acquire`. Raises `PermissionDenied` if the model is
    not loaded and the key has neither scope ``infer`` nor ``models``, because a load can evict other models.
    """
    app, caller = services(request), caller_of(request)
    if caller is not None and {"infer", "models"}.isdisjoint(caller.scopes):
        if not app.pool.serves(name, task):
            raise PermissionDenied("the model is not loaded, and this API key lacks the scope 'infer' to load it")
        return await app.pool.acquire(name, autoload=False, task=task)
    with app.preparing.entered():
        acquiring = app.pool.acquire(name, autoload=wants_load(request), task=task)
        return await while_connected(request, acquiring)


async def facts_of(request: Request, name: str | None) -> tuple[ModelState, ModelFacts]:
    """Return a model and its facts. Loads the model if they are not known yet. Raises the errors of `lease_for`."""
    pool = services(request).pool
    state = pool.state(name)
    if state.facts is None:
        with await lease_for(request, state.spec.id):
            state = pool.state(state.spec.id)
    assert state.facts is not None, "a leased model has facts"
    return state, state.facts


def wants_load(request: Request) -> bool | None:
    """Return the query's ``autoload``: whether the request may load a model. None: the server's option decides.

    Source: tools/server/server-models.cpp, is_autoload.
    """
    if b"autoload" not in request.scope["query_string"]:
        return None
    value = request.query_params.get("autoload")
    return value in ("true", "1") if value else None


def wants_anthropic(request: Request) -> bool:
    """Return whether the client uses Anthropic's API. For paths that OpenAI's clients use as well."""
    return "anthropic-version" in request.headers


def model_name(body: Mapping[str, object], field: str = "model") -> str | None:
    """Return the name of a model in this field of a body, or None. Raises `InvalidRequest`."""
    name = body.get(field)
    if name is not None and not isinstance(name, str):
        raise invalid(field, "must be a string")
    return name or None


def whole_number(request: Request, name: str, default: int) -> int:
    """Return a whole number of the query. Raises `InvalidRequest`."""
    text = request.query_params.get(name, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 20):
        raise invalid(name, "must be a whole number of 0 or more")
    return int(text) if text else default
