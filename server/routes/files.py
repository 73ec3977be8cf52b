"""``/v1/files``: files that clients upload for batches and requests, and the results of batches.

Clients that send the header ``anthropic-version`` use Anthropic's Files API at the same paths, others OpenAI's. Both
access the same files.
"""

import mimetypes
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from server.dialects.common import Json, page_of, rfc3339
from server.dialects.fields import Body, parse
from server.dialects.warnings import as_header, unused_fields
from server.errors import invalid
from server.routes.openapi import FORM, READS, describe
from server.serving.batch_runner import new_file
from server.serving.services import owner_of, services, wants_anthropic
from server.serving.stored import find_object, find_page, list_reply, page_query, remove_object
from server.state.objects import PageQuery
from server.transport.body import read_form
from server.transport.errors import json_reply
from server.transport.options import DAY_S

router = APIRouter(tags=["files"])
_FILE = ("$File", "$AnthropicFile")
PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
MAX_FILES, DEFAULT_FILES = 10_000, 10_000
MAX_FILENAME_CHARS = 255
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]", "expires_in_seconds")
MAX_ANTHROPIC_FILES = 1000
_PAGE = "page_"


class Expiry(Body):
    """The time at which a file is deleted, such as ``{"anchor": "created_at", "seconds": 3600}``."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=30 * DAY_S)]


@router.post("/v1/files")
@describe(_FILE, example={"file": "", "purpose": "batch"}, errors=READS, takes=FORM)
async def upload_file(request: Request) -> Response:
    """Store a file of a form with ``file``, ``purpose`` (not in Anthropic's API) and optionally an expiry."""
    form = await read_form(request)
    fields = {name: values[-1] for name, values in form.fields.items()}
    if "file" not in form.files:
        raise invalid("file", "the form has no file")
    purpose = fields.get("purpose", "user_data" if wants_anthropic(request) else "")
    if purpose not in PURPOSES:
        raise invalid("purpose", f"must be one of {', '.join(PURPOSES)}")
    seconds = _expiry_s(fields)
    if seconds is None and purpose == "batch":
        seconds = services(request).options.keep_s
    expires_at = None if seconds is None else int(time.time()) + seconds
    data = form.files["file"]
    name = form.filenames["file"][:MAX_FILENAME_CHARS] or "file"
    file = new_file(name, purpose, len(data), expires_at)
    await services(request).state.put(owner_of(request), "file", file, data=data, label=purpose, expires_at=expires_at)
    return json_reply(_file_object(request, file), headers=as_header(unused_fields(fields, _FIELDS)))


def _expiry_s(fields: dict[str, str]) -> int | None:
    """Return the lifetime of the file in seconds, None if the client did not set one."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if "expires_in_seconds" in fields:  # Anthropic's name
        anchor, seconds = "created_at", fields["expires_in_seconds"]
    if anchor is None and seconds is None:
        return None
    number = int(seconds) if seconds is not None and seconds.isdecimal() and len(seconds) < 20 else seconds
    return parse(Expiry, {"anchor": anchor, "seconds": number}, "expires_after").seconds


@router.get("/v1/files")
@describe("$ObjectList", errors=(400,))
async def list_files(request: Request) -> Response:
    """Return the files of this client, optionally of one ``purpose``."""
    if wants_anthropic(request):
        return await _anthropic_list(request)
    purpose = request.query_params.get("purpose") or None
    query = page_query(request, max_limit=MAX_FILES, default_limit=DEFAULT_FILES, label=purpose)
    return await list_reply(request, await find_page(request, "file", query))


@router.get("/v1/files/{file_id}")
@describe(_FILE, errors=(404,))
async def get_file(request: Request, file_id: str) -> Response:
    """Return a file's description."""
    return json_reply(_file_object(request, await find_object(request, "file", file_id)))


@router.get("/v1/files/{file_id}/content")
@describe(media="application/octet-stream", errors=(404,))
async def get_file_content(request: Request, file_id: str) -> Response:
    """Return a file's bytes."""
    await find_object(request, "file", file_id)
    data = await services(request).state.data(owner_of(request), file_id)
    return Response(data or b"", media_type="application/octet-stream")


@router.delete("/v1/files/{file_id}")
@describe("$Deleted", errors=(404,))
async def delete_file(request: Request, file_id: str) -> Response:
    """Delete a file."""
    await remove_object(request, "file", file_id)
    if wants_anthropic(request):
        return json_reply({"id": file_id, "type": "file_deleted"})
    return json_reply({"id": file_id, "object": "file", "deleted": True})


def _file_object(request: Request, file: Json) -> Json:
    """Return a file's description in the format of the client's API."""
    if not wants_anthropic(request):
        return file
    expires_at = file["expires_at"]
    return {
        "type": "file",
        "id": file["id"],
        "filename": file["filename"],
        "mime_type": mimetypes.guess_type(file["filename"])[0] or "application/octet-stream",
        "size_bytes": file["bytes"],
        "created_at": rfc3339(file["created_at"]),
        "expires_at": None if expires_at is None else rfc3339(expires_at),
        "downloadable": True,
    }


async def _anthropic_list(request: Request) -> Response:
    """Return a page of files, newest first. ``page``, or ``after_id`` of older clients, continues an earlier page."""
    limit = page_query(request, max_limit=MAX_ANTHROPIC_FILES).limit
    query = request.query_params
    after = query.get("page", "").removeprefix(_PAGE) or query.get("after_id") or None
    page = await find_page(request, "file", PageQuery(after, limit))
    reply = page_of([_file_object(request, each) for each in page.data], has_more=page.has_more)
    reply["next_page"] = f"{_PAGE}{reply['last_id']}" if page.has_more else None
    return json_reply(reply)
