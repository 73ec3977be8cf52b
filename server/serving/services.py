"""The services that routes use: one frozen value on ``app.state.services``."""

import asyncio
from collections.abc import Callable, Mapping
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
    """Built once by `server.app`."""

    pool: Pool
    options: HttpOptions
    prepare: Executor  # tokenization and template rendering
    prepare_long: Executor  # of long texts, which take seconds each, so that they do not delay others
    reading: Executor  # parses long request bodies one at a time, because parsing holds the GIL
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
    slot_files: SavedFiles | None = None  # where slots are saved; None = nowhere
    running: dict[str, RunningCompletion] = field(default_factory=dict)  # by the id of their replies
    preparing: ConcurrencyLimiter = field(default_factory=ConcurrencyLimiter)
    compiling: CompileTurns = field(default_factory=CompileTurns)  # preparation again, with a grammar for the sandbox
    keys: KeyStore = field(default_factory=KeyStore)
    rates: Rates = field(default_factory=Rates)
    streams: KeptStreams = field(default_factory=KeptStreams)
    sockets: set[asyncio.Task[None]] = field(default_factory=set)  # of open WebSockets
    leaving: asyncio.Event = field(default_factory=asyncio.Event)  # set when the server is to stop soon
    draining: asyncio.Event = field(default_factory=asyncio.Event)  # set when the server begins to stop

    def store_of(self, kind: Kind) -> Objects:
        return self.batches.state if kind == "batch" else self.state

    @property
    def cache_mode(self) -> Mode:
        """Within which bounds requests share what was computed."""
        return self.options.cache_scope or ("key" if self.keys.several else "server")


def services(request: Request) -> Services:
    """Return the application's services, with the models that the request's key may use."""
    found: Services = request.app.state.services
    caller = caller_of(request)
    if caller is None or not caller.models:
        return found
    return replace(found, pool=found.pool.seen_by(caller.may_use))


def target_of(request: Request) -> Target:
    found: Target = request.scope[TARGET]
    return found


def caller_of(request: Request) -> Key | None:
    """Return the client's key; None for a request without one to an endpoint that needs none."""
    return admission_of(request.scope).caller


def sees_files(request: Request) -> bool:
    """Return whether the client may see paths of model files and load flags; others see file names only."""
    return admission_of(request.scope).manages


def key_of(request: Request) -> Key:
    """Return the client's key, `ANYBODY` for a request without one."""
    return caller_of(request) or ANYBODY


def owner_of(request: Request) -> str:
    """Return the owner of the stored objects that a request may reach: its key's owner, which stays the same when the
    key is rotated. All clients of a server without keys are one owner, ""."""
    return key_of(request).owner


def stream_owner(request: Request) -> str:
    """Return the owner of a request's resumable streams. Clients of a server without keys name their streams
    themselves, and are distinguished by the key that they send anyway."""
    return owner_of(request) or hash_of(given_key(dict(request.scope["headers"])))


def cache_owner(request: Request) -> str:
    """Return the owner of the cells that a request computes; "" = all clients."""
    return "" if services(request).cache_mode == "server" else owner_of(request)


async def lease_for(request: Request, name: str | None, task: Task = "generate") -> Lease:
    """Return a lease of a model, which is loaded or woken first. The wait counts at the `ConcurrencyLimiter`.

    Raises as `Pool.acquire`, `QueueFull`, and `ClientDisconnect`. Raises `PermissionDenied` for a model that is not
    loaded, if the key may neither use models nor load them: to load one can evict another.
    """
    used, caller = services(request), caller_of(request)
    if caller is not None and {"infer", "models"}.isdisjoint(caller.scopes):
        if not used.pool.serves(name, task):
            raise PermissionDenied("the model is not loaded, and this API key lacks the scope 'infer' to load it")
        return await used.pool.acquire(name, autoload=False, task=task)
    with used.preparing.entered():
        work = used.pool.acquire(name, autoload=wants_load(request), task=task)
        return await while_connected(request, work)


async def facts_of(request: Request, name: str | None) -> tuple[ModelState, ModelFacts]:
    """Return a model and its facts. It is loaded if these are not known yet. Raises as `lease_for`."""
    pool = services(request).pool
    state = pool.state(name)
    if state.facts is None:
        with await lease_for(request, state.spec.id):
            state = pool.state(state.spec.id)
    assert state.facts is not None, "a leased model has facts"
    return state, state.facts


def wants_load(request: Request) -> bool | None:
    """Return whether a request may load a model: ``autoload`` of its query; None = as the server was started.

    Source: tools/server/server-models.cpp, is_autoload.
    """
    if b"autoload" not in request.scope["query_string"]:
        return None
    said = request.query_params.get("autoload")
    return said in ("true", "1") if said else None


def wants_anthropic(request: Request) -> bool:
    """Return whether the client is one of Anthropic's API at a path that OpenAI's clients use, too."""
    return "anthropic-version" in request.headers


def model_name(body: Mapping[str, object], field: str = "model") -> str | None:
    """Return the model that a body names in this field, None if it names none. Raises `InvalidRequest`."""
    name = body.get(field)
    if name is not None and not isinstance(name, str):
        raise invalid(field, "must be a string")
    return name or None


def whole_number(request: Request, name: str, default: int) -> int:
    """Return a number of the query. Raises `InvalidRequest`."""
    given = request.query_params.get(name, "")
    if given and not (given.isascii() and given.isdigit() and len(given) < 20):
        raise invalid(name, "must be a whole number of 0 or more")
    return int(given) if given else default
