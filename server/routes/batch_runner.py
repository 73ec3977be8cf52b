"""Runs the requests of batches with the capacity that live clients leave.

Requests of a batch have the engine's batch priority (`server.engine.request.BATCH_PRIORITY`): a live request takes a
slot from them and is prefilled without them. They are run in an order that keeps equal prompt prefixes together. Each
owner's batches run one after the other, and owners take turns.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson

from server.engine.request import BATCH_PRIORITY
from server.state.batches import BatchLine, BatchLines
from server.state.objects import Json, Objects
from server.transport.internal import InternalReply
from server.wire.common import random_id

logger = logging.getLogger(__name__)

UNFINISHED = ("in_progress", "finalizing", "cancelling")
_PAGE = 64  # requests that are fetched from the state at once
_RETRIED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_RETRY_AFTER_S = 1.0
_FORCED = {"stream": False, "background": False, "priority": BATCH_PRIORITY}

Call = Callable[[str, str, Json], Awaitable[InternalReply]]
"""Sends a request in the name of a key: the key's name, path, body."""


@dataclass(slots=True)
class BatchRunner:
    """The batches of all owners. Used on the event loop.

    ``n_parallel`` returns how many requests may run at once.
    """

    state: Objects
    lines: BatchLines
    call: Call
    n_parallel: Callable[[], int]
    _owners: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _n_running: int = 0
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)
    _cancelled: dict[tuple[str, str], asyncio.Event] = field(default_factory=dict)

    def wake(self) -> None:
        """Look for batches that were added or changed."""
        self._woken.set()

    async def run(self) -> None:
        """Run every unfinished batch, also those that an earlier server left. Endless."""
        try:
            while True:
                self._woken.clear()
                for owner, _ in await self.state.with_status("batch", *UNFINISHED):
                    if owner not in self._owners:
                        task = asyncio.create_task(self._run_owner(owner), name="batches of an owner")
                        self._owners[owner] = task
                        task.add_done_callback(partial(self._ended, owner))
                await self._woken.wait()
        finally:
            tasks = list(self._owners.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, owner: str, task: asyncio.Task[None]) -> None:
        del self._owners[owner]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("batches stopped. A bug: report it with what follows", exc_info=error)

    def cancel(self, owner: str, batch_id: str) -> None:
        """Stop a batch's requests. Its status must be ``cancelling`` already."""
        self._cancelled.setdefault((owner, batch_id), asyncio.Event()).set()
        self.wake()

    async def _run_owner(self, owner: str) -> None:
        while True:
            batches = [batch for each, batch in await self.state.with_status("batch", *UNFINISHED) if each == owner]
            if not batches:
                return
            await self._run_batch(owner, batches[0])

    async def _run_batch(self, owner: str, batch: Json) -> None:
        cancelled = self._cancelled.setdefault((owner, batch["id"]), asyncio.Event())
        if batch["status"] == "cancelling":
            cancelled.set()
        try:
            if batch["status"] != "finalizing":
                running = asyncio.create_task(self._run_lines(owner, batch))
                stop = asyncio.create_task(cancelled.wait())
                left_s = max(batch["expires_at"] - time.time(), 0)
                try:
                    await asyncio.wait((running, stop), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                    if running.done():
                        running.result()
                finally:
                    for task in (running, stop):
                        task.cancel()
                    await asyncio.wait((running, stop))
            await self._finalize(owner, batch["id"])
        finally:
            self._cancelled.pop((owner, batch["id"]), None)

    async def _run_lines(self, owner: str, batch: Json) -> None:
        """Run every request without a result; several at once."""
        last = -1
        async with asyncio.TaskGroup() as group:
            while page := await self.lines.pending(owner, batch["id"], last, _PAGE):
                for last, line in page:  # noqa: B007 (continues behind it)
                    await self._enter()
                    group.create_task(self._run_line(owner, batch, line))

    async def _enter(self) -> None:
        """Wait until one more request may run. Those who wait are served in order."""
        while self._n_running >= max(self.n_parallel(), 1):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)
        self._n_running += 1

    def _leave(self) -> None:
        self._n_running -= 1
        for turn in self._waiting[:1]:
            self._waiting.remove(turn)
            if not turn.done():
                turn.set_result(None)

    async def _run_line(self, owner: str, batch: Json, line: BatchLine) -> None:
        try:
            reply = await self._reply(batch["key_name"], line)
        finally:
            self._leave()
        failed = reply.status != HTTPStatus.OK
        result = {
            "status_code": reply.status,
            "request_id": reply.headers.get(b"x-request-id", b"").decode(),
            "body": orjson.loads(reply.body),
        }
        await self.lines.store(owner, batch["id"], line.number, result, failed=failed)

    async def _reply(self, key_name: str, line: BatchLine) -> InternalReply:
        while True:
            reply = await self.call(key_name, line.url, {**line.body, **_FORCED})
            if reply.status not in _RETRIED:
                return reply
            after = reply.headers.get(b"retry-after", b"")
            await asyncio.sleep(float(after) if after.isdigit() else _RETRY_AFTER_S)

    async def _finalize(self, owner: str, batch_id: str) -> None:
        """Write the results where the client reads them, and end the batch."""

        def finalizing(body: Json) -> Json:
            is_cancelled = body["status"] == "cancelling"
            now = int(time.time())
            final = "cancelled" if is_cancelled else "expired" if now >= body["expires_at"] else "completed"
            return {"final_status": final, **body, "status": "finalizing", "finalizing_at": now}

        batch = await self.state.update(owner, "batch", batch_id, finalizing)
        if batch is None:  # deleted meanwhile
            await self.lines.remove(owner, batch_id)
            return
        code = "batch_cancelled" if batch["final_status"] == "cancelled" else "batch_expired"
        unsent = {"error": {"code": code, "message": "the batch ended before this request was run"}}
        await self.lines.fail_pending(owner, batch_id, unsent)
        total, completed, failed = await self.lines.counts(owner, batch_id)
        results = await self.lines.results(owner, batch_id)
        files: dict[str, Any] = {}
        if batch["api"] == "openai":
            for name, is_error in (("output_file_id", False), ("error_file_id", True)):
                wanted = [(custom_id, result) for custom_id, result, bad in results if bad is is_error]
                files[name] = await self._write_file(owner, batch_id, name, wanted) if wanted else None
        now = int(time.time())

        def ended(body: Json) -> Json:
            counts = {"total": total, "completed": completed, "failed": failed}
            status = body["final_status"]
            return {**body, **files, "status": status, f"{status}_at": now, "request_counts": counts}

        await self.state.update(owner, "batch", batch_id, ended)
        if batch["api"] == "openai":
            await self.lines.remove(owner, batch_id)

    async def _write_file(self, owner: str, batch_id: str, name: str, results: list[tuple[str, Json]]) -> str:
        lines = [
            orjson.dumps(
                {
                    "id": f"batch_req_{random_id()}",
                    "custom_id": custom_id,
                    "response": result if "status_code" in result else None,
                    "error": result.get("error"),
                }
            )
            for custom_id, result in results
        ]
        data = b"\n".join(lines) + b"\n"
        kind = name.removesuffix("_file_id")
        file = new_file(f"{batch_id}_{kind}.jsonl", "batch_output", len(data))
        await self.state.put(owner, "file", file, data=data, within_quota=False)
        file_id: str = file["id"]
        return file_id


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


