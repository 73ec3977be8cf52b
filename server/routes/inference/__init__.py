"""Inference endpoints, one file per folder of `server.dialects`, plus `streams` (resumable replies) and `tokens`."""

from fastapi import APIRouter

from server.routes.inference import (
    batches,
    chat,
    completions,
    conversations,
    files,
    messages,
    ollama,
    responses,
    streams,
    tokens,
    transcriptions,
    vectors,
    vertex,
)

_MODULES = (
    chat,
    streams,
    batches,
    messages,
    responses,
    conversations,
    files,
    completions,
    vectors,
    transcriptions,
    tokens,
    ollama,
    vertex,
)
ROUTERS: tuple[APIRouter, ...] = tuple(module.router for module in _MODULES)
