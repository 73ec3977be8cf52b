"""The front: receives HTTP requests from Serve's proxy and forwards replies, event by event."""

import logging
from collections.abc import AsyncGenerator
from typing import Any

from ray.exceptions import RayActorError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from llamapool.ray.crossing import Head, ReplicaLost, final_event, portable
from llamapool.ray.placement import aim_of
from server.errors import InvalidRequest
from server.transport.body import BodyTooLarge
from server.transport.endpoints import UNKNOWN, Resolver, Target
from server.transport.errors import error_response

logger = logging.getLogger(__name__)
REPLICA = "x-llamapool-replica"
"""Header with a replica's id: in replies, the sender; in requests, the required receiver."""
TRIES = 2
UNCHECKED_BYTES = 64 * 1024
"""Bytes of a body that the front reads before a replica has confirmed the request's key."""
_OWN_LENGTH = (b"transfer-encoding", b"connection")


class Front:
    """Serve's ingress deployment. `replicas` is a handle of `replica.Replica`."""

    def __init__(self, replicas: Any, max_body_bytes: int) -> None:
        self._answer = replicas.options(stream=True).answer
        self._knows = replicas.knows
        self._max_body_bytes = max_body_bytes

    async def __call__(self, request: Request) -> Response:
        """Forward any method and path."""
        target = Resolver().target(request.scope)
        try:
            return await self._reply(request, target)
        except (ReplicaLost, InvalidRequest) as error:
            return error_response(error, target.scope(request.scope))

    async def _reply(self, request: Request, target: Target) -> Response:
        path = target.path
        replica = request.headers.get(REPLICA, "")
        if not replica and target.endpoint.is_administration and target.endpoint is not UNKNOWN:
            raise InvalidRequest(
                f"{request.method} {path} is about one replica: name it in the header {REPLICA}, as replies do"
            )
        headers = [(name, value) for name, value in request.headers.raw if name != REPLICA.encode()]
        scope, body = portable(request.scope, path, headers), await self._body(request)
        aim = aim_of(body, replica)
        for _ in range(TRIES):  # without a head, another replica may get the request
            parts = self._answer.remote(scope, body, aim)
            try:
                head: Head = await anext(parts)
            except RayActorError:
                logger.warning("a replica has ended before it answered %s %s", request.method, path)
                continue
            except BaseException:
                parts.cancel()
                raise
            return _response(head, _body(parts, path, head))
        raise ReplicaLost

    async def _body(self, request: Request) -> bytes:
        """Read the body. For a long body without a valid key, return b"": the replica rejects the request's headers.

        Shorter bodies are read completely, since checking the key at a replica takes longer.
        """
        chunks, n, known = [], 0, False
        async for chunk in request.stream():
            n += len(chunk)
            if n > self._max_body_bytes:
                raise BodyTooLarge(self._max_body_bytes)
            if n > UNCHECKED_BYTES and not known:
                known = await self._knows.remote(request.headers.raw)
                if not known:
                    return b""
            chunks.append(chunk)
        return b"".join(chunks)


def _response(head: Head, body: AsyncGenerator[bytes, None]) -> Response:
    response = StreamingResponse(body, status_code=head.status)
    response.raw_headers = [one for one in head.headers if one[0].lower() not in _OWN_LENGTH]
    response.raw_headers.append((REPLICA.encode(), head.replica.encode()))
    return response


async def _body(parts: Any, path: str, head: Head) -> AsyncGenerator[bytes, None]:
    try:
        async for part in parts:
            yield part
    except RayActorError:
        logger.warning("replica %s has ended while it answered %s", head.replica, path)
        if not (error_event := final_event(path, head.headers)):
            raise  # otherwise the truncated reply would look complete
        yield error_event
    finally:
        parts.cancel()
