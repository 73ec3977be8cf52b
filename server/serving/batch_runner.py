"""Runs the requests of batches with the capacity that live clients leave.

Requests of a batch have the engine's background priority (`server.engine.request.BACKGROUND_PRIORITY`): a live request
takes a slot from them and is prefilled without them. They are run in an order that keeps equal prompt prefixes
together. Each owner's batches run one after the other, and owners take turns.

A batch is run by the server that created it. When that server has ended, another one on the same state file takes the
batch over.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
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
"""Interval at which a server looks for batches that another one has left or cancelled."""
_PAGE = 64  # requests that are fetched from the state at once
_SORTED = 4096  # requests that are sorted at once: a sort holds the GIL
_RETRIED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_RETRY_AFTER_S = 1.0
MAX_REQUESTS = 100_000
"""Of one batch."""
MAX_ERRORS = 100
"""Wrong lines of an input file that a batch reports."""
_FORCED = {"stream": False, "background": False, "priority": BACKGROUND_PRIORITY}

Call = Callable[[str, str, bytes], Awaitable[InternalReply]]
"""Sends a request in the name of a key: the key's name, path, JSON body."""


@dataclass(slots=True)
class BatchRunner:
    """The batches of all owners. Used on the event loop."""

    state: BatchObjects
    files: Objects  # their results
    call: Call
    n_parallel: Callable[[], int]  # how many requests may run at once
    may_run: Callable[[Json], bool]  # whether this server knows a batch's key and models
    keep_s: float | None = None  # how long an ended batch and its files are kept, None = as long as the client wants
    _running: dict[tuple[str, str], asyncio.Task[None]] = field(default_factory=dict)  # and those that met a bug
    _limits: dict[tuple[str, str], asyncio.Timeout] = field(default_factory=dict)  # until their requests end
    _turns: dict[str, asyncio.Lock] = field(default_factory=dict)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _places: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, 1))  # waited for in order

    def wake(self) -> None:
        """Look for batches that were added or cancelled."""
        self._woken.set()

    async def run(self) -> None:
        """Run every unfinished batch of this server, and those of servers that have ended. Endless."""
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
        """Start what is not running yet, and stop what was cancelled."""
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
            except TimeoutError:  # it has expired or was cancelled
                if not limit.expired():
                    raise
            except ExceptionGroup as failed:
                raise failed.exceptions[0] from None
            finally:
                self._limits.pop(name, None)
        await self._finalize(owner, batch["id"])

    async def _run_lines(self, owner: str, batch: Json) -> None:
        """Run every request without a result, several at once, after the owner's earlier batches."""
        last = -1
        async with self._turns.setdefault(owner, asyncio.Lock()), asyncio.TaskGroup() as group:
            while page := await self.state.pending_lines(owner, batch["id"], last, _PAGE):
                for _, line in page:
                    place = object()
                    self._places.total_tokens = max(self.n_parallel(), 1)
                    await self._places.acquire_on_behalf_of(place)
                    group.create_task(self._run_line(owner, batch, line)).add_done_callback(partial(self._leave, place))
                last = page[-1][0]

    def _leave(self, place: object, _: asyncio.Task[None]) -> None:
        self._places.total_tokens = max(self.n_parallel(), 1)
        self._places.release_on_behalf_of(place)

    async def _run_line(self, owner: str, batch: Json, line: BatchLine) -> None:
        """Run a request, again and again while the server has no capacity for it, and store the result."""
        call = partial(self.call, batch["key_name"], batch["endpoint"], line.body)
        while (reply := await call()).status in _RETRIED and reply.headers:  # without any it was refused for its key
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
        """Write the results where the client reads them, and end the batch. Repeatable after a crash."""

        def finalizing(body: Json) -> Json:
            now = int(time.time())
            is_cancelled, is_late = body["status"] == "cancelling", now >= body["expires_at"]
            final = "cancelled" if is_cancelled else "expired" if is_late else "completed"
            return {"final_status": final, **body, "status": "finalizing", "finalizing_at": now}

        batch = await self.state.update(owner, "batch", batch_id, finalizing)
        if batch is None:  # deleted meanwhile
            return
        status = batch["final_status"]
        code = "batch_cancelled" if status == "cancelled" else "batch_expired"
        unsent = {"error": {"code": code, "message": "the batch ended before this request was run"}}
        await self.state.end_pending_lines(owner, batch_id, unsent)
        ended: Json = {"status": status, "request_counts": await self.state.line_counts(owner, batch_id)}
        used = Usage()
        if batch["api"] == "openai":
            ended["output_file_id"], used = await self._write_file(owner, batch, "output", ("completed",))
            ended["error_file_id"], more = await self._write_file(owner, batch, "error", ("failed", "unsent"))
            used += more
        ended["usage"] = used.responses()
        ended[f"{status}_at"] = now = int(time.time())
        expires_at = None if self.keep_s is None else now + self.keep_s
        await self.state.update(owner, "batch", batch_id, lambda body: {**body, **ended}, expires_at=expires_at)
        if batch["api"] == "openai":
            await self.state.remove_lines(owner, batch_id)

    async def _write_file(
        self, owner: str, batch: Json, kind: str, outcomes: Collection[str]
    ) -> tuple[str | None, Usage]:
        """Write the results with these outcomes as a file. Return its id, None if there are none, and their usage."""
        used = Usage()

        def line(custom_id: str, result: Json, outcome: Outcome) -> Json | None:
            nonlocal used
            if outcome not in outcomes:
                return None
            body = result.get("body")
            used += Usage.read(body.get("usage") if isinstance(body, dict) else None)
            return {
                "id": f"batch_req_{random_id()}",
                "custom_id": custom_id,
                "response": result if "status_code" in result else None,
                "error": result.get("error"),
            }

        data = await self.state.written_results(owner, batch["id"], line)
        if not data:
            return None, used
        keep_s = batch["output_expires_after_s"] or self.keep_s
        expires_at = None if keep_s is None else int(time.time() + keep_s)
        file = new_file(f"{batch['id']}_{kind}.jsonl", "batch_output", len(data), expires_at)
        file["id"] = f"file-{batch['id'].removeprefix('batch_')}{kind}"  # the same after a crash
        await self.files.put(
            *(owner, "file", file), data=data, label="batch_output", expires_at=expires_at, within_quota=False
        )
        return str(file["id"]), used


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
    """The requests of a new batch in the order in which they run, and the models that it names."""

    lines: list[BatchLine]
    errors: list[Json]  # of its file, as OpenAI's batch errors
    models: list[str | None]


