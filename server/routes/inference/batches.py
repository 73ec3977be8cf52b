"""``/v1/batches`` (OpenAI) and ``/v1/messages/batches`` (Anthropic): requests that run when there is capacity left."""

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.errors import InvalidRequest, NotFound, short
from server.routes.batch_runner import in_prefix_order, read_lines
from server.routes.inference.files import find_file
from server.routes.listing import ListQuery, list_reply
from server.routes.services import caller_of, owner_of, services
from server.state.batches import BatchLine
from server.state.objects import Json
from server.transport.access.keys import ANYBODY
from server.transport.access.target import TARGET, Target
from server.transport.bodies.read import read_json, read_later
from server.transport.reply import json_reply
from server.wire.common import random_id
from server.wire.known import Fields
from server.wire.messages.errors import anthropic_error
from server.wire.messages.read import FIELDS as MESSAGE_FIELDS
from server.wire.responses.read import read_metadata
from server.wire.warnings import warning_headers

router = APIRouter(tags=["batches"])
ENDPOINTS = ("/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/embeddings")
MAX_REQUESTS = 100_000
_MESSAGES = Fields("", requests=Fields("custom_id", params=MESSAGE_FIELDS))
_WINDOW = re.compile(r"([1-9]\d{0,3})([hd])")
_WINDOW_S = {"h": 3600, "d": 86400}
_DAY_S = 86400
_KEPT = ("id", "object", "endpoint", "model", "errors", "input_file_id", "completion_window", "status")
_TIMES = (
    "created",
    "in_progress",
    "expires",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
)


@router.post("/v1/batches")
async def create_batch(request: Request) -> Response:
    """Start a batch of the requests in an uploaded file."""
    body = await read_json(request)
    endpoint, window, file_id = (body.get(name) for name in ("endpoint", "completion_window", "input_file_id"))
    if endpoint not in ENDPOINTS:
        raise InvalidRequest(f"endpoint: must be one of {', '.join(ENDPOINTS)}", "endpoint")
    matched = _WINDOW.fullmatch(window) if isinstance(window, str) else None
    if matched is None:
        raise InvalidRequest('completion_window: must be hours or days, such as "24h"', "completion_window")
    if not isinstance(file_id, str):
        raise InvalidRequest("input_file_id: must be the id of an uploaded file", "input_file_id")
    metadata = read_metadata(body)
    used, owner = services(request), owner_of(request)
    await find_file(request, file_id)
    data = await used.state.data(owner, file_id) or b""
    lines, errors = await read_later(request, lambda: read_lines(data, endpoint))
    _check_number(len(lines), "input_file_id")
    now = int(time.time())
    batch = {
        "id": f"batch_{random_id()}",
        "api": "openai",
        "object": "batch",
        "endpoint": endpoint,
        "input_file_id": file_id,
        "completion_window": window,
        "metadata": metadata,
        "created_at": now,
        "in_progress_at": None if errors else now,
        "failed_at": now if errors else None,
        "expires_at": now + int(matched[1]) * _WINDOW_S[matched[2]],
        "status": "failed" if errors else "in_progress",
        "errors": {"object": "list", "data": errors[:100]} if errors else None,
        "request_counts": {"total": len(lines), "completed": 0, "failed": 0},
    }
    await _start(request, batch, [] if errors else lines)
    known = Fields("endpoint completion_window input_file_id metadata")
    return json_reply(await _openai(request, batch), headers=warning_headers(body, known))


@router.get("/v1/batches")
async def list_batches(request: Request) -> Response:
    """The batches of this client."""
    query = ListQuery.of(request)
    found = await services(request).state.find(
        *(owner_of(request), "batch"),
        after=query.after,
        limit=query.limit,
        newest_first=query.newest_first,
        where={"api": "openai"},
    )
    shown = [await _openai(request, batch) for batch in found.data]
    return list_reply(type(found)(shown, found.has_more))


@router.get("/v1/batches/{batch_id}")
async def get_batch(request: Request, batch_id: str) -> Response:
    """A batch and how far it is."""
    return json_reply(await _openai(request, await _found(request, batch_id, "openai")))


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel_batch(request: Request, batch_id: str) -> Response:
    """Cancel a batch. Results so far are kept. One that has ended stays as it is."""
    return json_reply(await _openai(request, await _cancel(request, batch_id, "openai")))


