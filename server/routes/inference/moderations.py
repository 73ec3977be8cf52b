"""``POST /v1/moderations``: not supported."""

from fastapi import APIRouter
from fastapi.responses import Response

from server.errors import NotSupported
from server.routes.openapi import describe

router = APIRouter(tags=["moderations"])


@router.post("/v1/moderations")
@describe(status=None, errors=(501,))
async def create_moderation() -> Response:
    """Refuse: no model here returns OpenAI's categories of harmful content with scores."""
    raise NotSupported(
        "moderations: this server has no classifier for OpenAI's categories of harmful content; load a guard model "
        "such as Llama Guard and ask it at /v1/chat/completions"
    )
