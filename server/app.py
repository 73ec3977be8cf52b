"""The composition root: builds all parts and runs their lifespan. ``uvicorn server.app:app`` starts here.

The path of a request: `transport.middleware` (keys, CORS, log), `routes`, `dialects` (body to conversation), `serving`
with `pool` (a lease), `chat` (to a prompt), `engine`, `chat.assembler` (events to items), `dialects` (items to a
reply), `transport.sse` or one JSON body.
"""

import asyncio
import logging
import multiprocessing
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import fields, replace
from functools import partial, reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any

import anyio
from fastapi import FastAPI
from starlette.types import ASGIApp

from server import __version__, logs
from server.dialects.fields import build_validators
from server.dialects.reasoning_cipher import ReasoningCipher
from server.errors import AuthenticationFailed, ConfigError, Unavailable
from server.mcp.config import ANY_LABEL, McpRules, named, read_servers
from server.mcp.servers import McpServers
from server.media.decode import DecodeOptions, Decoder
from server.media.document import DocumentLimits
from server.media.hosts import AllowedHosts
from server.media.loader import MediaLoader
from server.metrics.exposition import Metrics
from server.metrics.gpu import GpuCollector, gpu_collector
from server.model_pool import ModelPool, open_pool
from server.options.server import VERBOSITY_DETAILED, ServerSettings
from server.options.values import ANYWHERE
from server.pool.entry import log_failure
from server.pool.events import StatusChanged, Subscription
from server.pool.protocols import Loader
from server.pool.saved.store import SavedFiles, SlotFiles, UrlFiles
from server.reload import Reload
from server.routes import Dispatch, include_routes
from server.sandbox import seccomp
from server.sandbox.client_threads import ClientThreads
from server.sandbox.memory import MemoryWatch
from server.sandbox.process import Process
from server.serving.background import settle_interrupted
from server.serving.batch_runner import BatchRunner
from server.serving.services import Services
from server.settings import Settings, check_files, load_settings, slot_secret
from server.startup_banner import show_banner, show_load_progress
from server.state.batches import BatchObjects
from server.state.database import open_database
from server.state.objects import Json, Objects
from server.state.reasoning_keys import reasoning_secrets
from server.state.redis import SCHEMES, Redis
from server.state.redis_objects import RedisObjects
from server.state.usage import DatabaseUsage, RedisUsage, UsageLedger
from server.structured.grammar.sandbox import Sandbox
from server.telemetry.record import Record
from server.transport.admission import ConcurrencyLimiter
from server.transport.internal import InternalReply, failed, post_json
from server.transport.limits import RateLimited, Rates
from server.transport.middleware import Middleware
from server.transport.options import MAX_CONNECTIONS, MIB, HttpOptions
from server.transport.resumable import KeptStreams
from server.transport.server import StopSignals, on_hangup
from server.uvicorn_config import check_certificate, configure
from server.web.files import page_of
from server.web.live import SAMPLE_S, History, Live
from server.web.recent import Bodies, RecentLog
from server.web.tools.catalogue import PageTools

if TYPE_CHECKING:  # of extras
    from server.telemetry.kv_events import KvEvents
    from server.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)

CONFIG_ERROR_STATUS = 2
WATCHDOG_INTERVAL_S = 5.0
END_RETRY_S = 2.0  # a task that still runs after a cancellation is cancelled again
MEMORY_WATCH_S = 0.5  # between two checks a sandbox may allocate some 100 MB
EXPIRY_INTERVAL_S = 3600.0
IMAGE_DECODER = "server.llama.image_decoder:answerer"  # a name, because only other processes import it
PREPARE_THREADS = "prepare"  # prefix of their names


