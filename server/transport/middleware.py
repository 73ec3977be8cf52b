"""The middleware around every route: request ids, CORS, keys, HEAD, draining, the access log, errors.

It is plain ASGI with one wrapper of `send`, and adds no task and no buffering to streams.
"""

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from urllib.parse import quote, unquote

from sse_starlette.sse import SendTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import AuthenticationFailed, LlamapoolError, NotFound, without_credentials
from server.telemetry.record import RECORD, REQUEST_ID, Record, reason_of
from server.transport.admission import ADMISSION, Admission, AdmissionControl, admission_of
from server.transport.cors import CorsPolicy
from server.transport.endpoints import OPEN_PATHS, TARGET, UNKNOWN, Resolver, Target, methods_of
from server.transport.errors import EXPECTED, error_response
from server.transport.keys import KeyStore, given_name
from server.transport.limits import Rates
from server.transport.options import HttpOptions
from server.transport.sse import HEAD_ONLY
from server.transport.websocket import PATHS as SOCKET_PATHS

logger = logging.getLogger(__name__)
access = logging.getLogger("server.access")
audit = logging.getLogger("server.audit")

UNMATCHED = "unmatched"
CLIENT_GONE = 499
"""The status in log and metrics if the client disconnected before the reply started (nginx's number)."""

