"""Is the server up, and ready? Open without a key."""

from fastapi import APIRouter, Request, Response

from server.errors import ModelFailed, ModelLoading, ShuttingDown, Unavailable
from server.pool.state import ModelState, Status
from server.routes.services import services
from server.transport.reply import json_reply

router = APIRouter(tags=["health"])


@router.get("/health")
@router.get("/v1/health")
@router.head("/health", include_in_schema=False)
@router.head("/v1/health", include_in_schema=False)
async def health(request: Request) -> Response:
    """llama-server's: 503 "Loading model" while the only model loads. With several models the server itself counts."""
    states = services(request).pool.states()
    if len(states) == 1:
        raise_unless_serving(states[0])
    return json_reply({"status": "ok"})


@router.get("/livez")
@router.head("/livez", include_in_schema=False)
async def livez() -> Response:
    """200 for as long as the event loop runs: what fails it deserves a restart."""
    return json_reply({"status": "ok"})


@router.get("/readyz")
@router.head("/readyz", include_in_schema=False)
async def readyz(request: Request) -> Response:
    """200 once no model that loads at start is still loading and one of them serves; failed ones are named.

    A failed model takes the others' traffic away only if none is left. 503 while the server stops.
    """
    used = services(request)
    if used.draining.is_set():
        raise ShuttingDown
    return readiness(used.pool.states())


def readiness(states: list[ModelState]) -> Response:
    """The reply of /readyz for these models."""
    wanted = [s for s in states if s.spec.load == "startup"]
    pending = [s.spec.id for s in wanted if is_pending(s)]
    if pending:
        raise Unavailable(f"Loading model: {', '.join(pending)}")
    failed = {s.spec.id: s.failure for s in wanted if s.status is Status.FAILED}
    if failed and len(failed) == len(wanted):
        raise Unavailable("; ".join(f"model '{name}' failed to load: {reason}" for name, reason in failed.items()))
    return json_reply({"status": "ok", "failed": failed} if failed else {"status": "ok"})


def raise_unless_serving(state: ModelState) -> None:
    """Raise `ModelLoading` or `ModelFailed` for the only model."""
    if is_pending(state):
        raise ModelLoading
    if state.status is Status.FAILED:
        raise ModelFailed(state.spec.id, state.failure)


def is_pending(state: ModelState) -> bool:
    """Whether the model is on its way: loading, waiting for its turn, or about to be started."""
    return state.status is Status.LOADING or state.queued