def create_app(
    settings: Settings,
    *,
    loader: Loader | None = None,
    addresses: Sequence[str] = (),
    reread: Callable[[], Settings] | None = None,
    in_process: Callable[[], Loader] | None = None,
    sandbox: Sandbox | None = None,
    models: ModelPool | None = None,
    events: "KvEvents | None" = None,
    tracing: "Tracing | None" = None,
) -> FastAPI:
    """Return the application. It loads and serves nothing before its lifespan starts.

    `models` is a pool that the caller has opened, and perhaps started; without it, a pool is opened. `events` and
    `tracing` are the publisher of KV cache events and the exporter of traces if the caller has opened them. Tests
    replace the native library by `loader`, the loader of isolated models by `in_process`, and the compiler of grammars
    by `sandbox`. `reread` returns the current settings. `addresses` are shown in the startup banner. Raises
    `ConfigError`.
    """
    server = settings.server
    if models is None:
        models = open_pool(settings, loader=loader, reread=reread, in_process=in_process, sandbox=sandbox)
    pool, sandbox, renderer = models.pool, models.sandbox, models.renderer
    reload = Reload(settings, pool, reread)
    keys, media_loader = reload.keys, media_loader_of(server)

    def at_work() -> list[Process]:
        """Return the processes that are working for requests."""
        return [each for group in (sandbox, media_loader, renderer) if group is not None for each in group.at_work]

    redis, state, batch_state = state_of(server)
    usage = UsageLedger(DatabaseUsage(batch_state.database) if redis is None else RedisUsage(redis))

    async def call(key_name: str, path: str, body: bytes) -> InternalReply:
        """Send a request of a batch to this application on behalf of the key that started the batch."""
        key = keys.named(key_name)
        if key is None:
            return failed(AuthenticationFailed("the API key that started this batch is no longer valid"))
        try:
            services.rates.check_budgets(key)
        except RateLimited as error:
            return failed(error)
        return await post_json(app, {}, server.api_prefix + path, body, key)

    def n_slots() -> int:
        """Return the slots of all loaded models."""
        return sum(each.loaded.n_slots for each in pool.states() if each.loaded is not None)

    def may_run(batch: Json) -> bool:
        """Return whether this server has the key and the models of a batch."""
        return keys.named(batch["key_name"]) is not None and all(map(pool.knows, batch["models"]))

    # Few threads tokenize and render, since they share the GIL with the step threads. One more than a client may use.
    n_threads = server.threads_http if server.threads_http > 0 else min(4, os.cpu_count() or 1)
    gpus, mcp = gpu_collector() if server.metrics else None, mcp_of(server)
    metrics = Metrics(pool.states, spent=usage.all_spent, gpus=gpus)
    options = http_options(server)
    services = Services(
        pool=pool,
        live=Live(pool.states, History(pool.states, metrics.ledger)),
        options=options,
        tools=PageTools(server.enabled_tools, mcp),
        mcp=mcp,
        log=RecentLog(),
        bodies=Bodies(on=server.log_bodies),
        prepare=ClientThreads(n_threads + 1, n_threads, PREPARE_THREADS),
        prepare_long=ThreadPoolExecutor(1, thread_name_prefix=f"{PREPARE_THREADS}-long"),
        reading=ThreadPoolExecutor(1, thread_name_prefix=f"{PREPARE_THREADS}-body"),
        metrics=metrics,
        media_loader=media_loader,
        memory=MemoryWatch(server.memory_reserve * MIB, at_work),
        keys=keys,
        preparing=ConcurrencyLimiter(server.max_preparing),
        slot_files=slot_files_of(server),
        state=state,
        usage=usage,
        rates=Rates(spent=usage.spent, redis=redis),
        streams=KeptStreams(redis),
        batches=BatchRunner(batch_state, state, call, n_slots, may_run, options.keep_s),
        background={},
        reasoning=ReasoningCipher(reasoning_secrets(server.reasoning_key_file, batch_state.database.path)),
    )
    tracing = tracing or tracing_of(server)
    events = events or kv_events_of(server)  # the last thing that may fail: it binds sockets
    app = FastAPI(
        title="Llamapool",
        version=__version__,
        openapi_url=None,  # `routes.openapi` serves it and its documentation page
        redirect_slashes=False,  # as in llama-server, a path with another slash is another path
        telemetry={"tracing": False, "metrics": False, "logs": False},  # `telemetry.tracing` has the server's own
        lifespan=lifespan_of(services, server, models, addresses, redis, gpus, reload, events, tracing),
    )
    app.state.services, app.state.events = services, events
    include_routes(app)
    page = page_of(ui=server.ui, folder=server.path, connect=server.ui_connect)

    def ended(record: Record) -> None:
        services.metrics.ended(record)
        if tracing is not None:
            tracing.ended(record)

    served: ASGIApp = Middleware(
        services.bodies.around(Dispatch(app.router, page)),
        services.options,
        services.draining,
        ended,
        is_page=page.has,
        keys=keys,
        rates=services.rates,
    )

    def stack() -> ASGIApp:
        """Replace FastAPI's stack, which wraps each message of a reply five times. User middleware is kept."""
        return reduce(
            lambda wrapped, each: each.cls(wrapped, *each.args, **each.kwargs), app.user_middleware[::-1], served
        )

    app.build_middleware_stack = stack  # type: ignore[method-assign]
    return app


