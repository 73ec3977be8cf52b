"""Liveness and readiness of the server. Open without a key."""

import contextlib
from collections.abc import Iterator

from fastapi import APIRouter, Request, Response

from server.errors import (
    AuthenticationFailed,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    NotFound,
    ShuttingDown,
    Unavailable,
)
from server.pool.state import NO_ROOM, ModelState, Status
from server.routes.openapi import FINDS, describe
from server.serving.services import caller_of, services
from server.transport.errors import json_reply
from server.transport.sse import HEAD_ONLY

router = APIRouter(tags=["health"])

NO_SLOT = "no slot available"
NOT_READY = "not ready; send an API key to see the reason"
_FULL_STATUS = 503


@router.get("/health")
@router.get("/v1/health")
@describe("$Health", errors=FINDS)
async def health(request: Request, model: str = "", fail_on_no_slot: str = "") -> Response:
    """Return the server's health: 503 "Loading model" while the only model loads; with several models the server's own
    state.

    ``slots_idle`` and ``slots_processing`` count all loaded models, or those of ``?model=``, whose state then
    decides. ``?fail_on_no_slot=1`` returns 503 if no slot is idle, as llama-server's early versions. Without a valid
    key only the status is returned if there are keys.
    """
    sees_reasons = knows_all(request)
    if model and not sees_reasons:
        raise AuthenticationFailed("the health of one model requires an API key")
    pool = services(request).pool
    try:
        states = [pool.state(model)] if model else pool.states()
    except ModelNotFound:  # which lists the known names
        raise NotFound("model not found") from None
    if len(states) == 1:
        with shown_reasons(request):
            raise_unless_serving(states[0])
    n_idle, n_processing = map(sum, zip(*map(slot_counts, states), strict=True)) if states else (0, 0)
    counts = {"slots_idle": n_idle, "slots_processing": n_processing} if sees_reasons else {}
    if not fail_on_no_slot or n_idle or not n_processing:
        return json_reply({"status": "ok", **counts})
    error = {"code": _FULL_STATUS, "message": NO_SLOT, "type": "unavailable_error"}
    return json_reply({"error": error, "status": NO_SLOT, **counts}, status=_FULL_STATUS)


@router.get("/")
@describe(media="text/html", errors=(404,))
async def root(request: Request) -> Response:
    """Serve the web UI; 404 with ``--no-ui``. HEAD always succeeds, because Ollama's clients send one first."""
    if request.scope.get(HEAD_ONLY):
        return Response("Llamapool is running", media_type="text/plain")
    raise NotFound("File Not Found")


@router.get("/livez")
@describe("$Health")
async def livez(request: Request) -> Response:
    """Return 200 while the event loop runs and steps end; a failure deserves a restart. ``memory`` reports low memory,
    which a restart would not help.
    """
    if services(request).pool.hangs:
        raise Unavailable("a step hangs; only a restart ends it")
    body = {"status": "ok"}
    if knows_all(request) and (short := services(request).memory.shortage):
        body["memory"] = short
    return json_reply(body)


@router.get("/readyz")
@describe("$Health", errors=(503,))
async def readyz(request: Request) -> Response:
    """Return 200 once no model that loads at start is still loading and one of them serves; failed ones are named.

    A failed model takes the others' traffic away only if none is left. 503 as soon as the server is to stop, and while
    its memory is short (``memory_reserve``).
    """
    used = services(request)
    if used.draining.is_set() or used.leaving.is_set():
        raise ShuttingDown
    with shown_reasons(request):
        if used.memory.shortage:
            raise Unavailable(used.memory.shortage)
        failed = failed_models(used.pool.states())
    return json_reply({"status": "ok", "failed": failed} if failed and knows_all(request) else {"status": "ok"})


def knows_all(request: Request) -> bool:
    """Return whether the client may see names and reasons: it sent a key, or the server has none."""
    return caller_of(request) is not None


@contextlib.contextmanager
def shown_reasons(request: Request) -> Iterator[None]:
    """Replace errors by ones without model names, paths or reasons, unless the client may see these."""
    try:
        yield
    except Unavailable as error:
        if knows_all(request) or isinstance(error, ModelLoading):  # which names none
            raise
        raise Unavailable(NOT_READY) from None


def failed_models(states: list[ModelState]) -> dict[str, str]:
    """Return the reasons of failed models by id. Raises `Unavailable` while models load, or if none serves.

    A model that only waits for room serves: a request unloads others for it, and without traffic none would leave.
    """
    wanted = [s for s in states if s.spec.load == "startup"]
    pending = [s.spec.id for s in wanted if is_pending(s)]
    if pending:
        raise Unavailable(f"Loading model: {', '.join(pending)}")
    if wanted and all(s.failed and (s.failure != NO_ROOM or s.status is Status.LOADING) for s in wanted):
        raise Unavailable("; ".join(_failure(state) for state in wanted))
    return {s.spec.id: s.failure for s in wanted if s.failure}


def slot_counts(state: ModelState) -> tuple[int, int]:
    """Return the idle and the busy slots of all instances of a model; none while it is not loaded.

    The slots of a sleeping model are idle, since a request wakes it. While a model is unloaded only busy slots count.
    """
    if state.loaded is None:
        return (state.facts.n_slots if state.facts and state.status is Status.SLEEPING else 0), 0
    slots = state.loaded.slots()
    n_processing = sum(slot.is_processing for slot in slots)
    return (len(slots) - n_processing if state.status is Status.READY else 0), n_processing


def raise_unless_serving(state: ModelState) -> None:
    """Raise `ModelLoading` or `ModelFailed` for the only model."""
    if is_pending(state):
        raise ModelLoading
    if state.status is Status.FAILED:
        raise ModelFailed(state.spec.id, state.failure)
    if state.failed:
        raise Unavailable(_failure(state))


def _failure(state: ModelState) -> str:
    what = "failed to load" if state.status is Status.FAILED else "has failed"
    return f"model '{state.spec.id}' {what}: {state.failure}"


def is_pending(state: ModelState) -> bool:
    """Return whether the model is being downloaded or loaded, or waits for that."""
    return (state.status in (Status.DOWNLOADING, Status.LOADING) or state.queued) and not state.restarting
