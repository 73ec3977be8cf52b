"""A request for vectors or scores as an HTTP reply."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response

from server.chat.conversation import Media
from server.dialects.vectors.encoding import VectorJob
from server.errors import InvalidRequest, ModelNotFound
from server.media.source import Seen
from server.pool.model import LoadedModel, cannot_embed, cannot_rerank
from server.pool.spec import Task
from server.routes.services import services
from server.routes.session import session_of
from server.transport.body import read_as
from server.transport.errors import JSON_TYPE
from server.transport.sse import while_connected

T = TypeVar("T")


async def read_able(request: Request, task: Task, read: Callable[[dict[str, Any]], T]) -> T:
    """`read_as`; a model that is known not to embed is refused before anything else that the body says."""

    def attempt(given: dict[str, Any]) -> tuple[object, T | InvalidRequest]:
        try:
            return given.get("model"), read(given)
        except InvalidRequest as error:
            return given.get("model"), error

    model, outcome = await read_as(request, attempt)
    _refuse_unable(request, model, task)
    if isinstance(outcome, InvalidRequest):
        raise outcome
    return outcome


def _refuse_unable(request: Request, model: object, task: Task) -> None:
    """Raise `NotSupported` for a model that is known not to embed, whatever else the body says, as llama-server."""
    if model is not None and not isinstance(model, str):
        return  # the body's check says it
    try:
        state = services(request).pool.state(model, task)
    except ModelNotFound:
        return  # so does `acquire`, after that
    if state.info is not None and not state.info.embeds:
        raise cannot_rerank(state.spec.id) if task == "rerank" else cannot_embed(state.spec.id)


async def embed(
    request: Request,
    model: str | None,
    task: Task,
    prepare: Callable[[LoadedModel, Seen], VectorJob],
    headers: Mapping[str, str] | None = None,
    keep_alive_s: float | None = None,
    media: Sequence[Media] = (),
) -> Response:
    """The reply, with `headers`, of the job that `prepare` makes. The client's disconnect cancels it at once."""
    session = session_of(request, keep_alive_s)
    try:
        body = await while_connected(request, session.embed(model, task, prepare, media))
    finally:
        session.close()
    return Response(body, headers=headers, media_type=JSON_TYPE)