def check_parts(server: ServerSettings) -> None:
    """Raise the ConfigError of a part that could not start with these settings. Opens no address and no state."""
    logs.check_log_files(server)
    slot_files_of(server)
    mcp_of(server)
    if server.reasoning_key_file is not None:
        reasoning_secrets(server.reasoning_key_file, None)
    for option, extra, module in (("otel", "otel", "tracing"), ("kv_events", "events", "kv_events")):
        if getattr(server, option):
            with _needs_extra(option, extra):
                import_module(f"server.telemetry.{module}")


def state_of(server: ServerSettings) -> tuple[Redis | None, Objects, BatchObjects]:
    """Return the Redis that replicas share, if any, the stored objects, and the objects of batches.

    With Redis, batches stay in the default state file. Raises `ConfigError`.
    """
    quota = server.state_quota * MIB
    if not server.state.startswith(SCHEMES):
        stored = BatchObjects(open_database(server.state), quota)
        return None, stored, stored
    redis = Redis(server.state)
    return redis, RedisObjects(redis, quota), BatchObjects(open_database("auto", "batches"), quota)


def slot_files_of(server: ServerSettings) -> SavedFiles | None:
    """Return the store of saved slots, None without one. Raises ConfigError if the secret cannot be read."""
    location, quota = server.slot_save_path, server.slot_save_quota * MIB
    if location is None:
        return None
    secret = slot_secret(server)
    return UrlFiles(location, quota, secret) if isinstance(location, str) else SlotFiles(location, quota, secret)


def http_options(server: ServerSettings) -> HttpOptions:
    """Return the options of the HTTP layer. Most fields have the names of the settings."""
    common = {each.name: getattr(server, each.name) for each in fields(HttpOptions) if hasattr(server, each.name)}
    return replace(
        HttpOptions(**common),
        proxy=server.ui_mcp_proxy or server.agent,
        verbose=server.verbosity >= VERBOSITY_DETAILED,
        max_bodies_bytes=server.max_bodies_bytes or 4 * server.max_body_bytes,
        max_connections=server.max_connections or MAX_CONNECTIONS,
        predicts=bool(server.predict_route),
        aliases=server.route_aliases,
        cache_scope=None if server.cache_scope == "auto" else server.cache_scope,
        allowed_hosts=tuple(host.lower() for host in server.allowed_hosts),
        cors_origins=cors_origins(server),
    )


def cors_origins(server: ServerSettings) -> str:
    """Return the allowed origins. With tools the default is pages on loopback hosts."""
    has_tools = server.enabled_tools or server.mcp_servers
    if has_tools and "cors_origins" not in server.model_fields_set:
        return "" if server.closed else "localhost"
    return "" if server.closed and server.cors_origins.strip() == "*" else server.cors_origins


def kv_events_of(server: ServerSettings) -> "KvEvents | None":
    """Return the publisher of KV cache events for routers, None if it is off. Raises ConfigError."""
    if not server.kv_events:
        return None
    with _needs_extra("kv_events", "events"):
        from server.telemetry.kv_events import KvEvents
    return KvEvents(server.kv_events, server.kv_events_replay, server.kv_events_pod)


