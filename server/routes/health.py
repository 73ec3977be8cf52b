"""Health, liveness and readiness of the server. These endpoints need no key."""

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
    """Return the server's health: with one model 503 "Loading model" while it loads, with several 200.

    ``slots_idle`` and ``slots_processing`` count the slots of all loaded models, or of ``?model=``, whose state then
    sets the status. ``?fail_on_no_slot=1`` returns 503 if no slot is idle, as llama-server's early versions. If the
    server has keys, a client without a valid key gets only the status.
    """
    may_see = sees_reasons(request)
    if model and not may_see:
        raise AuthenticationFailed("the health of one model requires an API key")
    pool = services(request).pool
    try:
        states = [pool.state(model)] if model else pool.states()
    except ModelNotFound:  # its message lists the known names
        raise NotFound("model not found") from None
    if len(states) == 1:
        with hidden_reasons(request):
            raise_unless_serving(states[0])
    n_idle, n_processing = map(sum, zip(*map(slot_counts, states), strict=True)) if states else (0, 0)
    counts = {"slots_idle": n_idle, "slots_processing": n_processing} if may_see else {}
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
    """Return 200 while the event loop runs and steps end. Restart the server if it fails.

    ``memory`` reports low memory, which a restart does not fix.
    """
    if services(request).pool.hangs:
        raise Unavailable("a step hangs; only a restart ends it")
    body = {"status": "ok"}
    if sees_reasons(request) and (short := services(request).memory.shortage):
        body["memory"] = short
    return json_reply(body)


@router.get("/readyz")
@describe("$Health", errors=(503,))
async def readyz(request: Request) -> Response:
    """Return 200 unless a startup model is loading or all of them have failed; ``failed`` lists failed models.

    Returns 503 otherwise, from the start of a shutdown, and while memory is low (``memory_reserve``).
    """
    app = services(request)
    if app.draining.is_set() or app.leaving.is_set():
        raise ShuttingDown
    with hidden_reasons(request):
        if app.memory.shortage:
            raise Unavailable(app.memory.shortage)
        failed = failed_models(app.pool.states())
    return json_reply({"status": "ok", "failed": failed} if failed and sees_reasons(request) else {"status": "ok"})


def sees_reasons(request: Request) -> bool:
    """Return whether the client may see model names and error reasons: it sent a key, or the server has no keys."""
    return caller_of(request) is not None


@contextlib.contextmanager
def hidden_reasons(request: Request) -> Iterator[None]:
    """Replace errors by one without model names, paths and reasons, unless the client may see these."""
    try:
        yield
    except Unavailable as error:
        if sees_reasons(request) or isinstance(error, ModelLoading):  # its message names no model
            raise
        raise Unavailable(NOT_READY) from None


def failed_models(states: list[ModelState]) -> dict[str, str]:
    """Return the reasons of failed models by id. Raises `Unavailable` while models load, or if none serves.

    A model that only waits for memory counts as serving: a request unloads other models for it.
    """
    startup = [s for s in states if s.spec.load == "startup"]
    pending = [s.spec.id for s in startup if is_pending(s)]
    if pending:
        raise Unavailable(f"Loading model: {', '.join(pending)}")
    if startup and all(s.failed and (s.failure != NO_ROOM or s.status is Status.LOADING) for s in startup):
        raise Unavailable("; ".join(_failure(state) for state in startup))
    return {s.spec.id: s.failure for s in startup if s.failure}


def slot_counts(state: ModelState) -> tuple[int, int]:
    """Return the numbers of idle and busy slots of a model, over all instances; (0, 0) while it is not loaded.

    The slots of a sleeping model are idle, since a request wakes it. While a model unloads, only busy slots count.
    """
    if state.loaded is None:
        return (state.facts.n_slots if state.facts and state.status is Status.SLEEPING else 0), 0
    slots = state.loaded.slots()
    n_processing = sum(slot.is_processing for slot in slots)
    return (len(slots) - n_processing if state.status is Status.READY else 0), n_processing


def raise_unless_serving(state: ModelState) -> None:
    """Raise `ModelLoading`, `ModelFailed` or `Unavailable` unless the model serves."""
    if is_pending(state):
        raise ModelLoading
    if state.status is Status.FAILED:
        raise ModelFailed(state.spec.id, state.failure)
    if state.failed:
        raise Unavailable(_failure(state))


def _failure(state: ModelState) -> str:
    problem = "failed to load" if state.status is Status.FAILED else "has failed"
    return f"model '{state.spec.id}' {problem}: {state.failure}"


def is_pending(state: ModelState) -> bool:
    """Return whether the model is downloading, loading, or queued for it."""
    return (state.status in (Status.DOWNLOADING, Status.LOADING) or state.queued) and not state.restarting
