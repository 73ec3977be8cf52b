"""Admission of requests: caller, rates, body bytes, concurrency.

The middleware calls `AdmissionControl.admit`, and at the end of the request `Admission.release`.
Each refusal is an exception of `server.errors`, which `telemetry.record.reason_of` names in logs and metrics.

A request that needs a model then holds a place in the `ConcurrencyLimiter` while it waits for its `Lease`
(`serving.services.lease_for`, `serving.session.Session`).
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Final
from weakref import WeakValueDictionary

from starlette.types import Scope

from server.dialects.errors import speaks_anthropic
from server.errors import NotFound, PermissionDenied, QueueFull, ShuttingDown, TooLate
from server.transport.cors import CorsPolicy, Guard, ReplyHeaders
from server.transport.endpoints import OPEN_PATHS, TARGET, Target
from server.transport.keys import INTERNAL, Key, KeyStore
from server.transport.limits import RateLimited, Rates, TooManyBodies, TooManyConnections, Windows
from server.transport.options import HttpOptions

ADMISSION: Final = "llamapool.admission"
"""A key in the ASGI scope of a request or a WebSocket: its `Admission`."""
_RETRY_AFTER_S, _BODIES_RETRY_S = 1, 5


class Admission:
    """The admission of one request.

    ``caller`` is the client's `Key`, `ANYBODY` on a server without keys, or None without a valid key (few paths are
    open then). ``manages``: whether the client may see model files and decide which models stay in memory.
    ``n_body_bytes``: bytes of its body in memory.
    """

    __slots__ = ("_control", "_leave", "_windows", "caller", "manages", "n_body_bytes")

    def __init__(self, control: "AdmissionControl") -> None:
        self.caller: Key | None = None
        self.manages = False
        self.n_body_bytes = 0
        self._control = control
        self._leave: Callable[[], object] = lambda: None
        self._windows: Windows = {}

    async def count(self, key: Key) -> None:
        """Count the request against the limits of `key`. Raises `RateLimited`."""
        try:
            self._windows = await self._control.rates.enter(key)
        except RateLimited as refused:
            self._windows = refused.windows
            raise
        self._leave = lambda: self._control.rates.leave(key)

    def detach(self) -> Callable[[], None]:
        """Return a function that stops counting the request and its body, which now outlive the client's connection."""
        control, n_bytes, leave = self._control, self.n_body_bytes, self._leave
        self.n_body_bytes, self._leave = 0, lambda: None

        def end() -> None:
            control.n_body_bytes -= n_bytes
            leave()

        return end

    def limit_headers(self, path: str) -> ReplyHeaders:
        """Return reply headers with the remaining requests and tokens of the key; none if it has no limits."""
        if self.caller is None or not self._windows:
            return []
        return self._control.rates.headers(self._windows, anthropic=speaks_anthropic(path))

    def take(self, n_bytes: int) -> None:
        """Count received bytes of the body. Raises `TooManyBodies`; earlier bytes stay counted until `release`."""
        control = self._control
        if control.n_body_bytes + n_bytes > control.max_body_bytes:
            message = f"the bodies of the running requests would exceed the limit of {control.max_body_bytes} bytes"
            raise TooManyBodies(message, _BODIES_RETRY_S)
        control.n_body_bytes += n_bytes
        self.n_body_bytes += n_bytes

    def give_back(self, n_bytes: int) -> None:
        """Stop counting `n_bytes` that `take` counted."""
        self._control.n_body_bytes -= n_bytes
        self.n_body_bytes -= n_bytes

    def release(self) -> None:
        """Stop counting the request and its body. Call it once."""
        self._control.n_running -= 1
        self.detach()()


