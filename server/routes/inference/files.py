"""``/v1/files``: files that clients upload for batches, and the results of these (OpenAI's Files API)."""

import time

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.errors import InvalidRequest, NotFound, short
from server.routes.batch_runner import new_file
from server.routes.listing import ListQuery, list_reply
from server.routes.services import owner_of, services
from server.state.objects import Json
from server.transport.bodies.form import read_form
from server.transport.reply import json_reply

router = APIRouter(tags=["files"])
PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
MAX_FILES, DEFAULT_FILES = 10_000, 10_000
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 86400
MAX_FILENAME_CHARS = 255


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
    expires_at = _expiry(fields)
    data = form.files["file"]
    name = form.filenames["file"][:MAX_FILENAME_CHARS] or "file"
    found = new_file(name, purpose, len(data), expires_at)
    await services(request).state.put(owner_of(request), "file", found, data=data, expires_at=expires_at)
    return json_reply(found)


def _expiry(fields: dict[str, str]) -> int | None:
    """Return when the file is to be deleted, None for never. Raises `InvalidRequest`."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidRequest("expires_after.anchor: must be created_at", "expires_after.anchor")
    if seconds is None or not seconds.isdecimal() or not MIN_EXPIRY_S <= int(seconds) <= MAX_EXPIRY_S:
        said = f"must be a whole number between {MIN_EXPIRY_S} and {MAX_EXPIRY_S}"
        raise InvalidRequest(f"expires_after.seconds: {said}", "expires_after.seconds")
    return int(time.time()) + int(seconds)


@router.get("/v1/files")
async def list_files(request: Request) -> Response:
    """The files of this client, optionally of one ``purpose``."""
    query = ListQuery.of(request, max_limit=MAX_FILES, default_limit=DEFAULT_FILES)
    purpose = request.query_params.get("purpose")
    where = {"purpose": purpose} if purpose else None
    owner = owner_of(request)
    found = await services(request).state.find(
        owner, "file", after=query.after, limit=query.limit, newest_first=query.newest_first, where=where
    )
    return list_reply(found)


@router.get("/v1/files/{file_id}")
async def get_file(request: Request, file_id: str) -> Response:
    """A file's description."""
    return json_reply(await find_file(request, file_id))


@router.get("/v1/files/{file_id}/content")
async def get_file_content(request: Request, file_id: str) -> Response:
    """A file's bytes."""
    await find_file(request, file_id)
    data = await services(request).state.data(owner_of(request), file_id)
    return Response(data or b"", media_type="application/octet-stream")


@router.delete("/v1/files/{file_id}")
async def delete_file(request: Request, file_id: str) -> Response:
    """Delete a file."""
    if not await services(request).state.remove(owner_of(request), "file", file_id):
        raise _not_found(file_id)
    return json_reply({"id": file_id, "object": "file", "deleted": True})


async def find_file(request: Request, file_id: str) -> Json:
    """Return a file of this client. Raises `NotFound`."""
    found = await services(request).state.get(owner_of(request), "file", file_id)
    if found is None:
        raise _not_found(file_id)
    return found


def _not_found(file_id: str) -> NotFound:
    return NotFound(f"No such File object: {short(file_id)}")
