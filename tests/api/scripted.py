"""Models that answer what a test says, and OpenAI's official client over one."""

import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI

from tests.api.conftest import Api, Serve
from tests.support.fakes import FakeLoader

TURN = "<|im_end|>\n<|im_start|>assistant\n"
CHATML: dict[str, dict[str, Any]] = {"demo": {"path": "demo.gguf", "load": "startup", "chat_template": "chatml"}}
"""One model whose template knows tools."""


def answering(replies: Mapping[str, str], *, n_ctx: int = 2048, **options: Any) -> FakeLoader:
    """Load a model that answers what the last message ends with; ``tool:`` and a text is a tool's whole result."""
    ends = {
        (f"<tool_response>\n{said[5:]}\n</tool_response>" if said.startswith("tool:") else said) + TURN: reply
        for said, reply in replies.items()
    }
    return FakeLoader(n_ctx_seq=n_ctx, replies=ends, **options)


def tool_call(name: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> str:
    """Return what a model writes to call a tool in ChatML."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {**(arguments or {}), **more}})}\n</tool_call>"


@asynccontextmanager
async def opened(
    serve: Serve,
    replies: Mapping[str, str],
    steps: threading.Semaphore | None = None,
    *,
    n_parallel: int = 4,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    **server: Any,
) -> AsyncIterator[tuple[Api, AsyncOpenAI]]:
    """Serve a model that answers the user's messages in `replies`, and other `models`. ``steps`` lets single steps
    through.
    """
    every = {"demo": CHATML["demo"] | {"n_parallel": n_parallel}, **(models or {})}
    async with serve(answering(replies, n_ctx=4096, steps=steps), models=every, server=server) as api:
        http: Any = api.client  # httpx and the client's own copy of it have the same interface
        yield api, AsyncOpenAI(base_url="http://test/v1", api_key="sk-one", http_client=http, max_retries=0, timeout=60)
