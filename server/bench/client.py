"""The benchmark's client: streams and short requests to a model of an OpenAI-compatible server.

Each read gets a timestamp. Streams are parsed after their end, because parsing would delay the next timestamp.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

CONNECT_S = 10.0
STARTED_ARRIVALS = 8  # number of reads after which a stream counts as running
FAILED, UNREACHABLE, REFUSED, UNKNOWN_MODEL, BAD_REPLY = 1, 3, 4, 5, 6
_MAX_SHOWN = 600  # characters of a reply in an error

Arrival = tuple[float, bytes]
"""The time of a read (`time.perf_counter`) and its bytes."""
Fields = dict[str, Any]
T = TypeVar("T")


class BenchError(Exception):
    """A scenario could not be measured. ``status``: the exit status of ``llamapool bench``."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Target:
    """The URL of a server. ``prefix`` precedes ``/v1`` in its paths."""

    host: str
    port: int
    prefix: str = ""
    api_key: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    @property
    def local(self) -> bool:
        """Whether the server is on loopback."""
        return self.host in ("127.0.0.1", "localhost", "::1")

    @property
    def url(self) -> str:
        """The URL as users write it."""
        return f"{'https' if self.tls else 'http'}://{self._authority}{self.prefix}"

    @property
    def _authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def head(self, method: str, path: str, n_body: int, *, keep: bool) -> bytes:
        """Return the request line and the headers of a request with a JSON body of `n_body` bytes."""
        lines = [
            f"{method} {self.prefix}{path} HTTP/1.1",
            f"Host: {self._authority}",
            "Content-Type: application/json",
            f"Content-Length: {n_body}",
            f"Connection: {'keep-alive' if keep else 'close'}",
            *([f"Authorization: Bearer {self.api_key}"] if self.api_key else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode()


def parse_target(url: str, api_key: str = "", *, insecure: bool = False) -> Target:
    """Parse ``http[s]://host[:port][/path][/v1]``. `insecure` accepts any certificate. Raises `BenchError`."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise BenchError(f"--url {url}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise BenchError(f"--url {url} is not http[s]://host[:port][/path]")
    if any(ord(character) < 33 or ord(character) > 126 for character in api_key):
        raise BenchError("the API key has characters that are not allowed in a header")
    tls = None
    if parts.scheme == "https":
        tls = ssl.create_default_context()
        if insecure:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Target(parts.hostname, port or (443 if tls else 80), prefix, api_key, tls)


@dataclass(slots=True)
class ClientRecord:
    """A request as measured by its client. Times are seconds of one clock; ``events`` are those of events with text.

    ``n_prompt`` and ``n_computed`` (prompt tokens that were not cached) are None if the server does not report them.
    """

    sent: float = 0.0
    events: list[float] = field(default_factory=list)
    done: float = 0.0
    text: str = ""
    n_predicted: int = 0
    n_prompt: int | None = None
    n_computed: int | None = None


class _Reply(HttpResponseParser):
    """An incremental parser of a reply. Its status is 0 before the first line."""

    def __init__(self) -> None:
        super().__init__(self)
        self.is_complete = self.keeps_open = False
        self._body = b""

    def feed(self, data: bytes) -> bytes:
        """Parse the next bytes and return the part of the body in them. Raises `BenchError`."""
        self._body = b""
        try:
            self.feed_data(data)
        except HttpParserError as error:
            raise BenchError(f"not an HTTP reply: {_text(data)}", BAD_REPLY) from error
        return self._body

    def on_headers_complete(self) -> None:
        self.keeps_open = self.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self.is_complete = True


class Connection:
    """A connection, opened at the first request, and again if the server closed it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def send(self, method: str, path: str, body: bytes, *, keep: bool) -> tuple[float, asyncio.StreamReader]:
        """Send a request; return the time and the reader of the reply. Raises `BenchError`."""
        if self._streams is None:
            target = self._target
            try:
                async with asyncio.timeout(CONNECT_S):
                    self._streams = await asyncio.open_connection(target.host, target.port, ssl=target.tls)
            except OSError as error:  # TimeoutError is one
                reason = str(error) or f"no answer within {CONNECT_S:.0f} s"
                raise BenchError(f"{target.url} can't be reached: {reason}", UNREACHABLE) from error
        reader, writer = self._streams
        sent = time.perf_counter()
        writer.write(self._target.head(method, path, len(body), keep=keep) + body)
        return sent, reader

    async def exchange(self, method: str, path: str, body: bytes) -> tuple[dict[str, Any], ClientRecord]:
        """Send a request and return its JSON reply. Raises `BenchError`."""
        sent, reader = await self.send(method, path, body, keep=True)
        reply, payload = _Reply(), b""
        try:
            while not reply.is_complete and (data := await reader.read(1 << 16)):
                payload += reply.feed(data)
        except ConnectionError:
            pass  # handled below, as the payload is incomplete
        done = time.perf_counter()
        if not (reply.is_complete and reply.keeps_open):
            self.close()
        if not (status := reply.get_status_code()):
            raise BenchError(f"{self._target.url}{path}: the server closed the connection", BAD_REPLY)
        if status != 200:
            raise refusal(status, payload)
        value, record = _json_object(payload), ClientRecord(sent=sent, events=[done], done=done)
        _read_event(value, record)
        return value, record

    def close(self) -> None:
        """Close the connection. Servers should then stop generating."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


@dataclass(frozen=True, slots=True)
class ModelClient:
    """Sends requests to one model.

    ``extra`` is merged into each body; None removes a field. ``limit_s`` is the time limit of a request.
    """

    target: Target
    model: str = ""
    chat: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    limit_s: float = 600.0

    def body(self, turns: Sequence[str], n_predict: int, *, stream: bool = True, **fields: object) -> Fields:
        """Return a greedy request that generates `n_predict` tokens. `turns` alternate between user and assistant."""
        body: Fields = {"model": self.model, "max_tokens": n_predict, "temperature": 0, "ignore_eos": True}
        if self.chat:
            roles = ("user", "assistant")
            body["messages"] = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
        else:
            body["prompt"] = "".join(turns)
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | fields

    @property
    def path(self) -> str:
        """The path of requests with `body`."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    async def stream(self, body: Fields) -> ClientRecord:
        """Run a stream to its end and return its record. Raises `BenchError`."""
        return await self.start(body).finished()

    async def streams(self, bodies: Sequence[Fields], n_parallel: int = 0) -> list[ClientRecord]:
        """Run streams, at most `n_parallel` at a time (0 = all)."""
        semaphore = asyncio.Semaphore(n_parallel or max(1, len(bodies)))

        async def run_stream(body: Fields) -> ClientRecord:
            async with semaphore:
                return await self.stream(body)

        return await all_of(run_stream(body) for body in bodies)

    def start(self, body: Fields) -> "LiveStream":
        """Start a stream in a new task."""
        return LiveStream(self, self.payload(body))

    async def exchange(self, method: str, path: str, body: Fields | None = None) -> tuple[dict[str, Any], ClientRecord]:
        """Send a request without streaming and return its reply. Raises `BenchError`."""
        async with Connection(self.target) as connection:
            return await self.within(connection.exchange(method, path, self.payload(body) if body else b""))

    def payload(self, body: Fields) -> bytes:
        """Return a body merged with ``extra`` as JSON."""
        merged = {name: value for name, value in {**body, **self.extra}.items() if value is not None}
        return json.dumps(merged).encode()

    async def within(self, call: Awaitable[T]) -> T:
        """Return the result of `call`. Raises `BenchError` after ``limit_s``."""
        try:
            async with asyncio.timeout(self.limit_s):
                return await call
        except TimeoutError as error:
            raise BenchError(f"no reply within {self.limit_s:.0f} s") from error


class LiveStream:
    """A streamed request in progress. ``running`` is set after a few tokens, or at its end."""

    def __init__(self, client: ModelClient, payload: bytes) -> None:
        self.running = asyncio.Event()
        self._sent = 0.0
        self._arrivals: list[Arrival] = []
        self._closed = False
        self._task = asyncio.create_task(client.within(self._receive(client, payload)))

    async def _receive(self, client: ModelClient, payload: bytes) -> None:
        try:
            async with Connection(client.target) as connection:
                self._sent, reader = await connection.send("POST", client.path, payload, keep=False)
                while data := await reader.read(1 << 16):
                    self._arrivals.append((time.perf_counter(), data))
                    if len(self._arrivals) >= STARTED_ARRIVALS:
                        self.running.set()
        except ConnectionError:
            pass  # `read_stream` checks whether the reply is complete
        finally:
            self.running.set()

    def close(self) -> None:
        """Close the connection, unless the stream has ended."""
        self._closed = not self._task.done()
        self._task.cancel()

    async def finished(self) -> ClientRecord:
        """Wait for the end and return the record. Raises `BenchError`."""
        try:
            await self._task
        except asyncio.CancelledError:
            if not self._closed:
                self._task.cancel()  # the caller was cancelled
                raise
        return read_stream(self._sent, self._arrivals, closed=self._closed)


def read_stream(sent: float, arrivals: Sequence[Arrival], *, closed: bool = False) -> ClientRecord:
    """Parse a streamed reply. `closed`: the client closed the connection. Raises `BenchError`."""
    reply = _Reply()
    parts = [(read_at, reply.feed(data)) for read_at, data in arrivals]
    if not (status := reply.get_status_code()):
        raise BenchError("the server closed the connection before a reply", BAD_REPLY)
    if status != 200:
        raise refusal(status, b"".join(part for _, part in parts))
    record, rest, ended = ClientRecord(sent=sent, done=arrivals[-1][0]), b"", closed
    for read_at, part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for payload in (line[5:].strip() for line in lines if line.startswith(b"data:")):
            ended = ended or payload == b"[DONE]"
            if payload not in (b"", b"[DONE]") and _read_event(_json_object(payload), record):
                record.events.append(read_at)
    if not ended:
        raise BenchError(f"a stream ended without [DONE]: ...{_text(arrivals[-1][1][-_MAX_SHOWN:])}", BAD_REPLY)
    record.n_predicted = record.n_predicted or len(record.events)
    return record


def _json_object(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except ValueError as error:
        raise BenchError(f"not JSON: {_text(payload)}", BAD_REPLY) from error
    if not isinstance(value, dict) or value.get("error"):
        raise BenchError(f"the server answered: {_message(payload)}", BAD_REPLY)
    return value


def _read_event(value: dict[str, Any], record: ClientRecord) -> bool:
    """Add an event or a whole reply to `record`. Return whether it contains text.

    Token counts are those of ``usage`` (OpenAI) and ``timings`` (llama-server). If ``usage`` has no
    ``prompt_tokens_details``, the number of cached tokens is unknown, not 0.
    """
    choices, usage, timings = value.get("choices"), value.get("usage"), value.get("timings")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("delta") or choice.get("message") or {}
    parts = (choice.get("text"), *(message.get(name) for name in ("reasoning_content", "reasoning", "content")))
    text = "".join(part for part in parts if isinstance(part, str))
    record.text += text
    if isinstance(usage, dict):
        record.n_predicted = int(usage.get("completion_tokens") or record.n_predicted)
        if isinstance(usage.get("prompt_tokens"), int):
            record.n_prompt = n_prompt = usage["prompt_tokens"]
            details = usage.get("prompt_tokens_details")
            if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
                record.n_computed = n_prompt - details["cached_tokens"]
    if isinstance(timings, dict) and isinstance(timings.get("prompt_n"), int):
        record.n_computed = timings["prompt_n"]
        record.n_prompt = timings["prompt_n"] + int(timings.get("cache_n") or 0)
        record.n_predicted = int(timings.get("predicted_n") or record.n_predicted)
    return bool(text)


def refusal(status: int, body: bytes) -> BenchError:
    """Return the error for a reply with an error status."""
    if status in (401, 403):
        return BenchError(f"the server refuses the API key ({status}): {_message(body)}", REFUSED)
    if status == 404:
        return BenchError(f"the server has no such model or path (404): {_message(body)}", UNKNOWN_MODEL)
    return BenchError(f"the server answered {status}: {_message(body)}", BAD_REPLY)


def _message(body: bytes) -> str:
    """Return the message of an error body of OpenAI, Ollama or FastAPI, otherwise the body."""
    try:
        value = json.loads(body)
    except ValueError:
        return _text(body) or "no reason given"
    if isinstance(value, dict):
        error = value.get("error") or value.get("detail") or value.get("message") or value
        value = error.get("message", error) if isinstance(error, dict) else error
    return str(value)[:_MAX_SHOWN]


def _text(raw: bytes) -> str:
    return raw[:_MAX_SHOWN].decode(errors="replace").strip()


async def all_of(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the calls like `asyncio.gather`. The first failure cancels the others and is raised unchanged."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
