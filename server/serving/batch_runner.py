"""Runs the requests of batches with the capacity that interactive requests leave.

Batch requests have the engine's background priority (`server.engine.request.BACKGROUND_PRIORITY`): interactive requests
preempt them and are prefilled first. Requests with a common prompt prefix run one after the other. The batches of an
owner run one after the other, except that one whose requests are refused lets those of other models pass. Owners take
turns.

The server that created a batch runs it. If that server stops, another one with the same state file takes it over.
"""

import asyncio
import contextlib
import logging
import time
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import merge
from http import HTTPStatus
from io import BytesIO

import anyio
import orjson

from server.dialects.common import random_id
from server.dialects.fields import refuse_deep
from server.dialects.usage import Usage
from server.engine.request import BACKGROUND_PRIORITY
from server.errors import InvalidRequest, LlamapoolError, invalid
from server.state.batches import BatchLine, BatchObjects, Outcome
from server.state.objects import Json, Objects
from server.transport.body import MAX_VALUES, TooManyValues, check_n_values
from server.transport.internal import InternalReply

logger = logging.getLogger(__name__)

POLL_S = 2.0
"""Interval in seconds at which a server looks for batches that another server has abandoned or cancelled."""
_PAGE = 64  # requests fetched from the state in one query
_SORT_CHUNK = 4096  # requests sorted in one call, which holds the GIL
_RETRIED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_RETRY_AFTER_S = 1.0
MAX_REQUESTS = 100_000
"""Maximum requests of a batch."""
MAX_ERRORS = 100
"""Maximum invalid lines of an input file that a batch reports."""
_OFF_FIELDS = {"stream": False, "background": False}  # replaced where a body has them: not every endpoint knows them
_PRIORITY = {"priority": BACKGROUND_PRIORITY}

Call = Callable[[str, str, bytes], Awaitable[InternalReply]]
"""Sends an internal request on behalf of an API key. Arguments: the key's name, the path, the JSON body."""


