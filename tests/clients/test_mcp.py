"""MCP servers of the official package behind a real server, as the official clients use them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic.types.beta import BetaMessage
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.mcp_server import STDIO
from tests.support.real_server import REPLY_S, ROOT, RealServer, llamapool

RESPONSE, EVENT = TypeAdapter[Response](Response), TypeAdapter[ResponseStreamEvent](ResponseStreamEvent)
MESSAGE = TypeAdapter[BetaMessage](BetaMessage)
TOOL: Any = {"type": "mcp", "server_label": "calc", "require_approval": "never", "allowed_tools": ["add"]}
CHOICE: Any = {"type": "mcp", "server_label": "calc", "name": "add"}
QUESTION = "What is 1 plus 2? Add them."


@pytest.fixture(scope="module")
def served() -> Iterator[RealServer]:
    """The default model with one MCP server over stdio."""
    servers = json.dumps({"mcpServers": {"calc": {**STDIO, "cwd": str(ROOT)}}})
    flags = ("-c", "8192", "-np", "2", "-t", "1", "-a", "demo", "--mcp-servers-json", servers, "--mcp-api", "calc")
    environment = {"OMP_WAIT_POLICY": "passive", "LLAMAPOOL_SERVER__STATE": "memory"}
    with llamapool(ROOT / "models" / "demo.gguf", *flags, environment=environment) as running:
        yield running


@pytest.fixture
def client(served: RealServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.base_url}/v1", api_key="none", max_retries=0, timeout=REPLY_S) as openai:
        yield openai


def test_openais_client_gets_the_loop_in_one_response(client: OpenAI) -> None:
    asked: Any = {"model": "demo", "input": QUESTION, "tools": [TOOL], "tool_choice": CHOICE, "temperature": 0}
    whole = client.responses.create(**asked)
    RESPONSE.validate_python(json.loads(whole.to_json()))
    listed, called, *rest = whole.output
    assert (listed.type, called.type) == ("mcp_list_tools", "mcp_call")
    assert called.status == "completed"
    assert called.output == str(sum(json.loads(called.arguments).values()))
    assert any(item.type == "message" for item in rest)
    found = [EVENT.validate_python(event.model_dump()) for event in client.responses.create(**asked, stream=True)]
    kinds = [event.type for event in found]
    assert "response.mcp_call_arguments.done" in kinds
    assert kinds.index("response.mcp_list_tools.completed") < kinds.index("response.mcp_call.in_progress")
    assert kinds.index("response.mcp_call.completed") < kinds.index("response.output_text.delta")
    last = found[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    after = client.responses.create(model="demo", input="Thanks.", tools=[TOOL], previous_response_id=whole.id)
    assert not any(item.type == "mcp_list_tools" for item in after.output)


def test_openais_client_approves_a_call(client: OpenAI) -> None:
    careful: Any = {**TOOL, "require_approval": "always"}
    first = client.responses.create(model="demo", input=QUESTION, tools=[careful], tool_choice=CHOICE, temperature=0)
    request = first.output[-1]
    assert request.type == "mcp_approval_request"
    second = client.responses.create(
        model="demo",
        previous_response_id=first.id,
        tools=[careful],
        input=[{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}],
    )
    called = second.output[0]
    assert called.type == "mcp_call"
    assert (called.approval_request_id, called.status) == (request.id, "completed")


def test_anthropics_client_gets_the_loop_in_one_message(served: RealServer) -> None:
    asked: Any = {
        **{"model": "demo", "max_tokens": 300, "messages": [{"role": "user", "content": QUESTION}]},
        "extra_body": {"temperature": 0},
        "mcp_servers": [{"type": "url", "name": "calc", "url": "", "tool_configuration": {"allowed_tools": ["add"]}}],
        "tool_choice": {"type": "any"},
        "betas": ["mcp-client-2025-04-04"],
    }
    with Anthropic(base_url=served.base_url, api_key="none", max_retries=0, timeout=REPLY_S) as claude:
        whole = claude.beta.messages.create(**asked)
        MESSAGE.validate_python(json.loads(whole.to_json()))
        use, result, *_ = whole.content
        assert (use.type, result.type) == ("mcp_tool_use", "mcp_tool_result")
        assert result.tool_use_id == use.id
        assert not result.is_error
        with claude.beta.messages.stream(**asked) as stream:
            final = stream.get_final_message()
        assert [block.type for block in final.content] == [block.type for block in whole.content]
