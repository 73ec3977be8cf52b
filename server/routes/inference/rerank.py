"""``POST /rerank`` under its four names."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.routes.embed import embed, read_able
from server.wire.vectors.rerank import read_rerank, rerank_job

router = APIRouter(tags=["rerank"])


@router.post("/rerank")
@router.post("/reranking")
@router.post("/v1/rerank")
@router.post("/v1/reranking")
async def rerank(request: Request) -> Response:
    """Documents by their relevance to a query, in Jina's shape or, where ``texts`` is given, in TEI's."""
    wanted = await read_able(request, "rerank", read_rerank)
    return await embed(request, wanted.body.model, "rerank", lambda model, _: rerank_job(wanted, model))