def read_lines(data: bytes, endpoint: str) -> tuple[list[BatchLine], list[Json]]:
    """Return the requests of a batch's input file, and what is wrong with it, as OpenAI's batch errors."""
    lines: list[BatchLine] = []
    errors: list[Json] = []
    seen: set[str] = set()
    for number, raw in enumerate(data.splitlines(), 1):
        if not raw.strip():
            continue
        try:
            lines.append(_line(number, raw, endpoint, seen))
        except _WrongLine as error:
            errors.append({"code": error.code, "line": number, "message": error.message, "param": error.param})
    if not lines and not errors:
        errors.append({"code": "empty_file", "line": None, "message": "the file has no requests", "param": None})
    return lines, errors


class _WrongLine(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def _line(number: int, raw: bytes, endpoint: str, seen: set[str]) -> BatchLine:
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _WrongLine("invalid_json_line", f"the line is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise _WrongLine("invalid_json_line", "the line must be a JSON object")
    custom_id = found.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise _WrongLine("missing_required_parameter", "custom_id must be a text", "custom_id")
    if custom_id in seen:
        raise _WrongLine("duplicate_custom_id", f"two requests have the custom_id {custom_id[:80]!r}", "custom_id")
    seen.add(custom_id)
    if found.get("method") != "POST":
        raise _WrongLine("invalid_method", "method must be POST", "method")
    if found.get("url") != endpoint:
        raise _WrongLine("mismatched_url", f"url must be the batch's endpoint, {endpoint}", "url")
    if not isinstance(found.get("body"), dict):
        raise _WrongLine("missing_required_parameter", "body must be an object", "body")
    return BatchLine(number, custom_id, endpoint, found["body"])


def in_prefix_order(lines: list[BatchLine]) -> list[BatchLine]:
    """Return the requests sorted by model and prompt, so that those with a common prefix run one after the other."""

    def key(line: BatchLine) -> tuple[str, bytes]:
        body = line.body
        before = [body.get(name) for name in ("tools", "system", "instructions")]
        prompt = next((body[name] for name in ("messages", "input", "prompt") if name in body), None)
        return str(body.get("model")), orjson.dumps([before, prompt])

    return sorted(lines, key=key)