@router.post("/v1/messages/batches")
async def create_message_batch(request: Request) -> Response:
    """Start a batch of Messages requests."""
    body = await read_json(request)
    lines = _message_lines(body.get("requests"))
    now = int(time.time())
    batch = {
        "id": f"msgbatch_{random_id()}",
        "api": "anthropic",
        "created_at": now,
        "expires_at": now + _DAY_S,
        "status": "in_progress",
        "request_counts": {"total": len(lines), "completed": 0, "failed": 0},
    }
    await _start(request, batch, lines)
    return json_reply(await _anthropic(request, batch), headers=warning_headers(body, _MESSAGES))


@router.get("/v1/messages/batches")
async def list_message_batches(request: Request) -> Response:
    """The batches of Messages requests of this client."""
    query = request.query_params
    limit = query.get("limit", "20")
    if not limit.isdecimal() or not 1 <= int(limit) <= 1000:
        raise InvalidRequest("limit: must be a whole number between 1 and 1000", "limit")
    after, before = query.get("after_id"), query.get("before_id")
    if after and before:
        raise InvalidRequest("before_id: cannot be combined with after_id; send one", "before_id")
    found = await services(request).state.find(
        *(owner_of(request), "batch"),
        after=after or before or None,
        limit=int(limit),
        newest_first=not before,
        where={"api": "anthropic"},
    )
    shown = [await _anthropic(request, batch) for batch in (found.data[::-1] if before else found.data)]
    ids = [each["id"] for each in shown] or [None]
    return json_reply({"data": shown, "has_more": found.has_more, "first_id": ids[0], "last_id": ids[-1]})


@router.get("/v1/messages/batches/{batch_id}")
async def get_message_batch(request: Request, batch_id: str) -> Response:
    """A batch of Messages requests and how far it is."""
    return json_reply(await _anthropic(request, await _found(request, batch_id, "anthropic")))


@router.get("/v1/messages/batches/{batch_id}/results")
async def get_message_batch_results(request: Request, batch_id: str) -> Response:
    """The results of a batch that has ended, one JSON object on each line, in the order of the requests."""
    batch = await _found(request, batch_id, "anthropic")
    if batch["status"] in ("in_progress", "cancelling", "finalizing"):
        raise InvalidRequest("the batch has not ended yet; its results_url is set when it has")
    results = await services(request).lines.results(owner_of(request), batch_id)
    lines = [
        orjson.dumps({"custom_id": custom_id, "result": _message_result(r)}) + b"\n" for custom_id, r, _ in results
    ]
    return Response(b"".join(lines), media_type="application/x-jsonl")


@router.post("/v1/messages/batches/{batch_id}/cancel")
async def cancel_message_batch(request: Request, batch_id: str) -> Response:
    """Cancel a batch of Messages requests. Results so far are kept."""
    return json_reply(await _anthropic(request, await _cancel(request, batch_id, "anthropic")))


@router.delete("/v1/messages/batches/{batch_id}")
async def delete_message_batch(request: Request, batch_id: str) -> Response:
    """Delete a batch that has ended, and its results."""
    batch = await _found(request, batch_id, "anthropic")
    if batch["status"] in ("in_progress", "cancelling", "finalizing"):
        raise InvalidRequest("the batch has not ended yet; cancel it first")
    used, owner = services(request), owner_of(request)
    await used.lines.remove(owner, batch_id)
    await used.state.remove(owner, "batch", batch_id)
    return json_reply({"id": batch_id, "type": "message_batch_deleted"})


async def _start(request: Request, batch: Json, lines: list[BatchLine]) -> None:
    used, owner = services(request), owner_of(request)
    key = caller_of(request) or ANYBODY
    await used.lines.add(owner, batch["id"], in_prefix_order(lines))
    await used.state.put(owner, "batch", {**batch, "key_name": key.name})
    used.batches.wake()


async def _cancel(request: Request, batch_id: str, api: str) -> Json:
    used, owner = services(request), owner_of(request)
    await _found(request, batch_id, api)
    now = int(time.time())

    def cancelling(body: Json) -> Json:
        return body if body["status"] != "in_progress" else {**body, "status": "cancelling", "cancelling_at": now}

    changed = await used.state.update(owner, "batch", batch_id, cancelling)
    if changed is None:
        raise _not_found(batch_id)
    if changed["status"] == "cancelling":
        used.batches.cancel(owner, batch_id)
    return changed


