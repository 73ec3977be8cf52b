"""Read request bodies within limits, as JSON or as a form. All errors are the client's (4xx)."""

import asyncio
import gc
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, HTTPConnection, Request

from server.errors import InvalidRequest, short
from server.telemetry.record import RECORD
from server.transport.admission import admission_of
from server.transport.options import HttpOptions

T = TypeVar("T")
MAX_VALUES = 1_000_000
"""The JSON parser holds the GIL even in a thread. 64 MiB of ``[1],`` are 32 million objects and would stall every
stream for half a minute. Commas and opening brackets are counted, even in strings; no prompt that fits a context has
so many.
"""
_BOM = b"\xef\xbb\xbf"
_LONG_BYTES = 1 << 14  # longer bodies are parsed in a thread; this size takes at most 2 ms
_JSON_NAMES = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}


class BodyTooLarge(InvalidRequest):
    """The body is larger than the server's limit (HTTP 413)."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the request body is larger than the limit of {limit} bytes")


class BodyTimeout(InvalidRequest):
    """The body did not arrive in time (HTTP 408)."""


class TooManyValues(InvalidRequest):
    """The body contains more than `MAX_VALUES` JSON values (HTTP 413)."""


class UnsupportedEncoding(InvalidRequest):
    """The body is compressed (HTTP 415)."""


async def read_json(request: Request, *, optional: bool = False) -> dict[str, Any]:
    """Return the body as `read_as` does, and note the model that it names for the audit log."""
    body = await read_as(request, lambda value: value, optional=optional)
    name = body.get("model") or body.get("name")
    request.scope[RECORD].subject = short(name) if isinstance(name, str) else ""
    return body


async def read_as(request: Request, read: Callable[[dict[str, Any]], T], *, optional: bool = False) -> T:
    """Return `read` of the body, parsed as a JSON object whatever its content type, as in llama-server. A long body is
    parsed and read in a thread, one at a time. If the body is `optional`, a missing one counts as an empty object.

    Raises `InvalidRequest` with the position for anything but a JSON object in UTF-8, and its subclasses above.
    According to RFC 8259, NaN, Infinity and lone surrogates are not JSON; of duplicate keys the last counts. Raises
    `starlette.requests.ClientDisconnect` if the client disconnects, and the errors of `read`.
    """
    return await _parse_body(
        request, lambda holder: read({} if optional and not holder[0].strip() else parse_object(holder.pop()))
    )


async def read_later(connection: HTTPConnection, read: Callable[[], T]) -> T:
    """Return the result of `read`, which is called in the thread that reads long bodies."""
    threads: Executor = connection.app.state.services.reading
    return await asyncio.get_running_loop().run_in_executor(threads, _without_gc, read)


async def read_message(connection: HTTPConnection, message: bytes, read: Callable[[bytes], T]) -> T:
    """Return `read` of a WebSocket message. A long message is read in the thread that reads long bodies."""
    return read(message) if len(message) <= _LONG_BYTES else await read_later(connection, lambda: read(message))


async def read_array(request: Request) -> Any:
    """Read the body like `read_json`. The caller checks that it is an array, and its items."""
    return await _parse_body(request, lambda holder: parse_value(holder.pop(), "a JSON array"))


async def _parse_body(request: Request, parse: Callable[[list[bytes]], T]) -> T:
    """Return `parse` of a list with the body. `parse` can pop the body to release its memory."""
    holder = [await read_body(request)]
    return parse(holder) if len(holder[0]) <= _LONG_BYTES else await read_later(request, lambda: parse(holder))


def _without_gc(read: Callable[[], T]) -> T:
    """Call `read` without the garbage collector, which would traverse the growing containers repeatedly and block
    every thread."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return read()
    finally:
        if was_enabled:
            gc.enable()


