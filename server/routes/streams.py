"""Resumable streams (`transport.resumable`): read again, look up, stop.

Paths, statuses and messages are llama-server's (tools/server/server-stream.cpp, server-models.cpp).
"""

from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from server.errors import InvalidRequest, ModelLoading, NotFound, invalid
from server.routes.openapi import FINDS, READS, describe
from server.serving.services import services, stream_owner
from server.transport.body import read_json
from server.transport.errors import json_reply
from server.transport.sse import EventStream, while_connected

router = APIRouter(tags=["streams"])

_GONE = "Stream not found or expired"


@router.get("/v1/stream")
@describe(stream={}, errors=(400, *FINDS))
async def read_stream(request: Request, conv_id: str = "") -> Response:
    """Return a conversation's stream from byte ``from``.

    503 while its model is loading, 400 if that byte is no longer stored.
    """
    app = services(request)
    stream = await app.streams.find(stream_owner(request), _check_id(conv_id))
    if stream is None:
        raise NotFound(_GONE)
    offset = _offset(request.query_params.get("from", ""))
    if not (stream.begun or app.pool.serves(stream.model)):
        raise ModelLoading
    try:
        await while_connected(request, stream.begin())
    except ClientDisconnect:
        raise
    except Exception:  # noqa: BLE001 (the request that started it gets the error)
        raise NotFound(_GONE) from None
    if offset < stream.first:
        raise InvalidRequest("Stream offset lost, please restart", "from")
    return EventStream(request, stream.read(offset), ping_s=0, media_type=stream.media_type)


MAX_LOOKUPS = 1000  # each id is compared with every stream of the caller, on the event loop


@router.post("/v1/streams/lookup")
@describe(["$KeptStream"], example={"conversation_ids": ["c1"]}, errors=READS)
async def look_up_streams(request: Request) -> Response:
    """Return the state of existing streams. The body is ``{"conversation_ids": [...]}``.

    An id also finds streams with the id ``{id}::{model}``.
    """
    entries = (await read_json(request)).get("conversation_ids")
    ids = dict.fromkeys(each for each in entries if isinstance(each, str) and each) if isinstance(entries, list) else {}
    if len(ids) > MAX_LOOKUPS:
        raise invalid("conversation_ids", f"at most {MAX_LOOKUPS} ids")
    streams = await services(request).streams.of(stream_owner(request), list(ids))
    return json_reply(
        [  # times are unix seconds, 0 = not yet
            {
                "conversation_id": stream.conversation,
                "is_done": stream.completed_at > 0,
                "total_bytes": stream.total_bytes,
                "started_at": stream.started_at,
                "completed_at": stream.completed_at,
            }
            for stream in streams
        ]
    )


@router.delete("/v1/stream")
@describe(errors=(400,), status=204)
async def stop_stream(request: Request, conv_id: str = "") -> Response:
    """Stop a conversation's stream and its generation. Returns 204 even if there is none."""
    await services(request).streams.stop(stream_owner(request), _check_id(conv_id))
    return Response(status_code=204)


def _check_id(conversation: str) -> str:
    if not conversation:
        raise InvalidRequest("Missing conversation id in path", "conv_id")
    return conversation


def _offset(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidRequest("Invalid 'from' offset", "from")
    return int(text or 0)