def tracing_of(server: ServerSettings) -> "Tracing | None":
    """Return the exporter of traces, None if it is off. Raises ConfigError."""
    if not server.otel:
        return None
    with _needs_extra("otel", "otel"):
        from server.telemetry.tracing import create_tracing

        return create_tracing(__version__)


@contextmanager
def _needs_extra(option: str, extra: str) -> Iterator[None]:
    """Turn an ImportError into a ConfigError that names the extra for `option`."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"server.{option}: {error}; pip install 'llamapool[{extra}]'") from None


def media_loader_of(server: ServerSettings) -> MediaLoader:
    """Return the loader of media and documents. It starts processes at the first use."""
    hosts = tuple(host for host in server.media_fetch if host != ANYWHERE)
    sites = AllowedHosts(ANYWHERE in server.media_fetch, hosts, server.media_path)
    video = DecodeOptions(fps=max(server.video_fps, 0.0), stamp_ms=max(server.video_timestamp_interval, 0))
    documents = DocumentLimits(server.document_pages, server.document_bytes, cpu_s=server.document_seconds)
    return MediaLoader(Decoder(IMAGE_DECODER, video, documents=documents), sites)


def mcp_of(server: ServerSettings) -> McpServers:
    """Return the configured MCP servers. Raises ConfigError."""
    configured = read_servers(server.mcp_servers)
    labels = {*server.mcp_api, server.mcp_web_search} - {"", ANY_LABEL, *configured}
    if labels:
        raise ConfigError(
            f"server.mcp_api and mcp_web_search: no MCP server is called {named(labels)}; there are {named(configured)}"
        )
    hosts = tuple(host for host in server.mcp_hosts if host != ANYWHERE)
    search = (server.mcp_web_search,) if server.mcp_web_search else ()
    rules = McpRules(
        (*server.mcp_api, *search), server.mcp_web_search, server.mcp_max_rounds, server.mcp_max_s, server.mcp_max_chars
    )
    return McpServers(configured, AllowedHosts(ANYWHERE in server.mcp_hosts, hosts), rules)


Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def lifespan_of(
    services: Services,
    server: ServerSettings,
    models: ModelPool,
    addresses: Sequence[str],
    redis: Redis | None,
    gpus: GpuCollector | None,
    reload: Reload,
    events: "KvEvents | None" = None,
    tracing: "Tracing | None" = None,
) -> Lifespan:
    """Return a lifespan that starts the pool. At its end it drains for ``drain_s`` seconds and releases everything."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        configure(server)
        logging.getLogger().addHandler(services.log)
        warn_of_workers(sys.argv, os.environ)
        if problem := seccomp.problem():
            logger.warning("%s", problem)
        stopping: list[asyncio.Task[None]] = []

        def start_drain() -> asyncio.Task[None]:
            """Refuse new requests and drain the running ones. Later calls return the same task."""
            if not stopping:
                services.draining.set()
                stopping.append(asyncio.create_task(services.pool.close(server.drain_s), name="drain"))
            return stopping[0]

        def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
            task = asyncio.create_task(work, name=name)
            task.add_done_callback(log_failure)
            return task

        of_pool = [  # they end with the pool
            spawn(_follow_pool(services, models.events), "metrics follow the pool"),
            spawn(show_load_progress(models.progress), "load progress"),
        ]
        endless = [
            spawn(reload.follow(), "keys and certificates follow their files"),
            spawn(services.metrics.watch_loop(), "event loop lag"),
            spawn(every(SAMPLE_S, services.live.history.sample), "the last hour"),
            spawn(every(MEMORY_WATCH_S, services.memory.check), "memory watch"),
            spawn(expire_state({services.state, services.batches.state}), "expiry of stored state"),
            spawn(settle_interrupted(services), "interrupted responses"),
            spawn(services.batches.run(), "batches"),
            spawn(services.usage.run(), "usage ledger"),
        ]
        if limit_s := server.watchdog_s:
            watch = every(min(limit_s / 4, WATCHDOG_INTERVAL_S), partial(services.pool.check_progress, limit_s))
            endless.append(spawn(watch, "watchdog"))
        endless += [] if gpus is None else [spawn(gpus.read_loop(), "metrics of GPUs")]
        endless += [] if events is None else [spawn(events.follow(services.pool.states), "KV events")]
        StopSignals(
            start_drain, leave=services.leaving.set, delay_s=server.shutdown_delay_s, sockets=services.sockets
        ).install()
        on_hangup(reload.begin)
        if services.slot_files is not None:
            await asyncio.to_thread(services.slot_files.remove_stale)
        try:
            await services.mcp.start()
            await services.pool.start()
            prepare_first_reply()
            parts = {"has_keys": services.keys.required, "has_page": server.ui}
            banner = show_banner(services.pool, addresses, server.api_prefix, services.draining, **parts)
            of_pool.append(spawn(banner, "startup banner"))
            yield
        finally:
            await start_drain()
            await services.mcp.close()
            await end_tasks(endless)
            await asyncio.gather(*of_pool, return_exceptions=True)  # failures are logged
            models.close_sandboxes()
            for threads in (services.prepare, services.prepare_long, services.reading, services.compiling.threads):
                threads.shutdown(wait=False, cancel_futures=True)  # a thread may be in a long native call
            services.media_loader.close()
            await services.usage.close()
            await asyncio.to_thread(services.batches.state.database.close)
            if redis is not None:
                await redis.close()
            if tracing is not None:
                await asyncio.to_thread(tracing.close)
            logging.getLogger().removeHandler(services.log)

    return lifespan


