"""``/v1/batches`` (OpenAI) and ``/v1/messages/batches`` (Anthropic): requests that run when there is capacity left."""

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
_SHOWN = (
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

    def read(given: Json) -> tuple[BatchBody, dict[str, str]]:
        return parse(BatchBody, given), as_header(unused_fields(given, BatchBody))

    body, headers = await read_as(request, read)
    await find_object(request, "file", body.input_file_id)
    data = await services(request).state.data(owner_of(request), body.input_file_id) or b""
    found = await read_later(request, lambda: read_lines(data, body.endpoint))
    expiry, window = body.output_expires_after, body.completion_window
    fields = {
        "object": "batch",
        "input_file_id": body.input_file_id,
        "completion_window": window,
        "output_expires_after_s": None if expiry is None else expiry.seconds,
        "metadata": body.metadata or {},
        "errors": {"object": "list", "data": found.errors} if found.errors else None,
    }
    lasts_s = int(window[:-1]) * _WINDOW_S[window[-1]]
    batch = await _start(request, found, {"api": "openai", "endpoint": body.endpoint, **fields}, lasts_s)
    return json_reply(await _openai(request, batch), headers=headers)


@router.get("/v1/batches")
@describe("$ObjectList", errors=(400,))
async def list_batches(request: Request) -> Response:
    """Return the batches of this client."""
    found = await find_page(request, "batch", page_query(request, label="openai"))
    shown = [await _openai(request, batch) for batch in found.data]
    return await list_reply(request, Page(shown, found.has_more))


@router.get("/v1/batches/{batch_id}")
@describe("$Batch", errors=(404,))
async def get_batch(request: Request, batch_id: str) -> Response:
    """Return a batch and how far it is."""
    return json_reply(await _openai(request, await _found(request, batch_id, "openai")))


@router.post("/v1/batches/{batch_id}/cancel")
@describe("$Batch", errors=(404,))
async def cancel_batch(request: Request, batch_id: str) -> Response:
    """Cancel a batch. Results so far are kept. One that has ended stays as it is."""
    return json_reply(await _openai(request, await _cancel(request, batch_id, "openai")))


@router.post("/v1/messages/batches")
@describe("$MessageBatch", example={"requests": [{"custom_id": "a", "params": HI}]}, errors=READS)
async def create_message_batch(request: Request) -> Response:
    """Start a batch of Messages requests."""
    headers, found = await read_as(
        request, lambda given: (as_header(unused_fields(given, ("requests",))), _message_lines(given.get("requests")))
    )
    batch = await _start(request, found, {"api": "anthropic", "endpoint": "/v1/messages"}, DAY_S)
    return json_reply(await _anthropic(request, batch), headers=headers)


@router.get("/v1/messages/batches")
@describe("$MessageBatches", errors=(400,))
async def list_message_batches(request: Request) -> Response:
    """Return the batches of Messages requests of this client."""
    query = request.query_params
    limit = read_limit(query.get("limit", "20"), 1000)
    after, before = query.get("after_id"), query.get("before_id")
    if after and before:
        raise invalid("before_id", "cannot be combined with after_id; send one")
    wanted = PageQuery(after or before or None, limit, not before, "anthropic")
    found = await find_page(request, "batch", wanted)
    shown = [await _anthropic(request, batch) for batch in (found.data[::-1] if before else found.data)]
    return json_reply(page_of(shown, has_more=found.has_more))


@router.get("/v1/messages/batches/{batch_id}")
@describe("$MessageBatch", errors=(404,))
async def get_message_batch(request: Request, batch_id: str) -> Response:
    """Return a batch of Messages requests and how far it is."""
    return json_reply(await _anthropic(request, await _found(request, batch_id, "anthropic")))


@router.get("/v1/messages/batches/{batch_id}/results")
@describe(media="application/x-jsonl", errors=(400, 404))
async def get_message_batch_results(request: Request, batch_id: str) -> Response:
    """Return the results of a batch that has ended, one JSON object on each line, in the order of the requests."""
    if (await _found(request, batch_id, "anthropic"))["status"] in UNFINISHED["batch"]:
        raise InvalidRequest("the batch has not ended yet; its results_url is set when it has")

    def line(custom_id: str, result: Json, _: Outcome) -> Json:
        return {"custom_id": custom_id, "result": _message_result(result)}

    lines = await services(request).batches.state.written_results(owner_of(request), batch_id, line)
    return Response(lines, media_type="application/x-jsonl")


@router.post("/v1/messages/batches/{batch_id}/cancel")
@describe("$MessageBatch", errors=(404,))
async def cancel_message_batch(request: Request, batch_id: str) -> Response:
    """Cancel a batch of Messages requests. Results so far are kept."""
    return json_reply(await _anthropic(request, await _cancel(request, batch_id, "anthropic")))


@router.delete("/v1/messages/batches/{batch_id}")
@describe("$DeletedBatch", errors=(400, 404))
async def delete_message_batch(request: Request, batch_id: str) -> Response:
    """Delete a batch that has ended, and its results."""
    if (await _found(request, batch_id, "anthropic"))["status"] in UNFINISHED["batch"]:
        raise InvalidRequest("the batch has not ended yet; cancel it first")
    await remove_object(request, "batch", batch_id)
    return json_reply({"id": batch_id, "type": "message_batch_deleted"})


async def _start(request: Request, found: BatchInput, fields: Json, lasts_s: int) -> Json:
    """Store a new batch with its requests, and wake the batch runner. A batch with errors has ended already."""
    used, owner, now = services(request), owner_of(request), int(time.time())
    lines, status = ([], "failed") if found.errors else (found.lines, "in_progress")
    batch = fields | {
        "id": f"{'batch' if fields['api'] == 'openai' else 'msgbatch'}_{random_id()}",
        "key_name": key_of(request).name,
        "created_at": now,
        "expires_at": now + lasts_s,
        "status": status,
        f"{status}_at": now,
        "models": _known_models(request, found.models, fields["endpoint"]),
        "model": found.models[0] if len(found.models) == 1 else None,
        "request_counts": {"total": len(found.lines), "completed": 0, "failed": 0, "unsent": 0},
    }
    keep_s = used.options.keep_s
    expires_at = now + keep_s if found.errors and keep_s else None
    await used.batches.state.add_batch(owner, batch, lines, expires_at)
    used.batches.wake()
    return batch


def _known_models(request: Request, names: list[str | None], endpoint: str) -> list[str]:
    """Return the ids of the models that `names` mean here. Requests for others fail."""
    task: Task = "embed" if endpoint == "/v1/embeddings" else "generate"
    pool, found = services(request).pool, set()
    for name in names:
        with contextlib.suppress(ModelNotFound):
            found.add(pool.resolve(name, task).id)
    return sorted(found)


async def _cancel(request: Request, batch_id: str, api: str) -> Json:
    await _found(request, batch_id, api)
    now = int(time.time())

    def cancelling(body: Json) -> Json:
        return body if body["status"] != "in_progress" else {**body, "status": "cancelling", "cancelling_at": now}

    changed = await change_object(request, "batch", batch_id, cancelling)
    services(request).batches.wake()
    return changed


async def _found(request: Request, batch_id: str, api: str) -> Json:
    found = await find_object(request, "batch", batch_id)
    if found["api"] != api:
        raise not_found("batch", batch_id)
    return found


async def _openai(request: Request, batch: Json) -> Json:
    counts = await _counts(request, batch)
    shown = {name: counts[name] for name in ("total", "completed", "failed")}
    return {**{name: batch.get(name) for name in _SHOWN}, "request_counts": shown}


async def _anthropic(request: Request, batch: Json) -> Json:
    status, counts = batch["status"], await _counts(request, batch)
    shown = _ANTHROPIC_STATUS.get(status, "ended")
    return {
        "id": batch["id"],
        "type": "message_batch",
        "processing_status": shown,
        "request_counts": {
            "processing": counts["total"] - counts["completed"] - counts["failed"],
            "succeeded": counts["completed"],
            "errored": counts["failed"] - counts["unsent"],
            "canceled": counts["unsent"] if status == "cancelled" else 0,
            "expired": counts["unsent"] if status == "expired" else 0,
        },
        "created_at": rfc3339(batch["created_at"]),
        "expires_at": rfc3339(batch["expires_at"]),
        "ended_at": rfc3339(batch[f"{status}_at"]) if shown == "ended" else None,
        "archived_at": None,
        "cancel_initiated_at": rfc3339(batch["cancelling_at"]) if "cancelling_at" in batch else None,
        "results_url": _results_url(request, batch["id"]) if shown == "ended" else None,
    }


async def _counts(request: Request, batch: Json) -> Json:
    """Return the batch's counts, as of now while it runs. Those that were not run count as failed, too."""
    if batch["status"] not in UNFINISHED["batch"]:
        counts: Json = batch["request_counts"]
        return counts
    return await services(request).batches.state.line_counts(owner_of(request), batch["id"])


def _results_url(request: Request, batch_id: str) -> str:
    """Return the address of a batch's results, as seen by a client of this port."""
    host = request.headers.get("host", "localhost")
    return f"{request.scope['scheme']}://{host}{target_of(request).base}/v1/messages/batches/{batch_id}/results"


def _message_lines(given: object) -> BatchInput:
    """Read the requests of a Messages batch. Blocking, for a worker thread. Raises `InvalidRequest`."""
    if not isinstance(given, list) or not given:
        raise invalid("requests", "must be an array of at least one request")
    check_number(len(given), "requests")
    requests: list[tuple[int, str, Json]] = []
    seen: set[str] = set()
    for index, each in enumerate(given):
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
    """Return one result in Anthropic's form."""
    if "error" in result:
        return {"type": "canceled" if result["error"]["code"] == "batch_cancelled" else "expired"}
    if result["status_code"] == 200:
        return {"type": "succeeded", "message": result["body"]}
    error = result["body"]
    if "type" not in error:  # of this server, not of the Messages API
        error = anthropic_error(result["status_code"], error) | {"request_id": result["request_id"] or None}
    return {"type": "errored", "error": error}
