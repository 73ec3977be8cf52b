"""JSON replies."""

from collections.abc import Mapping

import orjson
from starlette.responses import Response

JSON_TYPE = "application/json; charset=utf-8"


def json_reply(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value` as a whole reply, with llama-server's content type."""
    return Response(orjson.dumps(value), status_code=status, headers=headers, media_type=JSON_TYPE)