async def _found(request: Request, batch_id: str, api: str) -> Json:
    found = await services(request).state.get(owner_of(request), "batch", batch_id)
    if found is None or found["api"] != api:
        raise _not_found(batch_id)
    return found


async def _openai(request: Request, batch: Json) -> Json:
    times = {f"{name}_at": batch.get(f"{name}_at") for name in _TIMES}
    return {
        **{name: batch.get(name) for name in _KEPT},
        "output_file_id": batch.get("output_file_id"),
        "error_file_id": batch.get("error_file_id"),
        **times,
        "request_counts": await _counts(request, batch),
        "metadata": batch["metadata"],
    }


async def _anthropic(request: Request, batch: Json) -> Json:
    status = batch["status"]
    shown = {"in_progress": "in_progress", "cancelling": "canceling"}.get(status, "ended")
    shown = "in_progress" if status == "finalizing" else shown
    counts = await _counts(request, batch)
    unsent = {"cancelled": "canceled", "expired": "expired"}.get(status)
    n_unsent = 0
    if unsent is not None:
        results = await services(request).lines.results(owner_of(request), batch["id"])
        n_unsent = sum("error" in result for _, result, _ in results)
    ended_at = batch.get(f"{status}_at")
    return {
        "id": batch["id"],
        "type": "message_batch",
        "processing_status": shown,
        "request_counts": {
            "processing": counts["total"] - counts["completed"] - counts["failed"],
            "succeeded": counts["completed"],
            "errored": counts["failed"] - n_unsent,
            "canceled": n_unsent if unsent == "canceled" else 0,
            "expired": n_unsent if unsent == "expired" else 0,
        },
        "created_at": _rfc3339(batch["created_at"]),
        "expires_at": _rfc3339(batch["expires_at"]),
        "ended_at": _rfc3339(ended_at) if shown == "ended" else None,
        "archived_at": None,
        "cancel_initiated_at": _rfc3339(batch.get("cancelling_at")),
        "results_url": _results_url(request, batch["id"]) if shown == "ended" else None,
    }


async def _counts(request: Request, batch: Json) -> Json:
    """Return the batch's counts, as of now while it runs."""
    if batch["status"] not in ("in_progress", "cancelling", "finalizing"):
        counts: Json = batch["request_counts"]
        return counts
    found = await services(request).lines.counts(owner_of(request), batch["id"])
    return dict(zip(("total", "completed", "failed"), found, strict=True))


def _results_url(request: Request, batch_id: str) -> str:
    """Return the address of a batch's results, as seen by a client of this port."""
    target: Target = request.scope[TARGET]
    host = request.headers.get("host", "localhost")
    return f"{request.scope['scheme']}://{host}{target.base}/v1/messages/batches/{batch_id}/results"


def _rfc3339(at: int | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def _message_lines(given: object) -> list[BatchLine]:
    if not isinstance(given, list) or not given:
        raise InvalidRequest("requests: must be an array of at least one request", "requests")
    _check_number(len(given), "requests")
    lines: list[BatchLine] = []
    seen: set[str] = set()
    for index, each in enumerate(given):
        at = f"requests.{index}"
        if not isinstance(each, dict) or not isinstance(each.get("params"), dict):
            raise InvalidRequest(f"{at}.params: must be the body of a message", f"{at}.params")
        custom_id = each.get("custom_id")
        if not isinstance(custom_id, str) or not custom_id or custom_id in seen:
            raise InvalidRequest(f"{at}.custom_id: must be a text that no other request has", f"{at}.custom_id")
        seen.add(custom_id)
        lines.append(BatchLine(index, custom_id, "/v1/messages", each["params"]))
    return lines


def _check_number(n: int, param: str) -> None:
    if n > MAX_REQUESTS:
        raise InvalidRequest(f"{param}: a batch may have at most {MAX_REQUESTS} requests", param)


def _message_result(result: Mapping[str, Any]) -> Json:
    """Return one result in Anthropic's form."""
    if "error" in result:
        return {"type": "canceled" if result["error"]["code"] == "batch_cancelled" else "expired"}
    if result["status_code"] == 200:
        return {"type": "succeeded", "message": result["body"]}
    body = result["body"]
    return {"type": "errored", "error": body if "type" in body else anthropic_error(result["status_code"], body)}


def _not_found(batch_id: str) -> NotFound:
    return NotFound(f"No batch found with id '{short(batch_id)}'.")
