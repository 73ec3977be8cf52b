"""A client that costs next to nothing: raw sockets, one timestamp per arrival, parsing only after the end.

Run as a process of its own, ``python -m benchmarks.client < job.json > records.json``, so that what it does cannot
slow the server's process down by more than the little that a core takes.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import run
from typing import Any, Literal

EVENT = b"data: {"
DONE = b"data: [DONE]"
STARTED_EVENTS = 8  # a stream runs when it has sent so many


@dataclass(slots=True)
class Job:
    """What to send. ``streams`` are started at once, at most ``n_parallel`` at a time (0 = all).

    ``newcomer`` is sent when every stream runs, and ends the job. ``kind`` "requests" sends the bodies without
    streaming over ``n_parallel`` connections that are kept.
    """

    port: int
    path: str
    bodies: list[dict[str, Any]]
    kind: Literal["streams", "requests"] = "streams"
    n_parallel: int = 0
    newcomer: dict[str, Any] | None = None


@dataclass(slots=True)
class Record:
    """One request as the client saw it. Times are seconds on one clock that starts with the job."""

    sent: float = 0.0
    events: list[float] = field(default_factory=list)  # of token events: the closing event is not one
    done: float = 0.0
    n_predicted: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    predicted_per_second: float = 0.0  # what the server itself says


class ReplyError(Exception):
    """The server answered something else than was asked for."""


class Stream(asyncio.Protocol):
    """One streamed POST on its own connection."""

    def __init__(self, request: bytes, clock_start: float) -> None:
        loop = asyncio.get_running_loop()
        self.record = Record()
        self.running: asyncio.Future[None] = loop.create_future()
        self.finished: asyncio.Future[None] = loop.create_future()
        self._request = request
        self._clock_start = clock_start
        self._chunks: list[bytes] = []
        self._tail = b""
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.record.sent = time.perf_counter() - self._clock_start
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Stamp the events that arrived; a marker may lie across two arrivals."""
        now = time.perf_counter() - self._clock_start
        self._chunks.append(data)
        self.record.events += [now] * (self._tail[-(len(EVENT) - 1) :] + data).count(EVENT)
        seen = self._tail + data
        ended = DONE in seen
        self._tail = seen[-(len(DONE) - 1) :]
        if len(self.record.events) >= STARTED_EVENTS and not self.running.done():
            self.running.set_result(None)
        if ended:
            self.record.done = now
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed by either side: the stream is over."""
        if not self.finished.done():
            self.finished.set_result(None)
        if not self.running.done():
            self.running.set_result(None)

    def close(self) -> None:
        """Hang up; the server should free the slot."""
        if self._transport is not None:
            self._transport.close()

    def result(self, cut: bool = False) -> Record:
        """Read what the server said of itself. `cut`: the client hung up on purpose."""
        body = b"".join(self._chunks)
        if not body.startswith(b"HTTP/1.1 200") or not (cut or self.record.done):
            raise ReplyError(body[:2000].decode(errors="replace"))
        if not cut:
            self.record.events.pop()  # the one that only says why it ended
            _read_timings(body, self.record)
        return self.record


def _read_timings(body: bytes, record: Record) -> None:
    def last(name: bytes) -> float:
        found = re.findall(rb'"' + name + rb'": ?([0-9.e+]+)', body)
        if not found:
            raise ReplyError(f"no {name.decode()} in {body[-2000:].decode(errors='replace')}")
        return float(found[-1])

    record.n_predicted = int(last(b"predicted_n"))
    record.n_prompt = int(last(b"prompt_n"))
    record.n_cached = int(last(b"cache_n"))
    record.predicted_per_second = last(b"predicted_per_second")


def _http(job: Job, body: dict[str, Any], close: bool) -> bytes:
    payload = json.dumps(body).encode()
    head = (
        f"POST {job.path} HTTP/1.1\r\nHost: 127.0.0.1:{job.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: {'close' if close else 'keep-alive'}\r\n\r\n"
    )
    return head.encode() + payload


async def _run_streams(job: Job, start: float) -> list[Record]:
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(job.n_parallel or len(job.bodies))

    async def open_stream(body: dict[str, Any]) -> Stream:
        request = _http(job, body, close=True)
        return (await loop.create_connection(lambda: Stream(request, start), "127.0.0.1", job.port))[1]

    async def stream(body: dict[str, Any]) -> Record:
        async with room:
            opened = await open_stream(body)
            await opened.finished
        return opened.result()

    if job.newcomer is None:
        return list(await asyncio.gather(*(stream(body) for body in job.bodies)))
    streams = await asyncio.gather(*(open_stream(body) for body in job.bodies))
    await asyncio.gather(*(opened.running for opened in streams))
    newcomer = await open_stream(job.newcomer)
    await newcomer.finished
    for opened in streams:
        opened.close()
    await asyncio.gather(*(opened.finished for opened in streams))
    return [newcomer.result(), *(opened.result(cut=not opened.record.done) for opened in streams)]


async def _run_requests(job: Job, start: float) -> list[Record]:
    waiting = list(reversed(job.bodies))
    records: list[Record] = []

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", job.port)
        while waiting:
            record = Record(sent=time.perf_counter() - start)
            writer.write(_http(job, waiting.pop(), close=False))
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            record.done = time.perf_counter() - start
            if not head.startswith(b"HTTP/1.1 200"):
                raise ReplyError((head + body).decode(errors="replace"))
            record.events = [record.done]
            _read_timings(body, record)
            records.append(record)
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(connection() for _ in range(job.n_parallel or 1)))
    return records


async def run_job(job: Job) -> list[Record]:
    """Send the job's requests; one record each. With a newcomer, its record comes first."""
    start = time.perf_counter()
    return await (_run_streams if job.kind == "streams" else _run_requests)(job, start)


def run_apart(job: Job, timeout_s: float) -> list[Record]:
    """`run_job` in a process of its own."""
    finished = run(
        [sys.executable, "-m", "benchmarks.client"],
        cwd=Path(__file__).parents[1],
        input=json.dumps(asdict(job)),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,  # its last words say more than its status
    )
    if finished.returncode != 0:
        raise ReplyError(finished.stderr[-3000:])
    return [Record(**record) for record in json.loads(finished.stdout)]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all lie at or below (nearest rank); 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))] if ordered else 0.0


if __name__ == "__main__":
    records = asyncio.run(run_job(Job(**json.load(sys.stdin))))
    print(json.dumps([asdict(record) for record in records]))
