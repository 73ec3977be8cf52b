"""``/v1/files``: files that clients upload for batches, and the results of these (OpenAI's Files API)."""

import time

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.errors import InvalidRequest
from server.routes.batch_runner import new_file
from server.routes.services import owner_of, services
from server.routes.stored import ListQuery, find_object, list_reply, remove_object
from server.transport.bodies.form import read_form
from server.transport.reply import json_reply
from server.wire.known import Fields
from server.wire.warnings import warning_headers

router = APIRouter(tags=["files"])
PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
MAX_FILES, DEFAULT_FILES = 10_000, 10_000
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 86400
MAX_FILENAME_CHARS = 255
DAY_S = 86400
_FIELDS = Fields("purpose expires_after[anchor] expires_after[seconds]")


@router.post("/v1/files")
async def upload_file(request: Request) -> Response:
    """Store a file of a form with ``file``, ``purpose`` and optionally ``expires_after``."""
    form = await read_form(request)
    fields = {name: values[-1] for name, values in form.fields.items()}
    if "file" not in form.files:
        raise InvalidRequest("file: the form has no file", "file")
    purpose = fields.get("purpose", "")
    if purpose not in PURPOSES:
        raise InvalidRequest(f"purpose: must be one of {', '.join(PURPOSES)}", "purpose")
    seconds = _expiry_s(fields)
    if seconds is None and purpose == "batch":
        seconds = services(request).options.state_days * DAY_S or None
    expires_at = None if seconds is None else int(time.time()) + seconds
    data = form.files["file"]
    name = form.filenames["file"][:MAX_FILENAME_CHARS] or "file"
    found = new_file(name, purpose, len(data), expires_at)
    await services(request).state.put(owner_of(request), "file", found, data=data, label=purpose, expires_at=expires_at)
    return json_reply(found, headers=warning_headers(fields, _FIELDS))


def _expiry_s(fields: dict[str, str]) -> int | None:
    """Return after how many seconds the file is to be deleted, None if the client did not say."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    number = int(seconds) if seconds is not None and seconds.isdecimal() and len(seconds) < 20 else seconds
    return read_expiry({"anchor": anchor, "seconds": number}, "expires_after")


def read_expiry(given: object, field: str) -> int:
    """Return the seconds of an expiry such as ``{"anchor": "created_at", "seconds": 3600}``.

    Raises `InvalidRequest`, which names a member of `field`.
    """
    if not isinstance(given, dict) or given.get("anchor") != "created_at":
        raise InvalidRequest(f"{field}.anchor: must be created_at", f"{field}.anchor")
    seconds = given.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not MIN_EXPIRY_S <= seconds <= MAX_EXPIRY_S:
        said = f"must be a whole number between {MIN_EXPIRY_S} and {MAX_EXPIRY_S}"
        raise InvalidRequest(f"{field}.seconds: {said}", f"{field}.seconds")
    return seconds


@router.get("/v1/files")
async def list_files(request: Request) -> Response:
    """The files of this client, optionally of one ``purpose``."""
    query = ListQuery.of(request, max_limit=MAX_FILES, default_limit=DEFAULT_FILES)
    purpose = request.query_params.get("purpose")
    found = await services(request).state.find(
        *(owner_of(request), "file"),
        after=query.after,
        limit=query.limit,
        newest_first=query.newest_first,
        label=purpose or None,
    )
    return await list_reply(request, found)


@router.get("/v1/files/{file_id}")
async def get_file(request: Request, file_id: str) -> Response:
    """Return a file's description."""
    return json_reply(await find_object(request, "file", file_id))


@router.get("/v1/files/{file_id}/content")
async def get_file_content(request: Request, file_id: str) -> Response:
    """Return a file's bytes."""
    await find_object(request, "file", file_id)
    data = await services(request).state.data(owner_of(request), file_id)
    return Response(data or b"", media_type="application/octet-stream")


@router.delete("/v1/files/{file_id}")
async def delete_file(request: Request, file_id: str) -> Response:
    """Delete a file."""
    await remove_object(request, "file", file_id)
    return json_reply({"id": file_id, "object": "file", "deleted": True})
