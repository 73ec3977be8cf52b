"""``/v1/batches`` (OpenAI) and ``/v1/messages/batches`` (Anthropic): requests that run with spare capacity."""

import contextlib
import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from server.dialects.common import page_of, random_id, rfc3339
from server.dialects.errors import anthropic_error
from server.dialects.fields import parse, refuse_deep
from server.dialects.responses.parse import MetadataBody
from server.dialects.warnings import as_header, unused_fields
from server.errors import InvalidRequest, ModelNotFound, invalid
from server.pool.spec import Task
from server.routes.files import Expiry
from server.routes.openapi import HI, READS, describe
from server.serving.batch_runner import BatchInput, batch_input, check_number, read_lines
from server.serving.services import key_of, owner_of, services, target_of
from server.serving.stored import (
    change_object,
    find_object,
    find_page,
    list_reply,
    not_found,
    page_query,
    read_limit,
    remove_object,
)
from server.state.batches import Outcome
from server.state.objects import UNFINISHED, Json, Page, PageQuery
from server.transport.body import read_as, read_later
from server.transport.errors import json_reply
from server.transport.options import DAY_S

router = APIRouter(tags=["batches"])
_EXAMPLE = {"input_file_id": "file-x", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
_WINDOW_S = {"h": 3600, "d": DAY_S}
_OPENAI_FIELDS = (
    *("id", "object", "endpoint", "model", "errors", "input_file_id", "completion_window", "status", "output_file_id"),
    *("error_file_id", "usage", "metadata", "created_at", "in_progress_at", "expires_at", "finalizing_at"),
    *("completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at"),
)
_ANTHROPIC_STATUS = {"in_progress": "in_progress", "cancelling": "canceling", "finalizing": "in_progress"}


class BatchBody(MetadataBody):
    """The body of ``POST /v1/batches``."""

    texts_of_errors: ClassVar = {"completion_window": 'completion_window: must be hours or days, such as "24h"'}

    endpoint: Literal["/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/embeddings"]
    completion_window: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}[hd]$")]
    input_file_id: str
    output_expires_after: Expiry | None = None


@router.post("/v1/batches")
@describe("$Batch", BatchBody, _EXAMPLE, errors=(*READS, 404))
async def create_batch(request: Request) -> Response:
    """Start a batch of the requests in an uploaded file."""

    def read(raw: Json) -> tuple[BatchBody, dict[str, str]]:
        return parse(BatchBody, raw), as_header(unused_fields(raw, BatchBody))

    body, headers = await read_as(request, read)
    await find_object(request, "file", body.input_file_id)
    data = await services(request).state.data(owner_of(request), body.input_file_id) or b""
    parsed = await read_later(request, lambda: read_lines(data, body.endpoint))
    expiry, window = body.output_expires_after, body.completion_window
    fields = {
        "object": "batch",
        "input_file_id": body.input_file_id,
        "completion_window": window,
        "output_expires_after_s": None if expiry is None else expiry.seconds,
        "metadata": body.metadata or {},
        "errors": {"object": "list", "data": parsed.errors} if parsed.errors else None,
    }
    window_s = int(window[:-1]) * _WINDOW_S[window[-1]]
    batch = await _start(request, parsed, {"api": "openai", "endpoint": body.endpoint, **fields}, window_s)
    return json_reply(await _openai_object(request, batch), headers=headers)


@router.get("/v1/batches")
@describe("$ObjectList", errors=(400,))
async def list_batches(request: Request) -> Response:
    """Return the batches of this client."""
    page = await find_page(request, "batch", page_query(request, label="openai"))
    objects = [await _openai_object(request, batch) for batch in page.data]
    return await list_reply(request, Page(objects, page.has_more))


@router.get("/v1/batches/{batch_id}")
@describe("$Batch", errors=(404,))
async def get_batch(request: Request, batch_id: str) -> Response:
    """Return a batch and its progress."""
    return json_reply(await _openai_object(request, await _find(request, batch_id, "openai")))


@router.post("/v1/batches/{batch_id}/cancel")
@describe("$Batch", errors=(404,))
async def cancel_batch(request: Request, batch_id: str) -> Response:
    """Cancel a batch. Its results so far are kept. A batch that has ended is not changed."""
    return json_reply(await _openai_object(request, await _cancel(request, batch_id, "openai")))