def prepare_first_reply() -> None:
    """Initialize while models load what would otherwise delay the first request by 35 ms."""
    build_validators()
    anyio.get_cancelled_exc_class()  # imports anyio's backend, which Starlette uses


async def end_tasks(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks repeatedly until they have ended. Python 3.11's `asyncio.wait_for`, which the package redis uses,
    ignores a cancellation that arrives together with its result.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=END_RETRY_S)


async def every(interval_s: float, work: Callable[[], object]) -> None:
    """Call `work` every `interval_s` seconds until cancelled."""
    while True:
        await asyncio.sleep(interval_s)
        work()


async def expire_state(stores: Collection[Objects]) -> None:
    """Delete expired objects every `EXPIRY_INTERVAL_S` seconds until cancelled."""
    while True:
        try:
            if n_expired := sum([await each.expire() for each in stores]):
                logger.info("%d stored objects have expired and were deleted", n_expired)
        except Unavailable as error:
            logger.warning("expired objects are deleted later: %s", error.message)
        await asyncio.sleep(EXPIRY_INTERVAL_S)


async def _follow_pool(services: Services, events: Subscription) -> None:
    with events:
        async for event in events:
            services.metrics.observe(services.pool.states())
            if isinstance(event, StatusChanged):
                services.metrics.status_changed(event)
            if isinstance(event, StatusChanged) and event.info is not None and event.info.media:
                services.media_loader.warm()


def warn_of_workers(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Warn if this process is one of several workers that uvicorn or gunicorn started."""
    spawned = multiprocessing.parent_process() is not None and "--reload" not in argv
    several = environ.get("WEB_CONCURRENCY", "1") not in ("", "0", "1")
    if spawned or several or environ.get("SERVER_SOFTWARE", "").startswith("gunicorn"):
        logger.warning(
            "this is one of several worker processes: each loads every model again and has its own "
            "queue, cache and metrics; start one worker and set n_parallel or instances instead"
        )


def __getattr__(name: str) -> FastAPI:
    """Return ``server.app:app``, built on first use, so that importing this module reads no environment variables.

    An invalid setting ends the process with a one-line error.
    """
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        settings = load_settings()
        check_certificate(settings.server)
        warnings = check_files(settings)
        logs.configure(settings.server)
        logging.getLogger("uvicorn").propagate = True  # uvicorn's own handler was removed
        for warning in warnings:
            logger.warning("%s", warning)
        application = create_app(settings, reread=load_settings)
    except ConfigError as error:
        print(f"llamapool: {error.message}", file=sys.stderr)
        raise SystemExit(CONFIG_ERROR_STATUS) from None
    globals()["app"] = application
    return application