@dataclass(slots=True)
class BatchRunner:
    """The batches of all owners. Used on the event loop."""

    state: BatchObjects
    files: Objects  # result files
    call: Call
    n_parallel: Callable[[], int]  # maximum concurrent requests
    may_run: Callable[[Json], bool]  # whether this server has a batch's key and models
    keep_s: float | None = None  # lifetime of an ended batch and its files, None = until the client deletes them
    _running: dict[tuple[str, str], asyncio.Task[None]] = field(default_factory=dict)  # and tasks that a bug has ended
    _limits: dict[tuple[str, str], asyncio.Timeout] = field(default_factory=dict)  # expiry while requests run
    _queues: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)  # models of batches by owner and id
    _refused: set[str] = field(default_factory=set)  # ids of batches whose last request was refused
    _moved: asyncio.Event = field(default_factory=asyncio.Event)  # replaced when one of the two changes
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _capacity: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, 1))  # a FIFO queue

    def wake(self) -> None:
        """Make `run` look for added or cancelled batches now."""
        self._woken.set()

    async def run(self) -> None:
        """Run the unfinished batches of this server and of servers that have stopped. Never returns."""
        try:
            while True:
                self._woken.clear()
                try:
                    await self._look()
                except LlamapoolError as error:
                    logger.error("batches wait: %s", error.message)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), POLL_S)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _look(self) -> None:
        """Start batches that are not running, and stop cancelled ones."""
        await self.state.take_over("batch", self.may_run)
        for owner, batch in await self.state.unfinished("batch"):
            name = owner, batch["id"]
            if name not in self._running:
                task = self._running[name] = asyncio.create_task(self._run_batch(owner, batch), name="a batch")
                task.add_done_callback(partial(self._ended, name))
            limit = self._limits.get(name)
            if batch["status"] == "cancelling" and limit is not None and not limit.expired():
                limit.reschedule(0)

    def _ended(self, name: tuple[str, str], task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, LlamapoolError):  # the state could not be used; `_look` starts the batch again
            logger.error("a batch waits: %s", error.message)
        elif error is not None:
            logger.error("a batch stopped until the next start. A bug: report it with what follows", exc_info=error)
            return
        del self._running[name]

    async def _run_batch(self, owner: str, batch: Json) -> None:
        name, limit = (owner, batch["id"]), asyncio.timeout(max(batch["expires_at"] - time.time(), 0))
        if batch["status"] == "in_progress":
            try:
                async with limit:
                    self._limits[name] = limit
                    await self._run_lines(owner, batch)
            except TimeoutError:  # the batch has expired or was cancelled
                if not limit.expired():
                    raise
            except ExceptionGroup as failed:
                raise failed.exceptions[0] from None
            finally:
                self._limits.pop(name, None)
        await self._finalize(owner, batch["id"])

    async def _run_lines(self, owner: str, batch: Json) -> None:
        """Run every request without a result, several concurrently, after the owner's earlier batches."""
        last, started, queue = -1, set[asyncio.Task[None]](), self._queues.setdefault(owner, {})
        queue[batch["id"]] = frozenset(batch["models"])
        try:
            async with asyncio.TaskGroup() as group:
                await self._turn(queue, batch["id"])
                while page := await self.state.pending_lines(owner, batch["id"], last, _PAGE):
                    for _, line in page:
                        while len(started) >= self._n_concurrent():
                            await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
                        await self._turn(queue, batch["id"])
                        task = group.create_task(self._run_line(owner, batch, line))
                        started.add(task)
                        task.add_done_callback(started.discard)
                    last = page[-1][0]
        finally:
            del queue[batch["id"]]
            self._set_refused(batch["id"], is_refused=False)

    async def _turn(self, queue: Mapping[str, frozenset[str]], batch_id: str) -> None:
        """Wait until each earlier batch of the queue is refused, or waits for such a batch, and has other models."""

        def is_next() -> bool:
            refused = set[str]()
            for each, models in queue.items():
                may_run = models.isdisjoint(refused)
                if each == batch_id or (may_run and each not in self._refused):
                    break
                refused |= models
            return each == batch_id and may_run

        while not is_next():
            await self._moved.wait()

    def _set_refused(self, batch_id: str, *, is_refused: bool) -> None:
        (self._refused.add if is_refused else self._refused.discard)(batch_id)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _n_concurrent(self) -> int:
        """Return how many requests of all batches may run, after updating the limiter."""
        self._capacity.total_tokens = max(self.n_parallel(), 1)
        return int(self._capacity.total_tokens)

    async def _run_line(self, owner: str, batch: Json, line: BatchLine) -> None:
        """Run a request, retrying while the server has no capacity for it, and store the result.

        A request that waits for its retry leaves its place to other batches.
        """
        while True:
            async with self._capacity:
                reply = await self.call(batch["key_name"], batch["endpoint"], line.body)
                self._n_concurrent()  # the request may have loaded a model
            is_refused = reply.status in _RETRIED and bool(reply.headers)  # no headers: refused because of its key
            if is_refused is not (batch["id"] in self._refused):
                self._set_refused(batch["id"], is_refused=is_refused)
            if not is_refused:
                break
            after = reply.headers.get(b"retry-after", b"")
            await asyncio.sleep(float(after) if after.isdigit() else _RETRY_AFTER_S)
        result = {
            "status_code": reply.status,
            "request_id": reply.headers.get(b"x-request-id", b"").decode(),
            "body": orjson.Fragment(reply.body),
        }
        outcome: Outcome = "completed" if reply.status == HTTPStatus.OK else "failed"
        await self.state.store_result(owner, batch["id"], line.number, outcome, result)

    async def _finalize(self, owner: str, batch_id: str) -> None:
        """Write the result files and end the batch. Can be repeated after a crash."""

        def finalizing(body: Json) -> Json:
            now = int(time.time())
            is_cancelled, is_expired = body["status"] == "cancelling", now >= body["expires_at"]
            final = "cancelled" if is_cancelled else "expired" if is_expired else "completed"
            return {"final_status": final, **body, "status": "finalizing", "finalizing_at": now}

        batch = await self.state.update(owner, "batch", batch_id, finalizing)
        if batch is None:  # deleted meanwhile
            return
        status = batch["final_status"]
        code = "batch_cancelled" if status == "cancelled" else "batch_expired"
        unsent = {"error": {"code": code, "message": "the batch ended before this request was run"}}
        await self.state.end_pending_lines(owner, batch_id, unsent)
        ended: Json = {"status": status, "request_counts": await self.state.line_counts(owner, batch_id)}
        usage = Usage()
        if batch["api"] == "openai":
            ended["output_file_id"], usage = await self._write_file(owner, batch, "output", ("completed",))
            ended["error_file_id"], usage_of_errors = await self._write_file(
                owner, batch, "error", ("failed", "unsent")
            )
            usage += usage_of_errors
        ended["usage"] = usage.responses()
        ended[f"{status}_at"] = now = int(time.time())
        expires_at = None if self.keep_s is None else now + self.keep_s
        await self.state.update(owner, "batch", batch_id, lambda body: {**body, **ended}, expires_at=expires_at)
        if batch["api"] == "openai":
            await self.state.remove_lines(owner, batch_id)

    async def _write_file(
        self, owner: str, batch: Json, kind: str, outcomes: Collection[str]
    ) -> tuple[str | None, Usage]:
        """Write the results with these outcomes to a file. Return its id (None without results) and their usage."""
        usage = Usage()

        def line(custom_id: str, result: Json, outcome: Outcome) -> Json | None:
            nonlocal usage
            if outcome not in outcomes:
                return None
            body = result.get("body")
            usage += Usage.read(body.get("usage") if isinstance(body, dict) else None)
            return {
                "id": f"batch_req_{random_id()}",
                "custom_id": custom_id,
                "response": result if "status_code" in result else None,
                "error": result.get("error"),
            }

        data = await self.state.format_results(owner, batch["id"], line)
        if not data:
            return None, usage
        keep_s = batch["output_expires_after_s"] or self.keep_s
        expires_at = None if keep_s is None else int(time.time() + keep_s)
        file = new_file(f"{batch['id']}_{kind}.jsonl", "batch_output", len(data), expires_at)
        file["id"] = f"file-{batch['id'].removeprefix('batch_')}{kind}"  # the same id after a crash
        await self.files.put(
            *(owner, "file", file), data=data, label="batch_output", expires_at=expires_at, within_quota=False
        )
        return str(file["id"]), usage


