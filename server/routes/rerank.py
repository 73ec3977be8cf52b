"""``POST /rerank`` under its four names."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.rerank import read_rerank, rerank_job
from server.routes.embed import embed, refuse_unable
from server.transport.body import read_json

router = APIRouter(tags=["rerank"])


@router.post("/rerank")
@router.post("/reranking")
@router.post("/v1/rerank")
@router.post("/v1/reranking")
async def rerank(request: Request) -> Response:
    """Documents by their relevance to a query, in Jina's shape or, where ``texts`` is given, in TEI's."""
    given = await read_json(request)
    refuse_unable(request, given.get("model"), "rerank")
    wanted = read_rerank(given)
    return await embed(request, wanted.body.model, "rerank", lambda model: rerank_job(wanted, model))
