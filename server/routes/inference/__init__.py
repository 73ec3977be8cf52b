"""What clients ask of a model, one file per API or task, and the replies that are still being written."""

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

__all__ = [
    "ROUTERS",
    "audio",
    "chat",
    "completions",
    "control",
    "embeddings",
    "messages",
    "native",
    "ollama",
    "rerank",
    "responses",
    "streams",
    "tokens",
]

ROUTERS = (
    chat.router,
    control.router,
    streams.router,
    messages.router,
    responses.router,
    completions.router,
    native.router,
    embeddings.router,
    audio.router,
    rerank.router,
    tokens.router,
    ollama.router,
)