async def read_body(request: Request) -> bytes:
    """Return the raw body. Raises `TooManyBodies` if the bodies of all requests exceed their limit, and like `read_as`
    for a body that is too large or too slow."""
    options: HttpOptions = request.app.state.services.options
    headers, receive, admission = request.scope[RECORD].headers, request.receive, admission_of(request.scope)
    encoding = headers.get(b"content-encoding", b"").decode("latin-1")
    if encoding.lower() not in ("", "identity"):
        raise UnsupportedEncoding(f"Content-Encoding '{encoding}' is not supported; send the body uncompressed")
    declared = headers.get(b"content-length", b"0")  # uvicorn rejects invalid ones
    if declared.isdigit() and int(declared) > options.max_body_bytes:
        raise BodyTooLarge(options.max_body_bytes)
    body = bytearray()  # not a list of chunks: a client may send single bytes
    now = asyncio.get_running_loop().time
    due = now() + options.timeout_s
    # One timer for the whole body and for each chunk: two timers cost more than reading a short body.
    limit = asyncio.timeout_at(min(due, now() + options.idle_s))
    try:
        async with limit:
            while (message := await receive())["type"] == "http.request":
                chunk: bytes = message.get("body", b"")
                if len(body) + len(chunk) > options.max_body_bytes:
                    raise BodyTooLarge(options.max_body_bytes)
                admission.take(len(chunk))
                body += chunk
                if not message.get("more_body", False):
                    return bytes(body)
                limit.reschedule(min(due, now() + options.idle_s))
    except TimeoutError:
        waited_s = options.timeout_s if now() >= due else options.idle_s
        raise BodyTimeout(f"the request body did not arrive within {waited_s:g} s") from None
    raise ClientDisconnect


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse one JSON object; raises `InvalidRequest` with line and column."""
    value = parse_value(body)
    if not isinstance(value, dict):
        found = _JSON_NAMES.get(type(value), "null")
        raise InvalidRequest(f"the request body must be a JSON object, not {found}")
    return value


def parse_value(body: bytes, expected: str = "a JSON object") -> Any:
    """Parse JSON of any type; raises `InvalidRequest` with line and column."""
    body = body.removeprefix(_BOM)
    if not body:
        raise InvalidRequest(f"the request body is empty; expected {expected}")
    check_n_values(body)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        _check_utf8(body)
        raise InvalidRequest(
            f"the request body is not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None


def check_n_values(body: bytes) -> None:
    """Raise `TooManyValues` for JSON that may have more than `MAX_VALUES`."""
    if len(body) > MAX_VALUES and sum(map(body.count, (b",", b"[", b"{"))) >= MAX_VALUES:
        raise TooManyValues(f"the request body contains more than {MAX_VALUES} JSON values")


def _check_utf8(body: bytes) -> None:
    """Raise `InvalidRequest` with line and column of the first byte that is not UTF-8."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        before = body[: error.start].decode()
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise InvalidRequest(
            f"the request body is not valid UTF-8 at line {line}, column {column}: byte 0x{body[error.start]:02x}"
        ) from None


_MAX_PARTS = 100
_MAX_FIELD_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Form:
    """A parsed form: all texts of each name, and the last file of each name with its file name."""

    fields: Mapping[str, list[str]]
    files: Mapping[str, bytes]
    filenames: Mapping[str, str]


class _InMemoryParser(MultiPartParser):
    """Keep files in memory, like the body: a container may have no writable folder for temporary files."""

    spool_max_size = 0  # SpooledTemporaryFile: never write to disk


async def read_form(request: Request) -> Form:
    """Parse the form in a body, in the thread that reads long bodies. Raises `InvalidRequest`."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise InvalidRequest("the request body must be a form (multipart/form-data)")
    body = await read_body(request)
    return await read_later(request, lambda: asyncio.run(_form(request.headers, body)))


async def _form(headers: Headers, body: bytes) -> Form:
    kind, options = parse_options_header(headers["content-type"])
    boundary = options.get(b"boundary", b"")
    if body.count(b"--" + boundary) > 2 * _MAX_PARTS + 1:  # the parser is slow at each boundary, even inside a file
        raise InvalidRequest(f"the form has more than {2 * _MAX_PARTS} parts")

    async def chunks() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), _CHUNK_BYTES):  # the parser keeps two copies of each chunk
            yield body[start : start + _CHUNK_BYTES]

    if boundary:  # without the charset, with which the parser decodes: punycode takes quadratic time, "undefined" fails
        headers = Headers(
            raw=[(b"content-type", kind + b'; boundary="' + re.sub(rb'([\\"])', rb"\\\1", boundary) + b'"')]
        )
    parser = _InMemoryParser(
        headers, chunks(), max_files=_MAX_PARTS, max_fields=_MAX_PARTS, max_part_size=_MAX_FIELD_BYTES
    )
    try:
        parsed = await parser.parse()
    except (MultiPartException, KeyError, UnicodeDecodeError) as fault:
        raise InvalidRequest(f"the request body is not a valid form: {fault}") from None
    try:
        fields: dict[str, list[str]] = {}
        files: dict[str, bytes] = {}
        filenames: dict[str, str] = {}
        for name, value in parsed.multi_items():
            if isinstance(value, UploadFile):
                files[name] = await value.read()
                filenames[name] = value.filename or ""
            else:
                fields.setdefault(name, []).append(value)
        return Form(fields, files, filenames)
    finally:
        await parsed.close()