MAX_AUDIT_QUERY = 200
"""Characters of a query that the audit log contains."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NO_GZIP = re.compile(rb"gzip\s*;\s*q=0(\.0*)?\s*(,|$)", re.IGNORECASE)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_QUIET = frozenset(
    {*OPEN_PATHS, "/metrics", "/props", "/models", "/v1/models", "/api/tags", "/api/ps", "/page/log", "/page/config"}
)  # polled: logged at debug level


class Middleware:
    """Wraps the application. While `draining` is set, new requests are refused. `ended` is called at the end of each
    request. `is_page` recognizes the paths of the web UI's files.
    """

    def __init__(
        self,
        app: ASGIApp,
        options: HttpOptions,
        draining: asyncio.Event,
        ended: Callable[[Record], object],
        *,
        is_page: Callable[[str], bool],
        keys: KeyStore,
        rates: Rates,
    ) -> None:
        self._app = app
        self._cors = CorsPolicy(options)
        self._resolver = Resolver(options.api_prefix, is_page, options.aliases)
        self._control = AdmissionControl(options, keys, rates, draining)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket, or refuse it with an HTTP reply."""
        target = self._resolver.target(scope)
        checked = target.scope(scope)
        admitted = False
        try:
            if target.path not in SOCKET_PATHS:
                raise NotFound("File Not Found")
            await self._control.admit(checked, dict(scope["headers"]))
            admitted = True
            await self._app(checked, receive, send)
        except LlamapoolError as error:
            if admitted:
                raise
            logger.warning("a WebSocket at %r was refused: %s", target.received, error.message)
            await receive()
            if "websocket.http.response" in scope.get("extensions", {}):
                await error_response(error, checked)(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
        finally:
            if ADMISSION in checked:
                admission_of(checked).release()

    async def _http(self, received: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(received["headers"])
        origin, method, target = headers.get(b"origin"), received["method"], self._resolver.target(received)
        scope = target.scope(received)  # a copy: uvicorn counts the body's bytes by the method in its own scope
        id_, known = request_id(headers), method if method in _METHODS else "other"
        record = scope[RECORD] = Record(id_.decode(), known, target.received, headers=headers)
        REQUEST_ID.set(record.id)
        added = [(b"x-request-id", id_)]
        if b"anthropic-version" in headers:  # the name that Anthropic's clients read
            added.append((b"request-id", id_))
        added += self._cors.preflight(origin) if method == "OPTIONS" else self._cors.headers(origin)
        if _NO_GZIP.search(headers.get(b"accept-encoding", b"")):  # Starlette compresses if it finds the word gzip
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
        if method == "HEAD":  # of every path that has a GET, as in llama-server
            scope |= {"method": "GET", HEAD_ONLY: True}

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                admission: Admission | None = scope.get(ADMISSION)
                limits = [] if admission is None else admission.limit_headers(record.path)
                message["headers"] = [*message.get("headers", ()), *added, *limits]
            else:
                record.finished = not message.get("more_body", False)
                if method == "HEAD":
                    message = {**message, "body": b""}
            await send(message)

        admitted = False
        try:
            if method == "OPTIONS":
                await Response(b"", media_type="text/html")(scope, receive, reply)
            else:
                await self._control.admit(scope, headers)
                admitted = True
                await self._application(target, scope)(scope, receive, reply)
        except ClientDisconnect:
            record.status = record.status or CLIENT_GONE
        except SendTimeoutError as error:
            record.error = reason_of(error)
            logger.warning("the client stopped reading for idle_s, dropped")
        except Exception as error:  # noqa: BLE001 (answers every error, and logs unexpected ones)
            await self._fail(error, scope, receive, reply, closes=not (admitted and isinstance(error, EXPECTED)))
        finally:
            self._end(scope, record)

    def _application(self, target: Target, scope: Scope) -> ASGIApp:
        """Return the application for a request: routes and web UI, or an error for an unknown path or method."""
        if not target.path:
            return _outside(target)
        if target.endpoint is not UNKNOWN:
            return self._app
        methods = methods_of(target.path)
        refusal = HTTPException(405, headers={"Allow": ", ".join(methods)}) if methods else HTTPException(404)
        return error_response(refusal, scope)

    async def _fail(self, error: Exception, scope: Scope, receive: Receive, reply: Send, *, closes: bool) -> None:
        """Answer an error, or end the connection if the reply has started. `closes`: end it after the answer, because
        the request's body may be unread."""
        record: Record = scope[RECORD]
        record.error = record.error or reason_of(error)
        if isinstance(error, AuthenticationFailed):
            client = (scope.get("client") or ["a local socket"])[0]
            record.refused_key = given_name(record.headers)
            logger.warning(
                "no valid API key from %s for %r: it belongs in Authorization: Bearer KEY",
                client,
                record.path,
                extra={"key": record.refused_key},
            )
        if record.status == 0:
            response = error_response(error, scope)
            if closes:
                response.headers.setdefault("Connection", "close")
            await response(scope, receive, reply)
        elif record.finished:
            logger.error("a request failed after its reply", exc_info=error)
        else:
            # uvicorn closes the connection after an incomplete reply.
            logger.error("a request failed in the middle of its reply; this is a bug, please report it", exc_info=error)

    def _end(self, scope: Scope, record: Record) -> None:
        target: Target = scope[TARGET]
        endpoint = target.endpoint
        record.elapsed_s = time.perf_counter() - record.started_at
        record.status = record.status or CLIENT_GONE
        admission: Admission | None = scope.get(ADMISSION)
        if admission is not None:
            admission.release()
            record.key = admission.caller.name if admission.caller is not None else ""
        record.route = endpoint.path or UNMATCHED
        record.polled = target.is_page or target.path in _QUIET
        self._ended(record)
        level = logging.DEBUG if record.polled else logging.INFO
        if access.isEnabledFor(level):
            # %r: an unquoted path may contain line breaks
            values = (record.method, record.path, record.status, record.elapsed_s * 1000)
            access.log(level, "%s %r %d %.1f ms", *values, extra=record.fields())
        if endpoint.changes_server and endpoint.path and target.path != "/page/log":  # the web UI polls that
            client = (scope.get("client") or ["a local socket"])[0]
            query = without_credentials(unquote(scope["query_string"].decode("latin-1")))[:MAX_AUDIT_QUERY]
            fields = {"request": record.id, "key": record.key or record.refused_key, "client": client}
            fields |= {"model": record.subject, "query": query, "outcome": record.outcome}
            known = {name: value for name, value in fields.items() if value}
            audit.info("%s %r %d", record.method, record.path, record.status, extra=known)


def _outside(target: Target) -> Response:
    """Redirect the API prefix without a slash to the web UI. Raises `NotFound` for other paths outside the prefix.

    The redirect is relative, so it works with any proxy.
    """
    if not target.is_bare or target.method != "GET":
        raise NotFound("File Not Found")
    return RedirectResponse(quote(target.received.rpartition("/")[2]) + "/")


def request_id(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the client's X-Request-Id if it is short plain text, otherwise a new one."""
    id_ = headers.get(b"x-request-id")
    if id_ is not None and _REQUEST_ID.fullmatch(id_):
        return id_
    return b"%016x" % random.getrandbits(64)  # no secret; the system's random source would release the GIL
