"""What the official client raises, and what its exceptions carry."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from tests.clients.conftest import ENDLESS, N_CTX, QUIET
from tests.clients.slots import metric, wait_until
from tests.support.real_server import llamapool_config

HELLO: Any = [{"role": "user", "content": "hello"}]
ONE_SLOT = """
server: {{metrics: true}}
models:
  m: {{path: {model}, n_ctx: {n_ctx}, n_parallel: 1, n_threads: 1, max_queue: 1, load: startup}}
"""


def test_a_full_queue_is_a_rate_limit_with_a_time_to_wait(client: OpenAI, model: Path, tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(ONE_SLOT.format(model=model, n_ctx=N_CTX))
    short: Any = {"model": "m", "messages": HELLO, "max_tokens": 9, "extra_body": {"ignore_eos": True}}
    endless = short | {"max_tokens": ENDLESS}
    with ExitStack() as stack:
        server = stack.enter_context(llamapool_config(config, environment=QUIET))
        client = stack.enter_context(client.with_options(base_url=f"{server.base_url}/v1"))
        running = stack.enter_context(client.chat.completions.create(**endless, stream=True))
        next(iter(running))
        create: Callable[..., ChatCompletion] = client.chat.completions.create
        waiting = stack.enter_context(ThreadPoolExecutor(1)).submit(create, **short)
        wait_until(lambda: metric(server, "llamacpp:requests_deferred") == 1, "one request waits")
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**short)
        running.close()
        assert waiting.result().choices[0].finish_reason == "length"
    assert caught.value.code == "rate_limit_exceeded"
    assert int(caught.value.response.headers["retry-after"]) >= 1
