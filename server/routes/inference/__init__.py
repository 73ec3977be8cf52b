"""What clients ask of a model, one file for each folder of `server.wire`; beside them `streams`, the replies that go on
without their client, and `tokens`."""

from fastapi import APIRouter

from server.routes.inference import (
    chat,
    completions,
    messages,
    ollama,
    responses,
    streams,
    tokens,
    transcriptions,
    vectors,
)

_MODULES = (chat, streams, messages, responses, completions, vectors, transcriptions, tokens, ollama)
ROUTERS: tuple[APIRouter, ...] = tuple(module.router for module in _MODULES)
