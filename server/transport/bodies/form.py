"""Forms with files (``multipart/form-data``): read within the limits of other bodies. Every fault is the client's."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from server.errors import InvalidRequest
from server.transport.bodies.read import read_body

_MAX_PARTS = 100
_MAX_FIELD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Form:
    """``fields``: texts, of each name all; ``files``: by name the last one's bytes."""

    fields: Mapping[str, list[str]]
    files: Mapping[str, bytes]


async def read_form(request: Request) -> Form:
    """The form in a body. Raises `InvalidRequest`."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidRequest("the request body must be a form (multipart/form-data)")
    body = await read_body(request)

    async def whole() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(
        request.headers, whole(), max_files=_MAX_PARTS, max_fields=_MAX_PARTS, max_part_size=_MAX_FIELD_BYTES
    )
    try:
        parsed = await parser.parse()
    except (MultiPartException, KeyError, UnicodeDecodeError) as fault:
        raise InvalidRequest(f"the request body is no form that can be read: {fault}") from None
    try:
        fields: dict[str, list[str]] = {}
        files: dict[str, bytes] = {}
        for name, value in parsed.multi_items():
            if isinstance(value, UploadFile):
                files[name] = await value.read()
            else:
                fields.setdefault(name, []).append(value)
        return Form(fields, files)
    finally:
        await parsed.close()
