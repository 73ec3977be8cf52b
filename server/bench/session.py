"""Requests in flight at one address: streams, each on its own connection, and short requests over kept ones."""

import asyncio
import json
from collections.abc import Awaitable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from server.bench.connection import Arrival, Connection, WholeReply
from server.bench.errors import BadReply, BenchError
from server.bench.reply import ClientRecord, read_answer, read_json, read_stream
from server.bench.target import Target

STARTED_EVENTS = 8  # a stream runs when it has sent so many
_EVENT, _DONE = b"data:", b"data: [DONE]"

Fields = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelClient:
    """Sends requests to one model.

    ``extra`` is merged into every body, where None removes a field; ``limit_s`` bounds each request.
    """

    target: Target
    model: str = ""
    chat: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    limit_s: float = 600.0

    def body(self, turns: Sequence[str], n_predict: int, *, stream: bool = True, **fields: object) -> Fields:
        """A greedy request of exactly `n_predict` tokens; `turns` are the user's and the model's, in turn."""
        body: Fields = {"model": self.model, "max_tokens": n_predict, "temperature": 0, "ignore_eos": True}
        if self.chat:
            roles = ("user", "assistant")
            body["messages"] = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
        else:
            body["prompt"] = "".join(turns)
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | fields

    def as_chat(self) -> Self:
        """The same, asking as a chat."""
        return replace(self, chat=True)

    @property
    def path(self) -> str:
        """Where bodies of `body` go."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    async def stream(self, body: Fields, *, path: str = "") -> ClientRecord:
        """One streamed request to its end. Raises `BenchError`."""
        live = self.start(body, path=path)
        return await live.finished()

    async def streams(self, bodies: Sequence[Fields], n_parallel: int = 0) -> list[ClientRecord]:
        """All of them, started together, at most `n_parallel` at a time (0 = all)."""
        room = asyncio.Semaphore(n_parallel or max(1, len(bodies)))

        async def one(body: Fields) -> ClientRecord:
            async with room:
                return await self.stream(body)

        return await _all(one(body) for body in bodies)

    def start(self, body: Fields, *, path: str = "") -> "LiveStream":
        """A stream that goes on by itself."""
        return LiveStream(self, path or self.path, self._payload(body))

    async def post(self, path: str, body: Fields) -> tuple[dict[str, Any], ClientRecord]:
        """One request and the object it answers. Raises `BenchError`."""
        async with Connection(self.target) as connection:
            answer = await self._within(connection.exchange("POST", path, self._payload(body)))
        return read_json(answer), ClientRecord(sent=answer.sent, done=answer.done)

    async def get(self, path: str) -> dict[str, Any]:
        """The object at a path. Raises `BenchError`."""
        async with Connection(self.target) as connection:
            return read_json(await self._within(connection.exchange("GET", path, b"")))

    async def requests(self, bodies: Sequence[Fields], n_parallel: int) -> list[ClientRecord]:
        """Short requests, not streamed, over `n_parallel` connections that are kept."""
        waiting = [self._payload(body) for body in reversed(bodies)]
        records: list[ClientRecord] = []

        async def client() -> None:
            async with Connection(self.target) as connection:
                while waiting:
                    answer = await self._within(connection.exchange("POST", self.path, waiting.pop()))
                    records.append(read_answer(answer))

        await _all(client() for _ in range(n_parallel))
        return records

    def _payload(self, body: Fields) -> bytes:
        merged = {name: value for name, value in {**body, **self.extra}.items() if value is not None}
        return json.dumps(merged).encode()

    async def _within(self, call: Awaitable[WholeReply]) -> WholeReply:
        try:
            async with asyncio.timeout(self.limit_s):
                return await call
        except TimeoutError as error:
            raise BenchError(f"no reply within {self.limit_s:.0f} s") from error


class LiveStream:
    """A streamed request that was started; `close` hangs up before its end."""

    def __init__(self, session: ModelClient, path: str, payload: bytes) -> None:
        self.running = asyncio.Event()  # it has sent a few tokens, or has ended
        self._session = session
        self._connection = Connection(session.target)
        self._sent = 0.0
        self._arrivals: list[Arrival] = []
        self._cut = False
        self._task = asyncio.create_task(self._run(path, payload))

    async def _run(self, path: str, payload: bytes) -> None:
        try:
            async with asyncio.timeout(self._session.limit_s):
                await self._receive(path, payload)
        except TimeoutError as error:
            raise BenchError(f"a stream did not end within {self._session.limit_s:.0f} s") from error
        finally:
            self.running.set()
            self._connection.close()

    async def _receive(self, path: str, payload: bytes) -> None:
        self._sent = await self._connection.send("POST", path, payload, keep=False)
        n_events, tail = 0, b""
        while (arrival := await self._connection.read()).data:
            self._arrivals.append(arrival)
            seen = tail + arrival.data  # a marker may lie across two arrivals
            n_events += seen.count(_EVENT) - tail.count(_EVENT)
            if n_events >= STARTED_EVENTS:
                self.running.set()
            if _DONE in seen:
                return
            tail = seen[-(len(_DONE) - 1) :]

    def close(self) -> None:
        """Hang up, unless it has ended."""
        self._cut = not self._task.done()
        self._task.cancel()

    async def finished(self) -> ClientRecord:
        """Wait for the end; what was seen. Raises `BenchError`."""
        try:
            await self._task
        except asyncio.CancelledError:
            if not self._cut:
                self._task.cancel()  # the one who waits was cancelled
                raise
        if not self._arrivals:
            raise BadReply("the server hung up without a reply")
        return read_stream(self._sent, self._arrivals, cut=self._cut)


async def _all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the calls like `asyncio.gather`. The first failure cancels the others and is raised unchanged."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