@router.post("/v1/messages/batches")
@describe("$MessageBatch", example={"requests": [{"custom_id": "a", "params": HI}]}, errors=READS)
async def create_message_batch(request: Request) -> Response:
    """Start a batch of Messages requests."""
    headers, parsed = await read_as(
        request, lambda body: (as_header(unused_fields(body, ("requests",))), _message_lines(body.get("requests")))
    )
    batch = await _start(request, parsed, {"api": "anthropic", "endpoint": "/v1/messages"}, DAY_S)
    return json_reply(await _anthropic_object(request, batch), headers=headers)


@router.get("/v1/messages/batches")
@describe("$MessageBatches", errors=(400,))
async def list_message_batches(request: Request) -> Response:
    """Return this client's batches of Messages requests."""
    query = request.query_params
    limit = read_limit(query.get("limit", "20"), 1000)
    after, before = query.get("after_id"), query.get("before_id")
    if after and before:
        raise invalid("before_id", "cannot be combined with after_id; send one")
    page = await find_page(request, "batch", PageQuery(after or before or None, limit, not before, "anthropic"))
    batches = page.data[::-1] if before else page.data
    objects = [await _anthropic_object(request, batch) for batch in batches]
    return json_reply(page_of(objects, has_more=page.has_more))


@router.get("/v1/messages/batches/{batch_id}")
@describe("$MessageBatch", errors=(404,))
async def get_message_batch(request: Request, batch_id: str) -> Response:
    """Return a batch of Messages requests and its progress."""
    return json_reply(await _anthropic_object(request, await _find(request, batch_id, "anthropic")))


@router.get("/v1/messages/batches/{batch_id}/results")
@describe(media="application/x-jsonl", errors=(400, 404))
async def get_message_batch_results(request: Request, batch_id: str) -> Response:
    """Return the results of a batch that has ended: one JSON object on each line, in the order of the requests."""
    if (await _find(request, batch_id, "anthropic"))["status"] in UNFINISHED["batch"]:
        raise InvalidRequest("the batch has not ended yet; its results_url is set when it has")

    def line(custom_id: str, result: Json, _: Outcome) -> Json:
        return {"custom_id": custom_id, "result": _message_result(result)}

    lines = await services(request).batches.state.format_results(owner_of(request), batch_id, line)
    return Response(lines, media_type="application/x-jsonl")


@router.post("/v1/messages/batches/{batch_id}/cancel")
@describe("$MessageBatch", errors=(404,))
async def cancel_message_batch(request: Request, batch_id: str) -> Response:
    """Cancel a batch of Messages requests. Its results so far are kept."""
    return json_reply(await _anthropic_object(request, await _cancel(request, batch_id, "anthropic")))


@router.delete("/v1/messages/batches/{batch_id}")
@describe("$DeletedBatch", errors=(400, 404))
async def delete_message_batch(request: Request, batch_id: str) -> Response:
    """Delete a batch that has ended, and its results."""
    if (await _find(request, batch_id, "anthropic"))["status"] in UNFINISHED["batch"]:
        raise InvalidRequest("the batch has not ended yet; cancel it first")
    await remove_object(request, "batch", batch_id)
    return json_reply({"id": batch_id, "type": "message_batch_deleted"})


async def _start(request: Request, parsed: BatchInput, fields: Json, window_s: int) -> Json:
    """Store a new batch with its requests, and wake the batch runner. A batch with errors has failed already."""
    app, owner, now = services(request), owner_of(request), int(time.time())
    lines, status = ([], "failed") if parsed.errors else (parsed.lines, "in_progress")
    batch = fields | {
        "id": f"{'batch' if fields['api'] == 'openai' else 'msgbatch'}_{random_id()}",
        "key_name": key_of(request).name,
        "created_at": now,
        "expires_at": now + window_s,
        "status": status,
        f"{status}_at": now,
        "models": _model_ids(request, parsed.models, fields["endpoint"]),
        "model": parsed.models[0] if len(parsed.models) == 1 else None,
        "request_counts": {"total": len(parsed.lines), "completed": 0, "failed": 0, "unsent": 0},
    }
    keep_s = app.options.keep_s
    expires_at = now + keep_s if parsed.errors and keep_s else None
    await app.batches.state.add_batch(owner, batch, lines, expires_at)
    app.batches.wake()
    return batch


