"""Embeddings and reranking: OpenAI's /v1/embeddings, llama-server's /embedding and /rerank, Cohere's /v2/rerank."""

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.vectors import EmbeddingsBody, RerankBody, read_embeddings, read_rerank
from server.routes.openapi import computes
from server.serving.generate import embed
from server.transport.body import read_as

router = APIRouter(tags=["vectors"])
_RERANK = {"query": "a planet", "documents": ["Mars", "a panda"]}


@router.post("/v1/embeddings")
@computes("$Embeddings", EmbeddingsBody, {"input": ["Hi", "Hello"]})
async def openai_embeddings(request: Request) -> Response:
    """Create embeddings in OpenAI's format."""
    return await embed(request, await read_as(request, partial(read_embeddings, native=False)))


@router.post("/embedding")
@router.post("/embeddings")
@computes(["$NativeEmbedding"], EmbeddingsBody, {"content": "Hi"})
async def native_embeddings(request: Request) -> Response:
    """Create embeddings in llama-server's own format: one vector for each text, or each token with pooling none."""
    return await embed(request, await read_as(request, partial(read_embeddings, native=True)))


@router.post("/rerank")
@router.post("/reranking")
@router.post("/v1/rerank")
@router.post("/v1/reranking")
@computes(("$Reranked", ["$TeiRank"]), RerankBody, _RERANK)
async def rerank(request: Request) -> Response:
    """Rank documents by their relevance to a query, in Jina's format, or in TEI's for a body with ``texts``."""
    return await embed(request, await read_as(request, read_rerank))


@router.post("/v2/rerank")
@computes("$CohereReranked", RerankBody, _RERANK | {"top_n": 1})
async def cohere_rerank(request: Request) -> Response:
    """Rank documents by their relevance to a query, in the format of Cohere's API v2."""
    return await embed(request, await read_as(request, partial(read_rerank, cohere=True)))