def check_number(n: int, param: str) -> None:
    """Raise `InvalidRequest` for more requests than a batch may have. `param`: the field with them."""
    if n > MAX_REQUESTS:
        raise invalid(param, f"a batch may have at most {MAX_REQUESTS} requests")


def read_lines(data: bytes, endpoint: str) -> BatchInput:
    """Read a batch's input file, up to `MAX_ERRORS` wrong lines. Blocking, for a worker thread. Raises `InvalidRequest`
    for too many requests.
    """
    errors: list[Json] = []

    def requests() -> Iterator[tuple[int, str, Json]]:
        seen: set[str] = set()
        for number, raw in enumerate(BytesIO(data), 1):  # a list of all lines could take gigabytes
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

    found = batch_input(requests(), errors)
    if not found.lines and not errors:
        errors.append({"code": "empty_file", "line": None, "message": "the file has no requests", "param": None})
    return found


def batch_input(requests: Iterable[tuple[int, str, Json]], errors: list[Json]) -> BatchInput:
    """Sort requests (number, custom id, body) by model and prompt, so that those with a common prefix follow each
    other. Blocking, for a worker thread. Each body is kept as JSON: in parts, all could take gigabytes."""
    models: set[str | None] = set()
    keyed = []
    for number, custom_id, body in requests:
        model = body.get("model")
        models.add(model if isinstance(model, str) else None)
        keyed.append((_prefix(body), number, BatchLine(number, custom_id, orjson.dumps({**body, **_FORCED}))))
    runs = (sorted(keyed[at : at + _SORTED]) for at in range(0, len(keyed), _SORTED))
    return BatchInput([line for _, _, line in merge(*runs)], errors, sorted(models, key=str))


def _prefix(body: Json) -> tuple[str, bytes]:
    before = [body.get(name) for name in ("tools", "system", "instructions")]
    prompt = next((body[name] for name in ("messages", "input", "prompt") if name in body), None)
    return str(body.get("model")), orjson.dumps([before, prompt])


def _line(raw: bytes, endpoint: str, seen: set[str]) -> tuple[str, Json]:
    """Return a line's custom id and body. Raises `InvalidRequest`."""
    try:
        check_n_values(raw)
        found = orjson.loads(raw)
    except TooManyValues:
        raise InvalidRequest(f"the line has more than {MAX_VALUES} values", None, "invalid_json_line") from None
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the line is not valid JSON: {error}", None, "invalid_json_line") from None
    if not isinstance(found, dict):
        raise InvalidRequest("the line must be a JSON object", None, "invalid_json_line")
    custom_id = found.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise InvalidRequest("custom_id must be a text", "custom_id", "missing_required_parameter")
    if custom_id in seen:
        raise InvalidRequest(f"two requests have the custom_id {custom_id[:80]!r}", "custom_id", "duplicate_custom_id")
    seen.add(custom_id)
    if found.get("method") != "POST":
        raise InvalidRequest("method must be POST", "method", "invalid_method")
    if found.get("url") != endpoint:
        raise InvalidRequest(f"url must be the batch's endpoint, {endpoint}", "url", "mismatched_url")
    if not isinstance(found.get("body"), dict):
        raise InvalidRequest("body must be an object", "body", "missing_required_parameter")
    refuse_deep({"body": found["body"]})
    return custom_id, found["body"]