def _model_ids(request: Request, names: list[str | None], endpoint: str) -> list[str]:
    """Resolve model names to ids. Unknown names are skipped, because only their requests fail."""
    task: Task = "embed" if endpoint == "/v1/embeddings" else "generate"
    pool, ids = services(request).pool, set()
    for name in names:
        with contextlib.suppress(ModelNotFound):
            ids.add(pool.resolve(name, task).id)
    return sorted(ids)


async def _cancel(request: Request, batch_id: str, api: str) -> Json:
    await _find(request, batch_id, api)
    now = int(time.time())

    def cancelling(body: Json) -> Json:
        return body if body["status"] != "in_progress" else {**body, "status": "cancelling", "cancelling_at": now}

    changed = await change_object(request, "batch", batch_id, cancelling)
    services(request).batches.wake()
    return changed


async def _find(request: Request, batch_id: str, api: str) -> Json:
    """Return a batch of this client that was created with this API. Raises `NotFound`."""
    batch = await find_object(request, "batch", batch_id)
    if batch["api"] != api:
        raise not_found("batch", batch_id)
    return batch


async def _openai_object(request: Request, batch: Json) -> Json:
    counts = await _counts(request, batch)
    request_counts = {name: counts[name] for name in ("total", "completed", "failed")}
    return {**{name: batch.get(name) for name in _OPENAI_FIELDS}, "request_counts": request_counts}


async def _anthropic_object(request: Request, batch: Json) -> Json:
    status, counts = batch["status"], await _counts(request, batch)
    processing_status = _ANTHROPIC_STATUS.get(status, "ended")
    has_ended = processing_status == "ended"
    return {
        "id": batch["id"],
        "type": "message_batch",
        "processing_status": processing_status,
        "request_counts": {
            "processing": counts["total"] - counts["completed"] - counts["failed"],
            "succeeded": counts["completed"],
            "errored": counts["failed"] - counts["unsent"],
            "canceled": counts["unsent"] if status == "cancelled" else 0,
            "expired": counts["unsent"] if status == "expired" else 0,
        },
        "created_at": rfc3339(batch["created_at"]),
        "expires_at": rfc3339(batch["expires_at"]),
        "ended_at": rfc3339(batch[f"{status}_at"]) if has_ended else None,
        "archived_at": None,
        "cancel_initiated_at": rfc3339(batch["cancelling_at"]) if "cancelling_at" in batch else None,
        "results_url": _results_url(request, batch["id"]) if has_ended else None,
    }


async def _counts(request: Request, batch: Json) -> Json:
    """Return the current counts of the batch's requests. ``failed`` includes ``unsent``, the requests never run."""
    if batch["status"] not in UNFINISHED["batch"]:
        counts: Json = batch["request_counts"]
        return counts
    return await services(request).batches.state.line_counts(owner_of(request), batch["id"])


def _results_url(request: Request, batch_id: str) -> str:
    """Return the URL of a batch's results for clients of this port."""
    host = request.headers.get("host", "localhost")
    return f"{request.scope['scheme']}://{host}{target_of(request).base}/v1/messages/batches/{batch_id}/results"


def _message_lines(entries: object) -> BatchInput:
    """Parse the requests of a Messages batch. Blocking, for a worker thread. Raises `InvalidRequest`."""
    if not isinstance(entries, list) or not entries:
        raise invalid("requests", "must be an array of at least one request")
    check_number(len(entries), "requests")
    requests: list[tuple[int, str, Json]] = []
    seen: set[str] = set()
    for index, each in enumerate(entries):
        at = f"requests.{index}"
        if not isinstance(each, dict) or not isinstance(each.get("params"), dict):
            raise invalid(f"{at}.params", "must be the body of a message")
        refuse_deep({f"{at}.params": each["params"]})
        custom_id = each.get("custom_id")
        if not isinstance(custom_id, str) or not custom_id or custom_id in seen:
            raise invalid(f"{at}.custom_id", "must be a string that is unique in the batch")
        seen.add(custom_id)
        requests.append((index, custom_id, each["params"]))
    return batch_input(requests, [])


def _message_result(result: Mapping[str, Any]) -> Json:
    """Return a stored result in the format of Anthropic's API."""
    if "error" in result:
        return {"type": "canceled" if result["error"]["code"] == "batch_cancelled" else "expired"}
    if result["status_code"] == 200:
        return {"type": "succeeded", "message": result["body"]}
    error = result["body"]
    if "type" not in error:  # an error of this server outside of the Messages API
        error = anthropic_error(result["status_code"], error) | {"request_id": result["request_id"] or None}
    return {"type": "errored", "error": error}
