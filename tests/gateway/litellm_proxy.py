"""Run LiteLLM's proxy with deploy/gateway/litellm.yaml and two servers as backends: ``make gateway``.

``LITELLM`` names the proxy's program. It has its own virtual environment, because its dependencies differ from ours.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from tests.support.real_server import ROOT, RealServer, free_port, llamapool
from tests.support.tools import tool

KEY, MASTER = "llp-gateway", "sk-gateway"
QUESTION = "What is the capital of France?"
CITY = {"city": {"type": "string", "maxLength": 12}}
TOOL = tool("get_weather", CITY, function={"strict": True}, additionalProperties=False)


class Proxy(RealServer):
    """The proxy. Its readiness check needs a database, so its liveness is checked instead."""

    health = "/health/liveliness"


class Gateway:
    def __init__(self, servers: list[RealServer], proxy: Proxy) -> None:
        self.servers = servers
        self.client = OpenAI(base_url=f"{proxy.base_url}/v1", api_key=MASTER, max_retries=0)
        self.direct = [OpenAI(base_url=f"{server.base_url}/v1", api_key=KEY, max_retries=0) for server in servers]


def serve() -> RealServer:
    return llamapool(ROOT / "models" / "demo.gguf", "-a", "demo", "--reasoning", "off", "--api-key", KEY)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home = tmp_path_factory.mktemp("home")
    with ExitStack() as stack:
        servers = [stack.enter_context(serve()) for _ in range(2)]
        port = free_port()
        command = [os.environ["LITELLM"], "--config", str(ROOT / "deploy/gateway/litellm.yaml"), "--port", str(port)]
        environment = {
            "HOME": str(home),
            "BACKEND_A": f"{servers[0].base_url}/v1",
            "BACKEND_B": f"{servers[1].base_url}/v1",
            "BACKEND_KEY": KEY,
            "LITELLM_MASTER_KEY": MASTER,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no request to another host
            "NO_PROXY": "*",
        }
        proxy = stack.enter_context(Proxy([*command, "--host", "127.0.0.1"], port, environment, ends_with=-15))
        yield Gateway(servers, proxy)


def test_chat_has_text_and_usage_of_the_server(gateway: Gateway) -> None:
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    through = gateway.client.chat.completions.create(model="chat", **body)  # type: ignore[call-overload]
    direct = gateway.direct[0].chat.completions.create(model="demo", **body)  # type: ignore[call-overload]
    assert through.choices[0].message.content == direct.choices[0].message.content == "The capital of France is Paris."
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(through.usage, field) == getattr(direct.usage, field)


def test_stream_arrives_in_several_chunks_with_usage(gateway: Gateway) -> None:
    stream = gateway.client.chat.completions.create(
        model="chat",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "The capital of France is Paris."
    assert sum(map(bool, texts)) > 3
    usage = next(chunk.usage for chunk in reversed(chunks) if chunk.usage)
    assert usage.completion_tokens > 3


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_forwarded(gateway: Gateway, *, stream: bool) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "The weather in Paris?"}], "tools": [TOOL]}
    forced = {"tool_choice": "required", "max_tokens": 99, "temperature": 0}
    if stream:
        parts = gateway.client.chat.completions.create(**body, **forced, stream=True)  # type: ignore[call-overload]
        found = [call.function for part in parts if part.choices for call in part.choices[0].delta.tool_calls or ()]
        name, arguments = found[0].name, "".join(call.arguments or "" for call in found)
    else:
        reply = gateway.client.chat.completions.create(**body, **forced)  # type: ignore[call-overload]
        call = reply.choices[0].message.tool_calls[0]
        assert isinstance(call, ChatCompletionMessageFunctionToolCall)
        name, arguments = call.function.name, call.function.arguments
    assert name == "get_weather"
    assert set(json.loads(arguments)) == {"city"}


def test_requests_continue_when_a_server_dies(gateway: Gateway) -> None:
    """Must be the last test, because it stops the first server. Both kinds of fallback reach the second one."""
    gateway.servers[0].process.terminate()
    gateway.servers[0].process.wait(60)
    for model in ("chat-a", "chat", "chat", "chat", "chat"):
        reply = gateway.client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0
        )
        assert reply.choices[0].message.content == "The capital of France is Paris."
