"""Prometheus' view of the server."""

from fastapi import APIRouter, Request, Response

from server.errors import NotSupported
from server.routes.openapi import TEXT, describe
from server.routes.services import services

router = APIRouter(tags=["monitoring"])


@router.get("/metrics")
@describe(media=TEXT, errors=(404, 501))
async def metrics(request: Request, model: str = "") -> Response:
    """llama-server's metrics with a label ``model``, histograms, HTTP and process metrics.

    With ``?model=`` those of one model without the label, as llama-server's router gives them; nothing is loaded.
    """
    used = services(request)
    if not used.options.metrics:
        raise NotSupported("This server does not support metrics endpoint. Start it with `--metrics`")
    only = used.pool.state(model).spec.id if model else ""
    body, content_type = used.metrics.render(request.headers.get("accept", ""), only)
    return Response(
        body,
        headers={
            "Content-Type": content_type,
            "Process-Start-Time-Unix": str(int(used.metrics.started_at)),
        },
    )