def new_file(filename: str, purpose: str, n_bytes: int, expires_at: int | None = None) -> Json:
    """Return OpenAI's file object for a new file."""
    return {
        "id": f"file-{random_id()}",
        "object": "file",
        "bytes": n_bytes,
        "created_at": int(time.time()),
        "expires_at": expires_at,
        "filename": filename,
        "purpose": purpose,
        "status": "processed",
        "status_details": None,
    }


@dataclass(frozen=True, slots=True)
class BatchInput:
    """The parsed input of a new batch."""

    lines: list[BatchLine]  # the requests in the order in which they run
    errors: list[Json]  # invalid lines, as OpenAI's batch errors
    models: list[str | None]  # the values of ``model``


def check_number(n: int, param: str) -> None:
    """Raise `InvalidRequest` if a batch may not have `n` requests. `param`: the body's field with the requests."""
    if n > MAX_REQUESTS:
        raise invalid(param, f"a batch may have at most {MAX_REQUESTS} requests")


def read_lines(data: bytes, endpoint: str) -> BatchInput:
    """Parse a batch's input file, until `MAX_ERRORS` lines are invalid. Blocking, for a worker thread.

    Raises `InvalidRequest` for too many requests.
    """
    errors: list[Json] = []

    def requests() -> Iterator[tuple[int, str, Json]]:
        seen: set[str] = set()
        file = BytesIO(data)  # no list of all lines, which could take gigabytes
        file.seek(len(BOM_UTF8) if data.startswith(BOM_UTF8) else 0)
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            if len(errors) == MAX_ERRORS:
                break
            check_number(len(seen) + 1, "input_file_id")
            try:
                yield number, *_line(raw, endpoint, seen)
            except InvalidRequest as error:
                code = error.code or "invalid_value"
                errors.append({"code": code, "line": number, "message": error.message, "param": error.param})

    parsed = batch_input(requests(), errors, added={} if endpoint == "/v1/embeddings" else _PRIORITY)
    if not parsed.lines and not errors:
        errors.append({"code": "empty_file", "line": None, "message": "the file has no requests", "param": None})
    return parsed


def batch_input(
    requests: Iterable[tuple[int, str, Json]], errors: list[Json], added: Mapping[str, int] = _PRIORITY
) -> BatchInput:
    """Sort requests (number, custom id, body) by model and prompt, so that requests with a common prefix are adjacent.

    `added`: fields that each body gets. Blocking, for a worker thread. Bodies are serialized again, because parsed ones
    could take gigabytes.
    """
    models: set[str | None] = set()
    keyed = []
    for number, custom_id, body in requests:
        model = body.get("model")
        models.add(model if isinstance(model, str) else None)
        forced = {name: off for name, off in _OFF_FIELDS.items() if name in body}
        keyed.append((_prefix(body), number, BatchLine(number, custom_id, orjson.dumps({**body, **forced, **added}))))
    runs = (sorted(keyed[at : at + _SORT_CHUNK]) for at in range(0, len(keyed), _SORT_CHUNK))
    return BatchInput([line for _, _, line in merge(*runs)], errors, sorted(models, key=str))


def _prefix(body: Json) -> tuple[str, bytes]:
    """Return a sort key that is similar for prompts with a common prefix."""
    before = [body.get(name) for name in ("tools", "system", "instructions")]
    prompt = next((body[name] for name in ("messages", "input", "prompt") if name in body), None)
    return str(body.get("model")), orjson.dumps([before, prompt])


def _line(raw: bytes, endpoint: str, seen: set[str]) -> tuple[str, Json]:
    """Parse a line. Return its custom id and body. Raises `InvalidRequest`."""
    try:
        check_n_values(raw)
        request = orjson.loads(raw)
    except TooManyValues:
        raise InvalidRequest(f"the line has more than {MAX_VALUES} values", None, "invalid_json_line") from None
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the line is not valid JSON: {error}", None, "invalid_json_line") from None
    if not isinstance(request, dict):
        raise InvalidRequest("the line must be a JSON object", None, "invalid_json_line")
    custom_id = request.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise InvalidRequest("custom_id must be a text", "custom_id", "missing_required_parameter")
    if custom_id in seen:
        raise InvalidRequest(f"two requests have the custom_id {custom_id[:80]!r}", "custom_id", "duplicate_custom_id")
    seen.add(custom_id)
    if request.get("method") != "POST":
        raise InvalidRequest("method must be POST", "method", "invalid_method")
    if request.get("url") != endpoint:
        raise InvalidRequest(f"url must be the batch's endpoint, {endpoint}", "url", "mismatched_url")
    if not isinstance(request.get("body"), dict):
        raise InvalidRequest("body must be an object", "body", "missing_required_parameter")
    refuse_deep({"body": request["body"]})
    return custom_id, request["body"]
