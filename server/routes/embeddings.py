"""Embeddings and scores: OpenAI's /v1/embeddings, llama-server's /embedding and /rerank, Cohere's."""

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.vectors import EmbeddingsBody, RerankBody, read_embeddings, read_rerank
from server.routes.openapi import computes
from server.serving.generate import embed
from server.transport.body import read_as

router = APIRouter(tags=["vectors"])
_RANKED = {"query": "a planet", "documents": ["Mars", "a panda"]}


@router.post("/v1/embeddings")
@computes("$Embeddings", EmbeddingsBody, {"input": ["Hi", "Hello"]})
async def openai_embeddings(request: Request) -> Response:
    """OpenAI embeddings."""
    return await embed(request, await read_as(request, partial(read_embeddings, native=False)))


@router.post("/embedding")
@router.post("/embeddings")
@computes(["$NativeEmbedding"], EmbeddingsBody, {"content": "Hi"})
async def native_embeddings(request: Request) -> Response:
    """Return embeddings in llama-server's own list, with a vector for each token where the pooling is none."""
    return await embed(request, await read_as(request, partial(read_embeddings, native=True)))


@router.post("/rerank")
@router.post("/reranking")
@router.post("/v1/rerank")
@router.post("/v1/reranking")
@computes(("$Reranked", ["$TeiRank"]), RerankBody, _RANKED)
async def rerank(request: Request) -> Response:
    """Rank documents by their relevance to a query, in Jina's shape or, where ``texts`` is given, in TEI's."""
    return await embed(request, await read_as(request, read_rerank))


@router.post("/v2/rerank")
@computes("$CohereReranked", RerankBody, _RANKED | {"top_n": 1})
async def cohere_rerank(request: Request) -> Response:
    """Rank documents by their relevance to a query, in the shape of Cohere's second API."""
    return await embed(request, await read_as(request, partial(read_rerank, cohere=True)))
