"""OpenAI's official client over an application with a scripted model."""

import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI

from tests.api.conftest import Api, Serve
from tests.support.fakes import FakeLoader, FakeRunner

TURN = "<|im_end|>\n<|im_start|>assistant\n"


@asynccontextmanager
async def opened(
    serve: Serve,
    replies: Mapping[str, str],
    steps: threading.Semaphore | None = None,
    *,
    n_parallel: int = 4,
    **server: Any,
) -> AsyncIterator[tuple[Api, AsyncOpenAI]]:
    """Serve a model that answers the user's messages in `replies`. ``steps`` lets single steps through."""
    ends = {message + TURN: reply for message, reply in replies.items()}
    loader = FakeLoader(runner=lambda: FakeRunner(n_ctx_seq=4096, replies=ends, steps=steps))
    model = {"path": "demo.gguf", "load": "startup", "chat_template": "chatml", "n_parallel": n_parallel}
    async with serve(loader, models={"demo": model}, server=server) as api:
        http: Any = api.client  # httpx and the client's own copy of it have the same interface
        yield api, AsyncOpenAI(base_url="http://test/v1", api_key="sk-one", http_client=http, max_retries=0, timeout=60)
