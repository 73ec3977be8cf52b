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

from tests.clients.conftest import API_KEY, ENDLESS, N_CTX, QUIET
from tests.clients.slots import metric, wait_until
from tests.support.real_server import REPLY_S, RealServer, llamapool_config

HELLO: Any = [{"role": "user", "content": "hello"}]
ONE_SLOT = """
server: {{metrics: true}}
models:
  m: {{path: {model}, n_ctx: {n_ctx}, n_parallel: 1, n_threads: 1, max_queue: 1, load: startup}}
"""


def body(error: openai.APIStatusError) -> dict[str, Any]:
    assert isinstance(error.body, dict)
    return error.body


def test_a_prompt_that_is_too_long(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="word " * N_CTX)
    assert (caught.value.code, caught.value.type) == ("context_length_exceeded", "exceed_context_size_error")
    assert body(caught.value)["n_ctx"] == N_CTX
    assert body(caught.value)["n_prompt_tokens"] > N_CTX


@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_field_is_named(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=HELLO, temperature="hot", stream=stream)  # type: ignore[call-overload]
    assert caught.value.type == "invalid_request_error"
    assert (caught.value.code, caught.value.param) == ("invalid_value", "temperature")
    assert "temperature" in caught.value.message


def test_a_schema_that_is_none_is_refused(client: OpenAI) -> None:
    wrong: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "sound"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=HELLO, response_format=wrong)
    assert caught.value.type == "invalid_request_error"


def test_an_unknown_model_lists_the_known_ones(keyed_client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        keyed_client.chat.completions.create(model="third", messages=HELLO)
    assert "first" in caught.value.message
    assert "second" in caught.value.message
    with pytest.raises(openai.NotFoundError) as lookup:
        keyed_client.models.retrieve("third")
    assert (caught.value.code, lookup.value.code) == ("model_not_found", "model_not_found")


def test_an_endpoint_that_does_not_exist(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.get("/nowhere", cast_to=object)
    assert body(caught.value)["type"] == "not_found_error"


def test_a_wrong_key_is_refused(guarded: RealServer) -> None:
    with (
        OpenAI(base_url=f"{guarded.base_url}/v1", api_key="sk-wrong", max_retries=0, timeout=REPLY_S) as stranger,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        stranger.chat.completions.create(model="first", messages=HELLO)
    assert (caught.value.code, caught.value.type) == ("invalid_api_key", "authentication_error")


def test_no_key_is_refused_but_health_is_open(guarded: RealServer) -> None:
    assert guarded.request("POST", "/v1/chat/completions", {"messages": HELLO}).status == 401
    assert guarded.request("GET", "/v1/chat/completions", headers={"X-Api-Key": API_KEY}).status == 405
    assert guarded.request("GET", "/health").status == 200


def test_the_right_key_reaches_both_models(keyed_client: OpenAI) -> None:
    assert {model.id for model in keyed_client.models.list()} == {"first", "second"}
    for name in ("first", "gpt-4o-mini", "second"):
        assert keyed_client.chat.completions.create(model=name, messages=HELLO, max_tokens=1).choices


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
