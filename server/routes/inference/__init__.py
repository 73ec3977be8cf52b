"""What clients ask of a model, one file per API or task, and the replies that are still being written."""

from fastapi import APIRouter

from server.routes.inference import (
    audio,
    chat,
    completions,
    control,
    embeddings,
    messages,
    native,
    ollama,
    rerank,
    responses,
    streams,
    tokens,
)

_MODULES = (chat, control, streams, messages, responses, completions, native, embeddings, audio, rerank, tokens, ollama)
ROUTERS: tuple[APIRouter, ...] = tuple(module.router for module in _MODULES)