class AdmissionControl:
    """Admits requests. Used on the event loop. While `draining` is set, requests are refused.

    ``n_body_bytes``: bytes of the bodies of all requests, at most ``max_body_bytes``.
    """

    def __init__(self, options: HttpOptions, keys: KeyStore, rates: Rates, draining: asyncio.Event) -> None:
        self._keys = keys
        self._open_paths = ("/metrics",) * options.metrics_open
        self._cors = CorsPolicy(options)
        self._guard = Guard(options, self._cors.listed)
        self.rates = rates
        self.n_body_bytes, self.max_body_bytes = 0, options.max_bodies_bytes
        self._admin_port = options.admin_port
        self._draining = draining
        self._max_running = options.max_connections
        self.n_running = 0

    async def admit(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Admit a request or a WebSocket; `scope` gets its `Admission`, which the caller releases in any case.

        Raises the reason for a refusal.
        """
        target: Target = scope[TARGET]
        scope[ADMISSION] = admission = Admission(self)
        self.n_running += 1
        if target.path not in OPEN_PATHS:
            if self._draining.is_set():
                raise ShuttingDown
            if self.n_running > self._max_running:
                raise TooManyConnections("there are too many connections", _RETRY_AFTER_S)
        admission.caller = scope.get(INTERNAL)
        if admission.caller is None:  # otherwise the client's own request was admitted
            self._authorize(scope, headers, target, admission)
            caller = admission.caller
            if caller is not None and caller.is_limited and target.endpoint.is_work and scope["type"] == "http":
                await admission.count(caller)

    def _authorize(self, scope: Scope, headers: Mapping[bytes, bytes], target: Target, admission: Admission) -> None:
        """Raise unless the key may use the endpoint. A server without keys checks the origin (`Guard`)."""
        admission.caller = caller = self._keys.caller(headers)  # before all checks: the log names refused keys, too
        is_socket = scope["type"] == "websocket"
        origin = headers.get(b"origin")  # browsers open WebSockets without a preflight request
        if is_socket and origin is not None and not self._cors.allows(origin) and self._guard.is_foreign(headers):
            raise PermissionDenied("this origin may not open a WebSocket")
        is_other_port = bool(self._admin_port) and (scope.get("server") or ("", 0))[1] != self._admin_port
        if is_other_port and target.endpoint.is_administration:
            raise NotFound("File Not Found")
        self._keys.check(caller, target, self._open_paths)
        if not self._keys.required:
            self._guard.check(target, scope, headers)
        may_manage = caller is not None and "models" in caller.scopes
        admission.manages = (
            may_manage and not is_other_port and (self._keys.required or not self._guard.is_foreign(headers))
        )


def admission_of(scope: Scope) -> Admission:
    admission: Admission = scope[ADMISSION]
    return admission


def scheduled_client(scope: Scope, end_user: str, *, several_keys: bool) -> str:
    """Return an opaque id of the client, among which the scheduler shares slots fairly.

    With several keys it is the key's owner, so a client cannot pose as several ones. With one key or none it is the
    body's `end_user`, otherwise the address: behind a proxy that sends no user, all clients count as one.
    """
    if several_keys:
        caller = admission_of(scope).caller
        return "" if caller is None else caller.owner
    if end_user:
        return hashlib.sha256(end_user.encode("utf-8", "surrogatepass")).hexdigest()
    return (scope.get("client") or ("",))[0]


class ConcurrencyLimiter:
    """Counts requests that wait for a model, for linked media, or for a rendering and tokenizing thread; at most
    `limit`, 0 = unlimited. Used on the event loop.
    """

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self.n = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count a request on its way to a queue. Raises `QueueFull`."""
        if 0 < self._limit <= self.n:
            message = f"{self.n} requests are being prepared (limited by max_preparing)"
            raise QueueFull(message, _RETRY_AFTER_S, "preparing_full")
        self.n += 1
        try:
            yield
        finally:
            self.n -= 1


COMPILE_THREADS = 2
COMPILE_WAIT_S = 20.0  # shorter than the ping interval: a refused stream can still send its status
_COMPILE_RETRY_S = 5


class CompileTurns:
    """Limits concurrent grammar compilations to `n`. At most `n` of each client wait in the common queue, so that one
    client cannot delay all others. ``threads`` run the compilations. Used on the event loop.
    """

    def __init__(self, n: int = COMPILE_THREADS, wait_s: float = COMPILE_WAIT_S) -> None:
        self.threads: Executor = ThreadPoolExecutor(n, thread_name_prefix="compile")
        self._n, self._wait_s = n, wait_s
        self._all = asyncio.Semaphore(n)
        self._by_client: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncGenerator[None, None]:
        """Wait until `client` may compile. Raises `TooLate` after ``wait_s`` seconds."""
        own = self._by_client.setdefault(client, asyncio.Semaphore(self._n))
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._wait_s):
                    await stack.enter_async_context(own)
                    await stack.enter_async_context(self._all)
            except TimeoutError:
                message = f"other clients' grammars are compiled first: this one waited for {self._wait_s:.0f} s"
                raise TooLate(message, _COMPILE_RETRY_S) from None
            yield
