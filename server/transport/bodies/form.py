"""Forms with files (``multipart/form-data``): read within the limits of other bodies. Every fault is the client's."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from server.errors import InvalidRequest
from server.transport.bodies.read import read_body

_MAX_PARTS = 100
_MAX_FIELD_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Form:
    """``fields``: texts, of each name all; ``files``: by name the last one's bytes; ``filenames``: its file name."""

    fields: Mapping[str, list[str]]
    files: Mapping[str, bytes]
    filenames: Mapping[str, str] = field(default_factory=dict)


class _InMemoryParser(MultiPartParser):
    """Keep files in memory, as the body is already: a container may have no writable folder for temporary files."""

    spool_max_size = 0  # SpooledTemporaryFile: never write to disk


async def read_form(request: Request) -> Form:
    """Parse the form in a body. Raises `InvalidRequest`."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidRequest("the request body must be a form (multipart/form-data)")
    body = await read_body(request)

    async def chunks() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), _CHUNK_BYTES):  # the parser holds two copies of what it is given at once
            yield body[start : start + _CHUNK_BYTES]

    parser = _InMemoryParser(
        request.headers, chunks(), max_files=_MAX_PARTS, max_fields=_MAX_PARTS, max_part_size=_MAX_FIELD_BYTES
    )
    try:
        parsed = await parser.parse()
    except (MultiPartException, KeyError, UnicodeDecodeError) as fault:
        raise InvalidRequest(f"the request body is no form that can be read: {fault}") from None
    try:
        fields: dict[str, list[str]] = {}
        files: dict[str, bytes] = {}
        filenames: dict[str, str] = {}
        for name, value in parsed.multi_items():
            if isinstance(value, UploadFile):
                files[name] = await value.read()
                filenames[name] = value.filename or ""
            else:
                fields.setdefault(name, []).append(value)
        return Form(fields, files, filenames)
    finally:
        await parsed.close()
