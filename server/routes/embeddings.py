"""Embeddings and scores: OpenAI's /v1/embeddings, llama-server's /embedding and /rerank, Cohere's."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.completions.prompt import prompt_media
from server.dialects.vectors import (
    COHERE_FIELDS,
    EmbeddingsBody,
    RerankBody,
    embeddings_job,
    read_embeddings,
    read_rerank,
    rerank_job,
)
from server.dialects.warnings import Known, as_header, unused_fields
from server.routes.openapi import RUNS, describe
from server.serving.generate import embed
from server.transport.body import read_as

router = APIRouter(tags=["vectors"])
_RANKED = {"query": "a planet", "documents": ["Mars", "a panda"]}


@router.post("/v1/embeddings")
@describe("$Embeddings", EmbeddingsBody, {"input": ["Hi", "Hello"]}, errors=RUNS, loads=True)
async def openai_embeddings(request: Request) -> Response:
    """OpenAI embeddings."""
    return await _embeddings(request, openai=True)


@router.post("/embedding")
@router.post("/embeddings")
@describe(["$NativeEmbedding"], EmbeddingsBody, {"content": "Hi"}, errors=RUNS, loads=True)
async def native_embeddings(request: Request) -> Response:
    """llama-server's own reply: a list, with a vector for each token where the pooling is none."""
    return await _embeddings(request, openai=False)


async def _embeddings(request: Request, *, openai: bool) -> Response:
    wanted, headers = await read_as(
        request,
        lambda given: (read_embeddings(given, native=not openai), as_header(unused_fields(given, EmbeddingsBody))),
    )
    return await embed(
        request,
        wanted.body.model,
        "embed",
        lambda model, seen: embeddings_job(wanted, model, seen, openai=openai),
        headers,
        media=prompt_media(wanted.prompts),
    )


@router.post("/rerank")
@router.post("/reranking")
@router.post("/v1/rerank")
@router.post("/v1/reranking")
@describe(("$Reranked", ["$TeiRank"]), RerankBody, _RANKED, errors=RUNS, loads=True)
async def rerank(request: Request) -> Response:
    """Documents by their relevance to a query, in Jina's shape or, where ``texts`` is given, in TEI's."""
    return await _rerank(request, RerankBody)


@router.post("/v2/rerank")
@describe("$CohereReranked", RerankBody, _RANKED | {"top_n": 1}, errors=RUNS, loads=True)
async def cohere_rerank(request: Request) -> Response:
    """Documents by their relevance to a query, in the shape of Cohere's second API."""
    return await _rerank(request, COHERE_FIELDS, cohere=True)


async def _rerank(request: Request, known: Known, *, cohere: bool = False) -> Response:
    wanted, headers = await read_as(
        request, lambda given: (read_rerank(given, cohere=cohere), as_header(unused_fields(given, known)))
    )
    return await embed(request, wanted.body.model, "rerank", lambda model, _: rerank_job(wanted, model), headers)
