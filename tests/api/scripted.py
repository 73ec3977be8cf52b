"""Models with scripted replies, and OpenAI's official client connected to one."""

import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.api.conftest import Api, Serve
from tests.support.fakes import FakeLoader

TURN = "<|im_end|>\n<|im_start|>assistant\n"
CHATML: dict[str, dict[str, Any]] = {"demo": {"path": "demo.gguf", "load": "startup", "chat_template": "chatml"}}
"""One model whose chat template supports tools."""


def answering(replies: Mapping[str, str], *, n_ctx: int = 2048, **options: Any) -> FakeLoader:
    """Return a loader of models that answer the end of the last message with its value in `replies`.

    A key ``tool:TEXT`` matches a tool result that is exactly TEXT.
    """
    ends = {
        (f"<tool_response>\n{end[5:]}\n</tool_response>" if end.startswith("tool:") else end) + TURN: reply
        for end, reply in replies.items()
    }
    return FakeLoader(n_ctx_seq=n_ctx, replies=ends, **options)


def tool_call(name: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> str:
    """Return the text of a tool call in ChatML."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {**(arguments or {}), **more}})}\n</tool_call>"


@asynccontextmanager
async def serve_scripted(
    serve: Serve,
    replies: Mapping[str, str],
    steps: threading.Semaphore | None = None,
    *,
    n_parallel: int = 4,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    **server: Any,
) -> AsyncIterator[tuple[Api, AsyncOpenAI]]:
    """Serve a model with scripted `replies`, and other `models`. Yield the application and OpenAI's client.

    Each decode takes one permit of `steps`.
    """
    every = {"demo": CHATML["demo"] | {"n_parallel": n_parallel}, **(models or {})}
    async with serve(answering(replies, n_ctx=4096, steps=steps), models=every, server=server) as api:
        yield api, openai_client(api)


def openai_client(api: Api, key: str = "sk-one") -> AsyncOpenAI:
    """Return OpenAI's official client, connected to `api` without a socket."""
    http: Any = api.client  # httpx and the client's own copy of it have the same interface
    return AsyncOpenAI(base_url="http://test/v1", api_key=key, http_client=http, max_retries=0, timeout=60)


def anthropic_client(api: Api, key: str = "sk-one") -> AsyncAnthropic:
    """Return Anthropic's official client, connected to `api` without a socket."""
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(api.app), base_url="http://test")
    return AsyncAnthropic(base_url="http://test", auth_token=key, http_client=http, max_retries=0, timeout=60)
